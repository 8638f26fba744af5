"""Seconds of the clock and of the processor, medians, and one table."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Spent(NamedTuple):
    """wall, cpu: seconds, cpu of all threads and of awaited children; told: what the measured process said of itself."""

    wall: float
    cpu: float
    told: Any = None


class Row(NamedTuple):
    """ours, target: seconds, or a share where `share` is set; cpu: seconds; theirs: seconds of each peer."""

    what: str
    ours: float
    cpu: float | None = None
    target: float | None = None
    theirs: dict[str, float] = {}
    note: str = ""
    share: bool = False


def spent(command: Sequence[str], *, cwd: Path, env: dict[str, str] | None = None) -> Spent:
    """Run a command to its end. told: its last line of output as JSON, where it is JSON."""
    begun = time.perf_counter()
    process = subprocess.Popen(command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout and process.stderr
    out, errors = process.stdout.read(), process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed:\n{errors}{out}")
    last = out.splitlines()[-1] if out.strip() else "null"
    return Spent(wall, used.ru_utime + used.ru_stime, json.loads(last) if last[0] in "[{n" else None)


def timed(what: Callable[[], object]) -> Spent:
    begun, busy = time.perf_counter(), time.process_time()
    what()
    return Spent(time.perf_counter() - begun, time.process_time() - busy)


def median(runs: Sequence[Spent]) -> Spent:
    return Spent(statistics.median(run.wall for run in runs), statistics.median(run.cpu for run in runs), runs[0].told)


def table(rows: Sequence[Row]) -> str:
    """what, clock, processor, target with a verdict, each peer with how many times as long it takes."""
    lines = [("", "clock", "cpu", "target", "", "others", "")]
    for row in rows:
        peers = ", ".join(
            f"{name} {_value(row, value)} ({value / row.ours:.3g}x)" for name, value in row.theirs.items()
        )
        lines.append((row.what, _value(row, row.ours), _seconds(row.cpu), *_against(row), peers, row.note))
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _against(row: Row) -> tuple[str, str]:
    if row.target is None:
        return "", ""
    met = row.ours >= row.target if row.share else row.ours <= row.target
    return _value(row, row.target), "met" if met else "MISSED"


def _value(row: Row, value: float) -> str:
    return f"{value:.1%}" if row.share else _seconds(value)


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    return f"{1e3 * value:.1f} ms" if value < 0.1 else f"{value:.2f} s"
