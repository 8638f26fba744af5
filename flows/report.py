"""What a person sees of a run: a line and a bar a stage on stderr, a closing table on stdout."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TextIO

from flows.call import Call, Outcome
from flows.forecast import ANYWAY, dollars, total
from flows.stage import Listener
from tasks.artifact import Meta

FIRST = ("f1_weighted", "accuracy", "perplexity", "loss", "train_loss", "eval_loss", "eval_accuracy", "train_rows")
"""The metrics that a line of the table shows before any others."""

MARKS = {"hit": "=", "ran": "+", "skip": "-", "run": "+", "maybe": "?"}


class Progress(Listener):
    """One line a stage; on a terminal a bar that moves, elsewhere a line when the stage begins and when it ends."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._bars: Any = None
        self._bar: Any = None

    def stage_started(self, call: Call, key: str) -> None:
        self._close_bar()  # of a try that another run superseded
        if self._stream.isatty():
            self._open_bars()
            self._bar = self._bars.add_task(call.name, total=None, note="")
        else:
            self._say(f"  {call.name} ...")

    def event(self, stage: str, event: Meta) -> None:
        for level in ("warn", "info"):
            if level in event:
                self._say(f"  {stage}: {event[level]}")
        progress = event.get("progress")
        if progress and self._bar is not None:
            extra = {k: v for k, v in progress.items() if k not in ("done", "total", "unit")}
            note = " ".join(f"{name} {number(value)}" for name, value in extra.items())
            self._bars.update(
                self._bar, completed=progress["done"], total=progress["total"], note=f"{progress['unit']} {note}"
            )

    def stage_ended(self, outcome: Outcome) -> None:
        self._close_bar()
        self._say(f"{MARKS[outcome.action]} {outcome.stage:<15} {outcome.action:<4} {seconds(outcome.seconds):>7}")

    def stage_failed(self, stage: str, error: BaseException) -> None:
        self._close_bar()
        self.close()
        self._say(f"! {stage:<15} failed")

    def close(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def _say(self, text: str) -> None:
        if self._bars is not None:
            self._bars.console.print(text, markup=False, highlight=False)
        else:
            self._stream.write(f"{text}\n")
            self._stream.flush()

    def _open_bars(self) -> None:
        if self._bars is None:
            from rich import progress
            from rich.console import Console

            self._bars = progress.Progress(
                progress.TextColumn("  {task.description:<15}"),
                progress.BarColumn(bar_width=30),
                progress.MofNCompleteColumn(),
                progress.TimeElapsedColumn(),
                progress.TextColumn("ETA"),
                progress.TimeRemainingColumn(),
                progress.TextColumn("{task.fields[note]}"),
                console=Console(file=self._stream),
                transient=True,
            )
            self._bars.start()

    def _close_bar(self) -> None:
        if self._bar is not None and self._bars is not None:
            self._bars.remove_task(self._bar)
        self._bar = None


def table(outcomes: list[Outcome]) -> str:
    """stage, action, seconds, artifact, key figures: one aligned line a stage."""
    rows = [("stage", "", "seconds", "artifact", "key figures")]
    for outcome in outcomes:
        digest = outcome.artifact.digest.removeprefix("sha256:")[:12] if outcome.artifact else "-"
        rows.append(
            (outcome.stage, outcome.action, seconds(outcome.seconds), digest, highlights(outcome) or outcome.why)
        )
    return aligned(rows)


def plan_table(outcomes: list[Outcome], price_per_hour: float = 0.0) -> str:
    """What each stage is expected to take, and all that run or may run; dollars where the hardware has a price."""
    rows = [("stage", "action", "seconds", "size", "dollars", "why")]
    for outcome in outcomes:
        due = outcome.action not in ANYWAY
        expected = _expected(outcome.seconds, outcome.bytes, price_per_hour) if due else ("", "", "")
        rows.append((outcome.stage, outcome.action, *expected, outcome.why))
    if any(outcome.action not in ANYWAY for outcome in outcomes):
        sums = total(outcomes, price_per_hour)
        why = f"at least: no past of {', '.join(sums['unknown'])}" if sums["unknown"] else "if all of these run"
        rows.append(("total", "", *_expected(sums["seconds"], sums["bytes"], price_per_hour), why))
    return aligned(rows if price_per_hour else [(*row[:4], row[5]) for row in rows])


def _expected(time: float | None, size: int | None, price_per_hour: float) -> tuple[str, str, str]:
    return seconds(time), bytes_(size), "?" if time is None else f"{dollars(time, price_per_hour):.2f}"


def aligned(rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def highlights(outcome: Outcome, most: int = 4) -> str:
    """The first few metrics of a stage, else what its artifact holds."""
    values: Meta = outcome.metrics
    if not values and outcome.artifact:
        meta = outcome.artifact.meta
        values = {name: meta[name] for name in ("splits", "longest", "lengths", "parameters", "target") if name in meta}
        if outcome.stage == "precompile":
            values = {"graphs": len(meta.get("graphs", []))}
    return figures(values, most)


def figures(values: Meta, most: int = 4) -> str:
    """The first few metrics, the telling ones first."""
    names = sorted(values, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
    return "  ".join(f"{name} {number(values[name])}" for name in names[:most])


def seconds(value: float | None) -> str:
    if value is None:
        return "?"
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def bytes_(value: int | None) -> str:
    """In powers of 1000, three digits or so."""
    if value is None:
        return "?"
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value} B"


def number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ",".join(f"{name}:{number(item)}" for name, item in value.items())
    return str(value)
