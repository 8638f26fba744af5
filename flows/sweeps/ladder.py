"""The ladder of a sweep with `sweep.within`: the settings that it tries, the best guess first."""

from __future__ import annotations

from collections.abc import Collection

from pydantic import ValidationError

from trnflow.flows.recipes.recipe import Recipe
from trnflow.tasks.artifact import Meta

RATE, EPOCHS, MAX_STEPS, KEEP_BEST = "train.learning_rate", "train.epochs", "train.max_steps", "train.keep_best"
BEST_METRIC = "train.best_metric"
FACTORS = ((1, 1), (1 / 3, 1), (3, 1), (1, 2), (1, 1 / 2), (1 / 3, 2), (3, 1 / 2), (3, 2))
"""Of the recipe's learning rate and number of updates, in the order in which they are tried."""
# every evaluation has them; other metrics are measured only to keep the best weights
ALWAYS_MEASURED = ("eval_loss", "eval_accuracy")


def ladder(recipe: Recipe, fixed: Collection[str] = ()) -> list[Meta]:
    """Return the settings to try, as {setting: value}: the recipe's own first, then its neighbours; each is valid, none twice.

    recipe: with numbers for `auto`, unless the setting is fixed; fixed: the settings that no trial changes.
    """
    train = recipe.train
    base: Meta = {RATE: train.learning_rate}
    base |= {MAX_STEPS: train.max_steps} if train.max_steps else {EPOCHS: train.epochs}
    if MAX_STEPS in fixed:  # it decides, whatever `epochs` is
        fixed = {*fixed, EPOCHS}
    base = {name: value for name, value in base.items() if name not in fixed}
    may_keep_best = not train.keeps_best and KEEP_BEST not in fixed
    if may_keep_best and recipe.sweep.metric == train.best_name not in ALWAYS_MEASURED:
        base[KEEP_BEST] = True
    rungs = [{name: _scaled(name, value, rate, length) for name, value in base.items()} for rate, length in FACTORS]
    if may_keep_best and recipe.learns.per_row and train.method != "lora":
        other = recipe.sweep.metric in ALWAYS_MEASURED and recipe.sweep.metric != train.best_name
        best: Meta = {BEST_METRIC: recipe.sweep.metric} if other else {}
        rungs.append({**base, KEEP_BEST: True, **best})
    return [rung for number, rung in enumerate(rungs) if rung not in rungs[:number] and _is_valid(recipe, rung)]


def _scaled(name: str, value: float, rate: float, length: float) -> float:
    if name == KEEP_BEST or (name == RATE and rate == 1):
        return value
    # the nearest whole number, a half upwards; rates with two digits, as people write them
    return float(f"{value * rate:.2g}") if name == RATE else max(1, int(value * length + 0.5))


def _is_valid(recipe: Recipe, rung: Meta) -> bool:
    try:
        recipe.changed(rung)
    except ValidationError:
        return False
    return True
