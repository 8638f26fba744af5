"""Show the progress of stages: on a terminal in one line that is refreshed, elsewhere as lines of a log.

Values are the last that the stage reported: no display waits for a device. A log (nohup, CI, Slurm) gets a line every
ten seconds, with the loss where training has just reported it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TextIO

from trnflow.flows.display.report import MARKS, number, seconds
from trnflow.tasks.events import Event, Reader, RunState, StageState
from trnflow.tasks.events.state import Clock
from trnflow.tasks.system.log_lines import LogLines
from trnflow.tasks.system.terminal import one_line

LOG_SECONDS = 10.0
"""The time between two lines of a log while a stage runs."""

REFRESHES = 4
"""The number of times per second that the terminal's line is refreshed."""

BAR = 20
"""The width of the progress bar in columns, on terminals that are wide enough."""


def log_line(at: StageState, now: float) -> str:
    """Return a stage's progress for a log: `train: 40/500 steps, loss 0.4123, 1234 tokens/s, ETA 0:12:34`, or without count
    and metric `train: running for 0:01:10`. now: seconds since 1970. Tokens are counted without padding."""
    known = [*_count(at), *_figures(at), *_ends(at, now)] or [f"running for {clock_face(at.elapsed(now))}"]
    return f"{at.stage}: {', '.join(known)}"


def terminal_line(at: StageState, width: int, now: float) -> str:
    """Return a stage's progress in at most `width` columns: the widest layout that fits, else the narrowest, cut.

    now: seconds since 1970. Without a count: the stage's name and its time so far.
    """
    if not at.total:
        return f"  {at.stage:<15} {clock_face(at.elapsed(now))}"[:width]
    text = ""
    for text in _layouts(at, now):
        if len(text) <= width:
            break
    return text[:width]


def _layouts(at: StageState, now: float) -> Iterator[str]:
    """Yield the progress in several layouts, widest first. Each has loss, evaluation, speed and ETA."""
    rest = [*_figures(at), *_ends(at, now)]
    plain = [f"{at.stage:<15}", *_count(at), *rest]
    filled = BAR * min(at.done, at.total) // at.total
    bar = f"[{'=' * filled:<{BAR}}]"
    yield "  " + "  ".join([plain[0], bar, *plain[1:], clock_face(at.elapsed(now))])
    yield "  " + "  ".join(plain)
    tight = [*_figures(at, tight=True), *_ends(at, now)]
    yield " ".join([at.stage, f"{at.done}/{at.total}", *tight])
    yield " ".join([at.stage, f"{100 * at.done // at.total}%", *tight])


def _count(at: StageState) -> list[str]:
    return [f"{at.done}/{at.total} {at.unit}"] if at.total else []


def _figures(at: StageState, *, tight: bool = False) -> Iterator[str]:
    """Yield loss, evaluations and speed, where known. tight: three digits, short names, of evaluations the loss alone."""
    evaluated = [name for name in at.values if name.startswith("eval_") and not name.endswith("_before")]
    names = {"loss": "loss", "eval_loss": "eval"} if tight else {n: n for n in ("loss", "eval_loss", *evaluated)}
    for name, shown in names.items():
        if name in at.values:
            yield f"{shown} {_brief(at.values[name])}" if tight else f"{shown} {number(at.values[name])}"
    speed = at.values.get("real_tokens_per_second")
    if speed is not None:
        yield f"{_short(speed)} tok/s" if tight else f"{speed:.0f} tokens/s"


def _ends(at: StageState, now: float) -> list[str]:
    eta = at.eta(now)
    return [] if eta is None else [f"ETA {clock_face(eta)}"]


def _brief(value: float) -> str:
    """Return a number in at most six characters: 0.412, 1234, 2.3e-5."""
    text = f"{value:.3g}"
    return text if "e" not in text and len(text) <= 6 else f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e")


def _short(value: float) -> str:
    """Return a number below 999 million in at most four characters: 1.2k, 34k, 5.6M."""
    for letter in ("", "k", "M"):
        if value < 999.5:
            return f"{value:.2g}{letter}" if value < 9.95 and letter else f"{value:.0f}{letter}"
        value /= 1000
    return f"{value:.0f}G"


def clock_face(value: float) -> str:
    """Return seconds as h:mm:ss, such as `0:12:34`; from 100 hours on as days and hours, such as `4d 05h`."""
    minutes, rest = divmod(int(value), 60)
    hours = minutes // 60
    return f"{hours}:{minutes % 60:02}:{rest:02}" if hours < 100 else f"{hours // 24}d {hours % 24:02}h"


class Lines:
    """Writes the progress of stages as lines of a log. Threads may share it.

    Call `begin` and `end` around a stage, and `update` after each of its events. A thread calls `tick` each second between.

    Args:
        say: Writes one line. Its keywords are the line's values by name, for a log of JSON lines.
        clock: Returns seconds since 1970.
    """

    def __init__(self, say: Callable[..., None], clock: Clock = time.time) -> None:
        self._say, self._clock = say, clock
        self._lock = threading.RLock()  # `tick` comes from another thread
        self._progress: StageState | None = None
        self._logged = self._spoke = float("-inf")
        self._ended = threading.Event()

    def begin(self, at: StageState) -> None:
        """Follow a stage, whose state others change. Writes no line."""
        self.end()
        with self._lock:
            self._progress, self._spoke = at, self._clock()
        self._ended = threading.Event()
        threading.Thread(target=self._tick_until, args=(self._ended,), name="progress", daemon=True).start()

    def say(self, text: str, **fields: Any) -> None:
        with self._lock:
            self._say(text, **fields)
            self._spoke = self._clock()

    def update(self, event: Event) -> None:
        """Write the progress if the event is a training loss, at most once in ten seconds."""
        with self._lock:
            logs = event["event"] == "metrics" and "loss" in event["values"]
            if self._progress is not None and logs and self._clock() - self._logged >= LOG_SECONDS:
                self._log(self._progress)

    def tick(self) -> None:
        """Write the progress if a stage runs and no line was written for ten seconds."""
        with self._lock:
            if self._progress is not None and self._clock() - self._spoke >= LOG_SECONDS:
                self._log(self._progress)

    def end(self) -> None:
        """Stop following the stage. Writes no line."""
        self._ended.set()
        with self._lock:
            self._progress = None

    def _log(self, progress: StageState) -> None:
        now = self._clock()
        self.say(f"  {log_line(progress, now)}", stage=progress.stage, **progress.shown(now))
        self._logged = self._clock()

    def _tick_until(self, ended: threading.Event) -> None:
        with suppress(OSError, ValueError):  # the reader of the stream has gone
            while not ended.wait(1.0):
                self.tick()


class Screen:
    """Shows a stage's progress in the last line of a terminal, and other lines above it, by rich. Methods as of `Lines`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live: Any = None

    def begin(self, at: StageState) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        self.end()
        console = Console(file=self._stream)

        def shown() -> Text:
            width = columns(self._stream, console.width) - 1  # a full line would wrap on some terminals
            return Text(one_line(terminal_line(at, width, time.time())), no_wrap=True, overflow="crop")

        self._live = Live(console=console, get_renderable=shown, refresh_per_second=REFRESHES, transient=True)
        self._live.start(refresh=True)

    def say(self, text: str, **fields: Any) -> None:
        text = one_line(text)
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            self._stream.write(f"{text}\n")
            self._stream.flush()

    def update(self, event: Event) -> None:
        pass  # the line is refreshed by itself

    def end(self) -> None:
        if self._live is not None:
            self._live.stop()
        self._live = None


class Progress(Reader):
    """Shows a run's progress on stderr: in one refreshed line on a terminal, else in lines of a log.

    A context manager: its end removes the refreshed line, and ends the thread that writes to a log.
    """

    def __init__(self) -> None:
        stream = sys.stderr
        self._terminal = stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")

        def say(text: str, **fields: Any) -> None:
            if isinstance(stream, LogLines):
                stream.record(" ".join(text.split()), **fields)
            else:
                stream.write(f"{one_line(text)}\n")
                stream.flush()

        self._view = Screen(stream) if self._terminal else Lines(say)

    def read(self, event: Event, state: RunState) -> None:
        if event["event"] == "stage_begun":
            if not self._terminal:
                self._view.say(f"  {event['stage']} ...", stage=event["stage"])
            self.begin(state.stages[event["stage"]])
        elif event["event"] == "note":
            self._view.say(f"  {event['stage'] or 'run'}: {event['text']}", stage=event["stage"], level=event["level"])
        elif event["event"] == "waits":
            self._view.say(f"  {event['stage']}: waits for {event['holder']}", stage=event["stage"], level="info")
        elif event["event"] == "stage_ended" and event["action"] != "skip":
            self._view.end()
            text = f"{MARKS[event['action']]} {event['stage']:<15} {event['action']:<4} {seconds(event['seconds']):>7}"
            self._view.say(text, stage=event["stage"], action=event["action"], seconds=event["seconds"])
        elif event["event"] == "stage_failed":
            self._view.end()
            level, ended = ("warning", "stopped") if event["stopped"] else ("error", "failed")
            self._view.say(f"! {event['stage']:<15} {ended}", stage=event["stage"], level=level)
        else:
            self._view.update(event)

    def begin(self, at: StageState) -> None:
        """Show the progress of a stage or of other work, without a line that names it."""
        self._view.begin(at)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self._view.end()


def columns(stream: TextIO, default: int) -> int:
    """Return the width of the stream's terminal in columns, or `default` without a terminal."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or default
    except (OSError, ValueError):
        return default
