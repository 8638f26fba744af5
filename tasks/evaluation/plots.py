"""Pictures as PNG, the same bytes each time: drawn without a display, a date or the name of the program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NUMBERED = 20
"""With more classes than this, the cells bear no numbers."""


def confusion_matrix(confusion: NDArray[np.int64], labels: list[str], title: str, file: Path) -> None:
    """confusion: int64 [classes, classes], rows are the true class. Colours show shares of a row, cells the counts."""
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


def shortened(label: str, length: int = 24) -> str:
    """A label that fits an axis; `$` would start a formula."""
    text = label.replace("$", r"\$")
    return text if len(text) <= length else f"{text[: length - 1]}…"
