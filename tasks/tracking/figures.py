"""Draw figures for MLflow, in the follower: a run does not wait for matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def lengths_figure(lengths: dict[str, dict[str, int]]) -> Figure:
    """Return a bar chart of the share of rows by tokens. lengths: {split: {"<upper bound>": rows}}."""
    from matplotlib.figure import Figure

    bins = sorted({int(most) for rows in lengths.values() for most in rows})
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(lengths)
    for number, (split, rows) in enumerate(lengths.items()):
        total = sum(rows.values())
        at = [index + (number - (len(lengths) - 1) / 2) * width for index in range(len(bins))]
        axes.bar(at, [rows.get(str(most), 0) / total for most in bins], width, label=f"{split}: {total:,} rows")
    axes.set_xticks(range(len(bins)), [f"{most // 2 + 1}-{most}" if most > 2 else str(most) for most in bins])
    axes.set(xlabel="tokens a row", ylabel="share of rows")
    axes.tick_params(axis="x", rotation=45)
    axes.legend(frameon=False)
    return figure
