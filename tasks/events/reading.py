"""Read event logs: from a byte on, as they grow, or whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.events.event_types import SCHEMA, Event, checked_event
from trnflow.tasks.events.retention import is_written
from trnflow.tasks.events.state import RunState, fold
from trnflow.tasks.system.json_objects import parsed

READ_BYTES = 1 << 20

TAIL_BYTES = 1 << 16

NOT_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
"""Texts that stand for numbers which JSON does not have."""


def follow(file: Path, offset: int = 0) -> tuple[list[Event], int]:
    """Read the events from byte `offset` on, about 1 MiB of whole lines, and return them with the offset after them. A
    last line without end is left for a later call; `skipped` stands in for each other line that is no event.

    Raises:
        FileNotFoundError: The run has no log here.
        ConfigError: A later version of trnflow wrote the log, in a format that this one misreads.
    """
    with file.open("rb") as handle:
        handle.seek(offset)
        chunk = handle.read(READ_BYTES)
        if chunk and b"\n" not in chunk:
            chunk += handle.readline()
    whole = chunk[: chunk.rfind(b"\n") + 1]
    return parse_events(whole, str(file)), offset + len(whole)


def parse_events(lines: bytes, where: str) -> list[Event]:
    """Return the events of whole lines. where: the file's name, for an error. Raises as `follow`."""
    return [_event(line, where) for line in lines.split(b"\n") if line.strip()]


def read_log(file: Path) -> RunState:
    """Return the state of a run by its log: `killed` if nobody writes the log, and it has no end. Raises as `follow`."""
    is_alive = is_written(file)  # first: a run that ends meanwhile has written its end
    state, before, offset = RunState(), -1, 0
    while offset != before:
        before = offset
        events, offset = follow(file, offset)
        fold(events, state)
    if state.outcome == "running" and not is_alive:
        state.outcome = "killed"
    return state


def read_tail(file: Path) -> RunState:
    """Fold a log's last READ_BYTES: enough to see what runs now. Raises FileNotFoundError, ConfigError."""
    events, _ = follow(file, max(0, file.stat().st_size - READ_BYTES))
    return fold(events)


def is_killed(file: Path) -> bool:
    """Return whether a log has neither writer nor end. Reads its last line."""
    return not is_written(file) and not has_end(file)


def has_end(file: Path) -> bool:
    """Return whether the last line of a log is the run's end."""
    with file.open("rb") as handle:
        handle.seek(max(0, file.stat().st_size - TAIL_BYTES))
        last = handle.read().rstrip(b"\n").rpartition(b"\n")[2]
    return (parsed(last) or {}).get("event") == "run_ended"


def _event(line: bytes, file: str) -> Event:
    document = parsed(line)
    event = None if document is None else checked_event(document)
    if event is None:
        return cast(Event, {"n": -1, "time": 0.0, "event": "skipped", "bytes": len(line)})
    if event["event"] == "run_begun" and event["schema"] > SCHEMA:
        raise ConfigError(
            f"{file} is an event log in format {event['schema']}, and this version of trnflow reads up to {SCHEMA}",
            "read it with the version that wrote it, or a later one",
        )
    for name in ("values", "metrics", "figures"):
        if name in event:
            _restore(cast(Any, event)[name])
    return event


def _restore(values: Meta) -> None:
    """Put numbers in the place of the texts of NOT_FINITE."""
    for name, value in values.items():
        if isinstance(value, dict):
            _restore(value)
        elif isinstance(value, str) and value in NOT_FINITE:
            values[name] = NOT_FINITE[value]
