"""What a person sees while a stage runs: on terminals, narrow ones too, and in logs."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.command_line import Shell
from tests.helpers.waiting import wait_for
from trnflow.flows.display.progress import Lines, Progress, clock_face, log_line, terminal_line
from trnflow.tasks.artifact import Meta
from trnflow.tasks.events import RunState

TRAINING = (
    "run", "demo", "--direct", "--until", "train", "data.limit=60", "train.engine=native", "train.devices=1",
    "train.epochs=5000", "train.eval_every=20", "tracking.enabled=false",
)  # fmt: skip


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Training:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.run = RunState()
        begun = {"event": "stage_begun", "stage": "train", "key": "k", "attempt": "a", "settings": {}}
        self.take(begun)
        self.at = self.run.stages["train"]

    def take(self, event: Meta) -> Any:
        known: Any = {"n": 0, "time": self.clock.now, **event}
        self.run.take(known)
        return known

    def steps(self, done: int, total: int = 500, **values: float) -> Any:
        counted = {"done": done, "total": total, "unit": "steps", "values": values}
        return self.take({"event": "progress", "stage": "train", **counted})

    def log_point(self, step: int, **values: float) -> Any:
        return self.take({"event": "metrics", "stage": "train", "step": step, "values": values})


@pytest.fixture
def training(clock: Clock) -> Training:
    return Training(clock)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def lines(clock: Clock, said: list[str], training: Training) -> Lines:
    log = Lines(lambda text, **fields: said.append(text), clock)
    log.begin(training.at)
    return log


def test_a_log_has_a_line_a_log_point_but_one_in_ten_seconds_at_most(
    lines: Lines, clock: Clock, said: list[str], training: Training
) -> None:
    for step in range(1, 31):  # a step a second, and each is a log point
        clock.now += 1
        lines.update(training.steps(step))
        lines.update(training.log_point(step, loss=1 / step, real_tokens_per_second=1234.4))
    assert said == [
        "  train: 1/500 steps, loss 1, 1234 tokens/s",
        "  train: 11/500 steps, loss 0.09091, 1234 tokens/s, ETA 0:08:09",
        "  train: 21/500 steps, loss 0.04762, 1234 tokens/s, ETA 0:07:59",
    ]


def test_a_log_that_is_silent_for_ten_seconds_repeats_what_is_known(
    lines: Lines, clock: Clock, said: list[str], training: Training
) -> None:
    clock.now = 9
    lines.tick()
    assert said == []
    clock.now = 10
    lines.tick()
    assert said == ["  train: running for 0:00:10"]
    lines.update(training.steps(4))
    lines.update(training.log_point(4, loss=0.5))
    lines.update(training.log_point(4, eval_loss=0.25, eval_accuracy=0.75))
    lines.say("  train: a checkpoint could not be saved")
    clock.now = 19
    lines.tick()
    assert len(said) == 2
    lines.update(training.steps(5, loss=0.5))
    clock.now = 20
    lines.tick()
    assert said[2:] == ["  train: 5/500 steps, loss 0.5, eval_loss 0.25, eval_accuracy 0.75, ETA 1:14:14"]
    lines.end()
    clock.now = 500
    lines.tick()
    assert len(said) == 3


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.9, "0:00:00"), (3_723, "1:02:03"), (359_999, "99:59:59"), (360_000, "4d 04h")]
)
def test_a_time_on_a_clock(seconds: float, shown: str) -> None:
    assert clock_face(seconds) == shown


@pytest.mark.parametrize(("stopped", "ended"), [(True, "stopped"), (False, "failed")])
def test_a_stage_that_was_interrupted_has_not_failed(
    stopped: bool, ended: str, training: Training, capsys: pytest.CaptureFixture[str]
) -> None:
    with Progress() as progress:
        event = training.take({"event": "stage_failed", "stage": "train", "error": {}, "stopped": stopped})
        progress.read(event, training.run)
    assert capsys.readouterr().err.split() == ["!", "train", ended]


@pytest.mark.parametrize(("done", "total"), [(3, 12), (12_345, 50_000), (123_456, 1_000_000)])
@pytest.mark.parametrize("loss", [2.345678e-05, 1234.5678, float("nan")])
@pytest.mark.parametrize("speed", [7.0, 99_950.0])
def test_loss_evaluation_speed_and_time_fit_into_60_columns(
    done: int, total: int, loss: float, speed: float, clock: Clock, training: Training
) -> None:
    training.steps(1, total)
    clock.now = done * 10.0
    training.steps(done, total)
    training.log_point(done, loss=loss, eval_loss=loss, eval_accuracy=0.912345, real_tokens_per_second=speed)
    for width in (59, 79, 120):
        shown = terminal_line(training.at, width, clock.now)
        assert len(shown) <= width
        for part in (r"\bloss ", r"\beval\S* ", r" (tok|tokens)/s\b", r"\bETA (\d+:\d\d:\d\d|\d+d \d\dh)$"):
            assert re.search(part, shown), (part, shown)
    assert {"loss", "eval_loss", "eval_accuracy", "tokens/s,", "ETA"} <= set(log_line(training.at, clock.now).split())


@pytest.mark.parametrize(
    ("speed", "shown"),
    [(999, "999"), (1_234, "1.2k"), (9_949, "9.9k"), (9_960, "10k"), (34_400, "34k"), (5.6e6, "5.6M")],
)
def test_a_narrow_terminal_shows_a_speed_in_four_characters(
    speed: float, shown: str, clock: Clock, training: Training
) -> None:
    training.steps(123_456, 1_000_000)
    training.log_point(123_456, loss=1.2345e-5, eval_loss=1.2345e-5, eval_accuracy=0.9, real_tokens_per_second=speed)
    assert f" {shown} tok/s" in terminal_line(training.at, 59, clock.now)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    return Shell(tmp_path_factory.mktemp("training"))


@contextmanager
def started(shell: Shell, stderr: int, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "trnflow", *TRAINING]
    run = subprocess.Popen(
        command, cwd=shell.folder, env=shell.environ | environ, stdin=stderr, stdout=subprocess.DEVNULL, stderr=stderr
    )
    try:
        yield run
        run.send_signal(signal.SIGINT)
        assert run.wait(60) == 130
    finally:
        run.kill()


def test_a_file_gets_lines_while_training_runs(shell: Shell, tmp_path: Path) -> None:
    log = tmp_path / "nohup.out"
    known = re.compile(r"^  train: \d+/\d+ steps, loss [\d.e-]+.* tokens/s", re.MULTILINE)
    with log.open("w+") as file, started(shell, file.fileno()) as run:
        wait_for(lambda: run.poll() is not None or len(known.findall(log.read_text())) >= 2, 200)
        assert run.poll() is None, log.read_text()
    said = [line for line in log.read_text().splitlines() if line.startswith("  train: ")]
    assert any("eval_loss" in line and "ETA" in line for line in said), said
    assert "\x1b" not in log.read_text()


def test_json_lines_have_step_and_loss_while_training_runs(shell: Shell, tmp_path: Path) -> None:
    log = tmp_path / "log"

    def told() -> list[Meta]:
        return [one for one in map(json.loads, log.read_text().splitlines()) if "loss" in one]

    with log.open("w+") as file, started(shell, file.fileno(), TRNFLOW_LOG="json") as run:
        wait_for(lambda: run.poll() is not None or len(told()) >= 2, 200)
        assert run.poll() is None, log.read_text()
    first, second = told()[:2]
    assert 0 < first["step"] < second["step"] < first["of"]
    assert (second["stage"], second["level"], second["unit"]) == ("train", "info", "steps")
    assert second["loss"] > 0 and second["eta"] > 0 and second["real_tokens_per_second"] > 0
    assert json.loads(log.read_text().splitlines()[-1])["level"] == "error"  # interrupted


def test_a_terminal_of_60_columns_has_one_line_that_never_wraps(shell: Shell) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    shown = b""
    wanted = re.compile(rb"train \d+[/%]\S* ?loss \S+ eval \S+ \S+ tok/s ETA \d+:\d\d:\d\d")
    with started(shell, theirs, TERM="xterm", COLUMNS="200") as run:
        os.close(theirs)
        while run.poll() is None and len(wanted.findall(shown)) < 3:
            shown += os.read(ours, 1 << 16)
        assert run.poll() is None, shown
    with suppress(OSError):  # the other end is closed
        while chunk := os.read(ours, 1 << 16):
            shown += chunk
    os.close(ours)
    refreshed = [re.sub(rb"\x1b\[[\d;?]*[A-Za-z]", b"", line) for line in re.findall(rb"\r\x1b\[2K([^\r\n]*)", shown)]
    assert any(wanted.search(line) for line in refreshed)
    assert max(len(line.decode()) for line in refreshed) < 60
