"""What the curves of training tell: it ended too early, went on for too long, or began without weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from trnflow.tasks.evaluation.scores import is_less_better
from trnflow.tasks.evaluation.verdicts.comparison import BETTER, Compared
from trnflow.tasks.evaluation.verdicts.facts import Facts, figure

GAIN = 0.05
"""The share of the loss, at least, that as many updates again would take off."""
FALL = 0.03
"""The share of the whole fall of the loss that its last quarter has, at least."""
ERRORS = 3.0
"""By how many standard errors the loss lies below that of a quarter of training before the end."""
RISEN = 1.2
"""How many times its lowest value validation's loss has in the end, at least."""
POINTS = 4
"""Evaluations, at least, that are read instead of training's loss, which falls when rows are learnt by heart, too."""

LEARNT = 0.9
"""The share of its first value that training's loss has in the end, at most, where a model has learnt."""
UPDATES, PASSES = 200, 20
"""`train.epochs: auto` makes as many updates, at least, but no more passes (`trnflow.tasks.training.automatic`)."""


class Risen(NamedTuple):
    """A loss of validation that rose. step: of its lowest value; last: that of the weights that are the result."""

    step: int
    lowest: float
    last: float


def still_falling(facts: Facts) -> str | None:
    """Say that the loss was still falling: as much training again, at the pace of its last quarters, would take off GAIN.

    Updates count by their learning rate: at the end of a schedule every loss is level.
    """
    evaluated = [row for row in facts.curves if "eval_loss" in row]
    name = "eval_loss" if len(evaluated) >= POINTS else "loss"
    losses = [row[name] for row in facts.curves if name in row]
    if len(losses) < POINTS or facts.training.get("best_step", _last_step(facts)) < _last_step(facts):
        return None
    if evaluated and evaluated[-1]["eval_loss"] > 1.02 * min(row["eval_loss"] for row in evaluated):
        return None
    shares = _shares(facts.curves, name)
    start, middle, later, end = (_near(shares, losses, at) for at in (0.0, 0.5, 0.75, 1.0))
    noise = ERRORS * _noise_of(losses) * math.hypot(*(len(_window(shares, losses, at)) ** -0.5 for at in (0.75, 1.0)))
    fall = later - end
    if fall <= max(noise, FALL * (start - end)) or middle <= later:
        return None
    # each further quarter takes off `pace` times what the one before did
    pace = min(fall / (middle - later), 1.0)
    if fall * sum(pace**quarter for quarter in range(1, 5)) < GAIN * end:
        return None
    what = "validation's loss" if name == "eval_loss" else "the loss"
    return (
        f"{what} was still falling when training ended ({figure(start)} at first, {figure(middle)} half way, {figure(end)} "
        "in the end): more train.epochs or a higher train.learning_rate help"
    )


def advice(facts: Facts) -> str:
    """Return what may make the model better: more training, or where that has done what it can, more rows or another model."""
    losses, shares = [row["loss"] for row in facts.curves if "loss" in row], _shares(facts.curves, "loss")
    has_learnt = bool(losses) and _near(shares, losses, 1.0) <= LEARNT * _near(shares, losses, 0.0)
    if has_learnt and still_falling(facts) is None:
        return (
            "its loss no longer falls: more rows of train or another model (model.source) may help; "
            "`trnflow sweep RECIPE --within 30m` tries other rates"
        )
    epochs = facts.training.get("settings", {}).get("epochs")
    is_short = facts.kind.per_row and _last_step(facts) < UPDATES and (epochs is None or epochs < PASSES)
    by_itself = "; `auto` chooses both" if is_short else ""
    return f"more updates or a higher rate may help (train.epochs and train.learning_rate{by_itself})"


def _last_step(facts: Facts) -> int:
    return int(facts.training.get("steps", 0))


def _shares(curves: Sequence[dict[str, float]], name: str) -> list[float]:
    """Return of each row with a loss how much of all training lay before it, updates counted by their learning rate."""
    before, step, shares = 0.0, 0.0, []
    for row in curves:
        before += row.get("learning_rate", 0.0) * (row["step"] - step)
        step = row["step"] if "learning_rate" in row else step
        if name in row:
            shares.append(before)
    return [share / (shares[-1] or 1.0) for share in shares]


def _window(shares: Sequence[float], losses: Sequence[float], at: float) -> list[float]:
    """Return the losses near a share of training: those within a tenth, else the nearest."""
    near = [loss for share, loss in zip(shares, losses, strict=True) if abs(share - at) <= 0.1]
    return near or [losses[min(range(len(shares)), key=lambda index: abs(shares[index] - at))]]


def _near(shares: Sequence[float], losses: Sequence[float], at: float) -> float:
    near = _window(shares, losses, at)
    return sum(near) / len(near)


def _noise_of(losses: Sequence[float]) -> float:
    """Return the standard deviation of a loss around its curve, from second differences of the later half."""
    half = losses[len(losses) // 2 - 1 :]
    bends = [before - 2 * here + after for before, here, after in zip(half, half[1:], half[2:], strict=False)]
    return math.sqrt(sum(bend**2 for bend in bends) / (6 * max(len(bends), 1)))


def over_trained(facts: Facts) -> str | None:
    """Say that validation's loss rose and its metric fell, by more than chance moves it; of tasks without a metric, that the
    loss rose."""
    risen = risen_loss(facts)
    if risen is None:
        return None
    rows = {int(row["step"]): row for row in facts.curves if "eval_loss" in row}
    result = facts.training.get("best_step") or max(rows)
    names = [name for name in rows[risen.step] if name.startswith("eval_") and name != "eval_loss"]
    name = next((name for name in names if name in rows[result]), None)
    fallen = ""
    if name is not None:
        before, after = rows[risen.step][name], rows[result][name]
        fall = after - before if is_less_better(name) else before - after
        if fall <= _noise(facts, before):
            return None
        fallen = f", its {name.removeprefix('eval_')} went from {figure(before)} to {figure(after)}"
    return (
        f"over-trained {where(facts, risen.step)}: validation's loss rose from {figure(risen.lowest)} to "
        f"{figure(risen.last)}{fallen}; train.keep_best=true or fewer train.epochs help"
    )


def _noise(facts: Facts, share: float) -> float:
    """Return two standard errors of a difference of shares of the validation rows."""
    rows = sum(facts.packed.get("rows", {}).get("validation", {}).values())
    return 2 * math.sqrt(2 * max(share * (1 - share), 0.0) / max(rows, 1))


def risen_loss(facts: Facts) -> Risen | None:
    losses = {int(row["step"]): row["eval_loss"] for row in facts.curves if "eval_loss" in row}
    if len(losses) < 3:
        return None
    result = facts.training.get("best_step") or max(losses)
    step = min(losses, key=lambda each: losses[each])
    if not 0 < step < result or result not in losses or losses[result] < RISEN * losses[step]:
        return None
    return Risen(step, losses[step], losses[result])


def where(facts: Facts, step: int) -> str:
    """Name a step by its epoch, where the number of epochs is known."""
    settings, last = facts.training.get("settings", {}), facts.curves[-1]["step"]
    update = f"update {step:,} of {int(last):,}"
    epochs = settings.get("epochs")
    if settings.get("max_steps") is not None or not isinstance(epochs, int | float):
        return f"from {update} on"
    return f"from epoch {figure(step * epochs / last)} on ({update})"


def from_nothing(facts: Facts, beside: Sequence[Compared]) -> str | None:
    """Say that training began without weights, where the model is not known to be better than a baseline."""
    if not facts.training.get("scratch") or (beside and all(each.better <= BETTER for each in beside)):
        return None
    return "the model began from nothing: with a pretrained one far fewer rows and updates do (model.source)"
