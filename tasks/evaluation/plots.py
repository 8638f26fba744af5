"""Draw plots as PNG files. The same data gives the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Meta

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NUMBERED = 20
"""The largest number of classes for which cells show numbers."""


def confusion_matrix(confusion: NDArray[np.int64], labels: list[str], title: str, file: Path) -> None:
    """Draw a confusion matrix, int64 [classes, classes], the true class by row. Colours are shares of a row."""
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    size = max(4.0, min(0.55 * len(labels) + 2.5, 20.0))
    figure = Figure(figsize=(size + 0.8, size), dpi=120)
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    share = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(share, cmap="Blues", vmin=0.0, vmax=1.0)
    names = [shortened(label) for label in labels]
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel="predicted", ylabel="true", title=title)
    if len(labels) <= NUMBERED:
        for (row, column), count in np.ndenumerate(confusion):
            colour = "white" if share[row, column] > 0.5 else "black"
            axes.text(column, row, str(count), ha="center", va="center", color=colour, fontsize=8)
    figure.colorbar(image, ax=axes, label="share of the true class", fraction=0.046, pad=0.04)
    figure.savefig(file, format="png", bbox_inches="tight", metadata={"Software": None})


def calibration(bins: list[Meta], title: str, file: Path) -> None:
    """Draw accuracy by confidence. bins: of `ece.calibration`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.8, 4.0), dpi=120)
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    most = max(entry["rows"] for entry in bins)
    axes.plot([0, 1], [0, 1], color="grey", linewidth=1, linestyle="--", label="calibrated")
    confidence, accuracy = ([entry[name] for entry in bins] for name in ("confidence", "accuracy"))
    axes.plot(confidence, accuracy, color="tab:blue", linewidth=1)
    sizes = [12 + 120 * entry["rows"] / most for entry in bins]
    axes.scatter(confidence, accuracy, s=sizes, color="tab:blue", label="rows of a bin, by area")
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="probability of the predicted class", ylabel="accuracy", title=title)
    axes.legend(frameon=False, loc="upper left")
    figure.savefig(file, format="png", bbox_inches="tight", metadata={"Software": None})


def bars(names: list[str], values: list[float], what: str, title: str, file: Path) -> None:
    """Draw a horizontal bar of each value, on an axis from 0 to 1, the first below. what: the axis's label."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, min(0.25 * len(names) + 1.5, 20)), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.barh(range(len(names)), values, color="tab:blue")
    axes.set_yticks(range(len(names)), [shortened(name, 30) for name in names])
    axes.set(xlim=(0, 1), xlabel=what, title=title)
    figure.savefig(file, metadata={"Software": None})


def residuals(expected: NDArray[np.float32], values: NDArray[np.float32], names: list[str], file: Path) -> None:
    """Draw predicted numbers and what they miss by, both [rows, outputs], by the true ones."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for true, value, name in zip(expected.T, values.T, names, strict=True):
        left.scatter(true, value, s=6, alpha=0.4, label=shortened(name))
        right.scatter(true, value - true, s=6, alpha=0.4)
    ends = (float(expected.min()), float(expected.max()))
    left.plot(ends, ends, color="grey", linewidth=1)
    right.axhline(0, color="grey", linewidth=1)
    left.set(xlabel="true", ylabel="predicted")
    right.set(xlabel="true", ylabel="predicted less true")
    left.legend(fontsize=8)
    figure.savefig(file, metadata={"Software": None})


def shortened(label: str, length: int = 24) -> str:
    """Return a class's label for a plot: at most `length` characters."""
    # matplotlib would take it for a formula
    text = label.replace("$", r"\$")
    return text if len(text) <= length else f"{text[: length - 1]}…"
