"""Write a sweep's results to `<home>/sweeps/<name>`: `sweep.json` and `best.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

import yaml

from trnflow.flows.recipes.recipe import Recipe, validated
from trnflow.flows.sweeps.plan import Plan
from trnflow.flows.sweeps.study import Tried, Winner
from trnflow.tasks.artifact import Json, Meta
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.system.redaction import hide_secrets
from trnflow.tasks.system.whole_file import write_whole

PATHS = ("source", "root", "uri")
"""The last names of settings that may be paths."""
# values of this section may be secrets: not copied from the command line into a file
PRIVATE = "launch"


class SweepDocument(TypedDict):
    """sweep.json. trials, best: as `Tried`; shared_seconds: saved by results in the store."""

    schema: int
    study: str
    recipe: str
    metric: str
    direction: Literal["max", "min"]
    trials: list[Meta]
    best: Meta | None
    winner: Winner | None
    shared_seconds: float


def document(plan: Plan, trials: list[Tried], best: Tried | None, winner: Winner | None) -> SweepDocument:
    sweep = plan.recipe.sweep
    return {
        "schema": 1,
        "study": plan.name,
        "recipe": plan.recipe.name,
        "metric": sweep.metric,
        "direction": "max" if sweep.is_maximised else "min",
        "trials": [trial._asdict() for trial in trials],
        "best": best._asdict() if best else None,
        # null if the best trial has other settings by now
        "winner": winner if winner and best and winner["settings"] == best.settings else None,
        "shared_seconds": round(sum(trial.shared_seconds for trial in trials), 3),
    }


def write_best(folder: Path, plan: Plan, best: Tried) -> None:
    """Write best.yaml: a recipe that extends the sweep's by the best trial's settings, without `launch` and secrets."""
    recipe = plan.with_values(best.settings, plan.recipe.name)
    after = recipe.model_dump(mode="json")
    try:
        before = validated(plan.read, plan.named).model_dump(mode="json")
    except ConfigError:  # the recipe is complete only with the overrides: write all settings
        before = {name: {} for name, section in after.items() if isinstance(section, dict)}
    tree = _changes(before, after, recipe)
    extends = str(Path(plan.named).expanduser().absolute()) if plan.named.endswith((".yaml", ".yml")) else plan.named
    about = (
        f"# Trial {best.number} of the sweep {plan.name}: {plan.recipe.sweep.metric} {best.value:.6g} on validation.\n"
    )
    shown = hide_secrets(tree)
    if shown != tree:
        about += "# *** hides a secret of the command line: write ${NAME}, which the environment fills in, before you run this.\n"
    content = {"extends": extends, "name": plan.recipe.name, **shown}
    write_whole(folder / "best.yaml", about + yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def _changes(before: Meta, after: Meta, recipe: Recipe, above: tuple[str, ...] = ()) -> Meta:
    """Return the settings of `after` that differ from `before`; an entry that is gone is null, which removes it."""
    changes: Meta = {}
    for name in [*before, *(name for name in after if name not in before)]:
        path = (*above, name)
        old, new = before.get(name), after.get(name)
        if old == new or path == ("sweep",) or path[0] in (PRIVATE, "name", "description"):
            continue
        if isinstance(old, Mapping) and isinstance(new, dict) and new:
            changes[name] = _changes(dict(old), new, recipe, path)
        else:
            changes[name] = _absolute(new, path, recipe)
    return changes


def _absolute(value: Any, path: tuple[str, ...], recipe: Recipe) -> Json:
    """Make a relative path of the command line absolute."""
    if isinstance(value, dict):
        return {name: _absolute(inner, (*path, name), recipe) for name, inner in value.items()}
    named = path[-1] in PATHS or "splits" in path
    if not (named and isinstance(value, str)) or "://" in value:
        return value
    # best.yaml lies in another folder
    place = recipe.folder(".".join(path)) / Path(value).expanduser()
    return str(place) if place.exists() else value
