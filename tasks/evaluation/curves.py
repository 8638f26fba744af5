"""Draw the curves of training for a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.evaluation.scores import MAIN, TRAINING

CURVES = (
    *dict.fromkeys(("loss", *TRAINING, *(f"eval_{name}" for name in MAIN))),
    "learning_rate",
    "grad_norm",
    "real_tokens_per_second",  # as the progress shows; of a classifier `tokens_per_second` counts a target a row
)
"""The metrics whose curves are drawn, where training reported them."""

POINTS = 400
"""About how many points of a curve are drawn at most; of longer curves every nth point is drawn."""

LEFT, TOP, WIDTH, HEIGHT = 64, 8, 346, 150
"""The area of a curve in the template's drawing, in its units."""


def drawn_curves(values: Mapping[int, Mapping[str, float]]) -> list[Meta]:
    """Return the curves of two points or more for the template. values: {step: {metric: value}}."""
    points = {name: [(step, values[step][name]) for step in sorted(values) if name in values[step]] for name in CURVES}
    return [{"name": name, **drawn(found)} for name, found in points.items() if len(found) > 1]


def drawn(points: list[tuple[int, float]]) -> Meta:
    """Return a curve for the template: its line, and first and last step, lowest and highest value."""
    # the last point is always drawn: it is the value that counts
    every = -(-len(points) // POINTS)
    kept = [*points[:-1:every], points[-1]]
    steps, values = [step for step, _ in kept], [value for _, value in kept]
    first, last, low, high = steps[0], steps[-1], min(values), max(values)
    places = (
        (LEFT + WIDTH * (step - first) / (last - first), TOP + HEIGHT * (1 - (value - low) / ((high - low) or 1.0)))
        for step, value in kept
    )
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return {"points": line, "first": first, "last": last, "low": number(low), "high": number(high)}


def number(value: Any) -> str:
    """Return a figure as text: floats with four significant digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
