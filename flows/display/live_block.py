"""Show a run while it goes on: in a notebook one block that updates, elsewhere the progress of the command line."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape

from trnflow.flows.display.progress import Progress, log_line
from trnflow.flows.display.report import figures, seconds
from trnflow.tasks.evaluation.curves import HEIGHT, LEFT, TOP, WIDTH, drawn
from trnflow.tasks.events import Event, Reader, RunState

SECONDS = 0.5
"""The shortest time between two updates of a block while a stage runs."""

Show = Callable[[str], None]


@contextlib.contextmanager
def shown() -> Iterator[Reader]:
    """Context with the reader that shows a run's events where this process writes to."""
    show = _notebook()
    if show is not None:
        yield Block(show)
        return
    with Progress() as progress:
        yield progress


def html_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    lines = ("".join(f"<td>{escape(str(cell))}</td>" for cell in row) for row in rows)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


class Block(Reader):
    """The stages, the progress of the one that runs, and the loss. show: replaces the block by HTML."""

    def __init__(self, show: Show) -> None:
        self._show, self._updated = show, float("-inf")
        self._losses: list[tuple[int, float]] = []

    def read(self, event: Event, state: RunState) -> None:
        if event["event"] == "metrics" and "loss" in event["values"]:
            self._losses.append((event["step"], event["values"]["loss"]))
        if event["event"] in ("progress", "metrics", "figures") and time.monotonic() - self._updated < SECONDS:
            return
        self._updated = time.monotonic()
        self._show(self._html(state))

    def _html(self, state: RunState) -> str:
        rows = [
            (at.stage, at.action, "" if at.action == "running" else seconds(at.seconds), figures(at.metrics))
            for at in state.stages.values()
        ]
        running = [log_line(at, time.time()) for at in state.stages.values() if at.action == "running"]
        table = html_table(("stage", "", "seconds", "figures"), rows)
        return f"{table}{''.join(f'<div>{escape(line)}</div>' for line in running)}{loss_curve(self._losses)}"


def loss_curve(points: list[tuple[int, float]]) -> str:
    """Return (step, loss) pairs as an SVG drawing; "" for fewer than two steps."""
    if len({step for step, _ in points}) < 2:
        return ""
    curve, bottom = drawn(sorted(dict(points).items())), TOP + HEIGHT
    texts = [(0, TOP + 12, curve["high"]), (0, bottom, curve["low"]), (LEFT, bottom + 14, f"step {curve['first']}")]
    labels = "".join(f'<text x="{x}" y="{y}">{text}</text>' for x, y, text in texts)
    last = f'<text x="{LEFT + WIDTH}" y="{bottom + 14}" text-anchor="end">loss at step {curve["last"]}</text>'
    return (
        f'<svg viewBox="0 0 {LEFT + WIDTH} {bottom + 20}" width="420" font-size="12" fill="currentColor">{labels}{last}'
        f'<polyline points="{curve["points"]}" fill="none" stroke="currentColor"/></svg>'
    )


def _notebook() -> Show | None:
    """Return what shows HTML in this cell, or None outside Jupyter and marimo."""
    marimo, ipython = sys.modules.get("marimo"), sys.modules.get("IPython")
    if marimo is not None and marimo.running_in_notebook():
        return lambda html: marimo.output.replace(marimo.Html(html))
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or not hasattr(shell, "kernel"):
        return None
    from IPython.display import HTML, display

    handle = display(HTML(""), display_id=True)
    return lambda html: handle.update(HTML(html))
