"""Draw plots as PNG files. The same data gives the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Meta

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from trnflow.tasks.system.arrays import Ints

NUMBERED, FRAMED, NAMED = 20, 30, 150
"""The largest number of classes for which all cells show numbers, the smallest whose matrix is drawn in full size, for a page
that scrolls, and the largest of which each has its name."""

FONT, COLOURS = 8, 128
"""Points of the text in a matrix of full size, and its colours: with all of them the file is three times as large."""


def confusion_matrix(confusion: Ints, labels: list[str], title: str, file: Path) -> None:
    """Draw a confusion matrix, int64 [classes, classes], the true class by row. Colours are shares of a row."""
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    count, is_full = len(labels), len(labels) >= FRAMED
    size = min(0.25 * count, 0.25 * NAMED) + 2.5 if is_full else max(4.0, 0.55 * count + 2.5)
    figure = Figure(figsize=(size + 0.8, size), dpi=100 if is_full else 120)
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    share = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(share, cmap="Blues", vmin=0.0, vmax=1.0)
    places = range(0, count, -(-count // NAMED))
    names = drawable_names(labels)[:: places.step]
    axes.set(xlabel="predicted", ylabel="true")
    axes.set_title(title, loc="left" if is_full else "center")
    if is_full:
        # a part of it is seen at a time, first the upper left corner: names on all sides
        axes.tick_params(labelsize=FONT, top=True, labeltop=True, right=True, labelright=True)
        axes.set_xticks(places, names, rotation=90)
    else:
        axes.set_xticks(places, names, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(places, names)
    for (row, column), number in np.ndenumerate(confusion) if count <= NAMED else ():
        if number or count <= NUMBERED:
            colour = "white" if share[row, column] > 0.5 else "black"
            axes.text(column, row, str(number), ha="center", va="center", color=colour, fontsize=FONT - is_full)
    if not is_full:
        figure.colorbar(image, ax=axes, label="share of the true class", fraction=0.046, pad=0.04)
    _save(figure, file, COLOURS if is_full else None)


def _save(figure: Figure, file: Path, colours: int | None) -> None:
    """Save a figure as PNG. colours: how many at most; None for all."""
    from PIL import Image

    whole = BytesIO()
    figure.savefig(whole, format="png", bbox_inches="tight", metadata={"Software": None})
    if colours is None:
        file.write_bytes(whole.getvalue())
    else:
        drawn = Image.open(whole).convert("RGB")
        # the median cut, the default, loses colours of few cells
        drawn.quantize(colours, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
            file, format="png", optimize=True
        )


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
    """Return a class's label for a plot: see `short`."""
    # matplotlib would take it for a formula
    return short(label, length).replace("$", r"\$")


def short(label: str, length: int = 24) -> str:
    """Return a label in one line of at most `length` characters, both ends of it where it is longer."""
    text = " ".join(label.split()) or "(blank)"
    end = (length - 1) // 3
    return text if len(text) <= length else f"{text[: length - 1 - end]}…{text[-end:]}"


def short_names(labels: Sequence[str], length: int = 24) -> list[str]:
    """Return the labels shortened; if some would be alike, each behind its number, from 1."""
    names = [short(label, length) for label in labels]
    return names if len({*names}) == len(names) else [f"{number} {name}" for number, name in enumerate(names, 1)]


def drawable_names(labels: list[str]) -> list[str]:
    """Return the names of a plot: of a label with letters that the plots' font lacks its number, from 1, as `class 7`."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    letters = {*map(chr, get_font(findfont(FontProperties())).get_charmap())}
    names = short_names(labels)
    return [
        name.replace("$", r"\$") if letters.issuperset(name) else f"class {number}"
        for number, name in enumerate(names, 1)
    ]
