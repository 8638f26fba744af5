"""One Ctrl-C ends a run wherever it is: each test sends it while the run does what would take it minutes or for ever."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers.command_line import Shell
from tests.helpers.products import few
from tests.helpers.waiting import wait_for
from trnflow.flows.services.prefect_server import ensure_server, stop_server

RUN = ("run", "demo", "--until", "tokenize_text", "data.source=rows", "data.name=null", "tracking.enabled=false")
TRAINED = ("data.text=text", "data.label=label", "tokenize.train.kind=bpe")
SMALL = [f"row {number}" for number in range(20)]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    yield Shell(tmp_path)
    stop_server(tmp_path / ".trnflow")


@contextmanager
def started(shell: Shell, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A run in a process group of its own, as a terminal has it; its error output in the file `said`."""
    with (shell.folder / "said").open("wb") as said:
        run = shell.start(*RUN, *TRAINED, *arguments, stdout=subprocess.DEVNULL, stderr=said, start_new_session=True)
    try:
        yield run
    finally:
        run.kill()


def interrupt(run: subprocess.Popen[str], shell: Shell, begun: Callable[[], object]) -> str:
    """Press Ctrl-C once `begun` says so; what the run said by the time it was gone."""
    wait_for(lambda: run.poll() is not None or begun(), 200)
    time.sleep(1)
    assert run.poll() is None, (shell.folder / "said").read_text()
    os.killpg(run.pid, signal.SIGINT)
    assert run.wait(30) == 130
    said = (shell.folder / "said").read_text()
    assert re.search(r"error: interrupted|error in \w+: (stopped by a signal|\w+ was interrupted)", said), said
    assert "Traceback" not in said
    return said


def write(shell: Shell, **splits: list[str]) -> None:
    (shell.folder / "rows").mkdir()
    for split in ("train", "validation", "test"):
        rows = [{"text": text, "label": "ab"[number % 2]} for number, text in enumerate(splits.get(split, SMALL))]
        (shell.folder / f"rows/{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def letters(count: int, seed: int = 0) -> str:
    table = bytes(ord("a") + byte % 26 for byte in range(256))
    return random.Random(seed).randbytes(count).translate(table).decode()


def test_while_a_source_of_four_terabytes_is_hashed(shell: Shell) -> None:
    (shell.folder / "rows").mkdir()
    file = shell.folder / "rows/train.csv"
    with file.open("wb") as handle:
        handle.truncate(4 << 40)

    def opened() -> bool:
        return any(os.path.realpath(link) == str(file) for link in Path(f"/proc/{run.pid}/fd").iterdir())

    with started(shell, "--direct") as run:
        interrupt(run, shell, opened)


def test_while_a_tokenizer_is_trained(shell: Shell) -> None:
    write(shell, train=[letters(200, seed) for seed in range(100_000)])
    with started(shell, "--direct") as run:
        said = interrupt(run, shell, lambda: b"training a bpe" in (shell.folder / "said").read_bytes())
    assert "! tokenize_text   stopped" in said


@pytest.mark.parametrize("how", few([["task_runner.kind=processes"], ["--direct"]], 1))
def test_while_workers_tokenise_a_row_of_forty_megabytes(shell: Shell, how: list[str]) -> None:
    write(shell, validation=[letters(40_000_000), *SMALL])
    if "--direct" not in how:
        ensure_server(shell.folder / ".trnflow")

    def tokenised() -> bool:
        return any((shell.folder / ".trnflow/work").glob("*tokenize_text*/shared/special.json"))

    with started(shell, *how, "data.max_cell_mb=64") as run:
        interrupt(run, shell, tokenised)
    wait_for(lambda: not workers(run.pid), 20)


def workers(group: int) -> list[str]:
    """The command lines of the processes that a run left in its process group."""
    found = subprocess.run(["pgrep", "-a", "-g", str(group)], capture_output=True, text=True).stdout
    return [line for line in found.splitlines() if "resource_tracker" not in line]
