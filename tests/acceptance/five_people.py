"""Five people with a file, each from that file to a model that answers, by nothing but words of README.md and `--help`.

`python -m tests.acceptance.five_people [WORD ...]` prints a table, of those with a word in their names; the exit code is 1 if
anyone met a wall.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.conftest import PROJECT
from trnflow.tasks.system.gpus import usable_gpus

COMMANDS = 4
"""At most, for each person."""
SCHEDULED_SECONDS = 300.0
"""The longest wait for what a worker trains by a schedule of every minute."""
WORK = "trnflow worker"
SHAREGPT = {"user": "human", "assistant": "gpt", "system": "system"}


class Person(NamedTuple):
    """Someone with a file.

    Attributes:
        write: Writes the file into a folder.
        commands: As typed in that folder; a worker runs until a model has been evaluated.
        needs: What this machine must have: "gpu", "s3" or nothing.
    """

    write: Callable[[Path], None]
    commands: tuple[str, ...]
    needs: str = ""


class Attempt(NamedTuple):
    """How far a person came.

    Attributes:
        seconds: Of all commands, by the clock: of a schedule with the wait for its minute.
        processor: Seconds of processor time: of each command, and of Prefect's server and whatever else still runs.
        wall: What stood in the way; "" if nothing did.
    """

    commands: int
    seconds: float
    processor: dict[str, float]
    wall: str


def _rows(name: str) -> list[dict[str, Any]]:
    text = (PROJECT / f"tasks/data/load/rows/{name}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def _write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_chats(folder: Path) -> None:
    chats = [
        [{"from": SHAREGPT[turn["role"]], "value": turn["content"]} for turn in row["messages"]]
        for row in _rows("chats")
    ]
    _write_lines(folder / "chats.jsonl", [{"conversations": turns} for turns in chats])


def write_tickets(folder: Path) -> None:
    with (folder / "tickets.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "text", "team"])
        table.writerows((number, row["text"], row["team"]) for number, row in enumerate(_rows("tickets")))


def write_alpaca(folder: Path) -> None:
    names = {"instruction": "instruction", "context": "input", "response": "output"}
    _write_lines(folder / "alpaca.jsonl", [{names[key]: row[key] for key in names} for row in _rows("questions")])


PEOPLE = {
    "a chat file (ShareGPT)": Person(
        write_chats,
        ("trnflow new chats.jsonl", "trnflow run chats.yaml", 'trnflow predict chats.yaml "Do you have a map?"'),
    ),
    "a CSV of tickets": Person(
        write_tickets,
        ("trnflow new tickets.csv", "trnflow run tickets.yaml", 'trnflow predict tickets.yaml "my parcel never came"'),
    ),
    "an Alpaca file": Person(
        write_alpaca,
        ("trnflow new alpaca.jsonl", "trnflow run alpaca.yaml", 'trnflow predict alpaca.yaml "What is a banana?"'),
    ),
    "a 24 GB card": Person(
        write_tickets,
        (
            "trnflow new tickets.csv",
            "trnflow run tickets.yaml --on gpu",
            'trnflow predict tickets.yaml "my parcel never came" --on gpu',
        ),
        needs="gpu",
    ),
    "a schedule, the store on S3": Person(
        write_tickets,
        (
            'trnflow new tickets.csv store.root=s3://BUCKET/store --deploy "* * * * *"',
            "trnflow deploy",
            WORK,
            'trnflow predict tickets.yaml "my parcel never came"',
        ),
        needs="s3",
    ),
}


def known_words(command: str, environ: dict[str, str]) -> str:
    """Return README.md and what `trnflow --help` and the command's own `--help` print."""
    helps = [_trnflow(arguments, PROJECT, environ).stdout for arguments in (["--help"], [command, "--help"])]
    return "\n".join([(PROJECT / "README.md").read_text(), *helps])


def unknown_words(line: str, environ: dict[str, str]) -> list[str]:
    """Return the words of a command line that a reader of README.md and `--help` can't know; his file, his text and
    the values of settings aside."""
    program, command, *arguments = shlex.split(line)
    words = [program, command, *(word for word in arguments if word.startswith("--"))]
    words += [word.partition("=")[0] for word in arguments if re.match(r"[a-z_.]+=", word)]
    text = known_words(command, environ)
    return [word for word in words if not re.search(rf"(?<![\w.-]){re.escape(word)}(?![\w-])", text)]


def attempt(person: Person, folder: Path, environ: dict[str, str], bucket: str = "") -> Attempt:
    """Let a person type the commands in a folder, until one meets a wall."""
    person.write(folder)
    words = [word for line in person.commands for word in unknown_words(line, environ)]
    wall = f"neither README.md nor --help has {', '.join(words)}" if words else ""
    begun, typed, processor = time.monotonic(), 0, dict[str, float]()
    while not wall and typed < len(person.commands):
        line, used = person.commands[typed], _processor_seconds()
        typed += 1
        wall = _work(folder, environ, bucket) if line == WORK else _type(line, folder, environ, bucket)
        processor[shlex.split(line)[1]] = _processor_seconds() - used
    return Attempt(typed, time.monotonic() - begun, processor, wall)


def _processor_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _still_running_seconds(home: str) -> float:
    """Return the processor time of processes that outlive the commands typed in a home."""
    total = 0.0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has ended, or is another user's
            if process.environ().get("HOME") == home:
                times = process.cpu_times()
                total += times.user + times.system
    return total


def _type(line: str, folder: Path, environ: dict[str, str], bucket: str) -> str:
    """Run a command. Return what stood in the way: its error, or that it printed nothing."""
    process = _trnflow(shlex.split(line.replace("BUCKET", bucket))[1:], folder, environ)
    if process.returncode:
        return f"{line}: {process.stderr[-2000:]}"
    return "" if process.stdout.strip() else f"{line}: no answer"


def _trnflow(arguments: list[str], folder: Path, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trnflow", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def _work(folder: Path, environ: dict[str, str], bucket: str) -> str:
    """Run a worker until the bucket has an evaluation. Return what stood in the way."""
    import boto3

    client = boto3.client("s3", endpoint_url=environ["AWS_ENDPOINT_URL"])
    with (folder / "worker.log").open("w+") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "trnflow", "worker"], cwd=folder, env=environ, stdout=log, stderr=log
        )
        deadline = time.monotonic() + SCHEDULED_SECONDS
        try:
            while worker.poll() is None and time.monotonic() < deadline:
                prefix = "store/records/evaluate_model/"
                if client.list_objects_v2(Bucket=bucket, Prefix=prefix).get("KeyCount"):
                    return ""
                time.sleep(0.5)
        finally:
            worker.send_signal(signal.SIGINT)
            worker.wait(60)
        log.seek(0)
        return f"no model after {SCHEDULED_SECONDS:.0f} s:\n{log.read()[-2000:]}"


def try_person(person: Person) -> Attempt | None:
    """Return a person's attempt in a new home without a hub; None where this machine lacks the person's GPU."""
    from tests.helpers import s3_server

    if person.needs == "gpu" and not usable_gpus().gpus:
        return None
    with tempfile.TemporaryDirectory(prefix="trnflow-person-") as home:
        folder = Path(home, "work")
        folder.mkdir()
        bucket = s3_server.new_bucket(s3_server.start_server()) if person.needs == "s3" else ""
        ours = ("TRNFLOW", "PREFECT", "MLFLOW")
        environ = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        environ |= {"HOME": home, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(PROJECT)}
        try:
            tried = attempt(person, folder, environ, bucket)
            return tried._replace(processor=tried.processor | {"servers": _still_running_seconds(home)})
        finally:
            _trnflow(["down"], folder, environ)


def main(words: list[str]) -> int:
    row, walls = "{:30} {:>8} {:>8} {:>10}  {}".format, 0
    print(row("person", "commands", "seconds", "processor", "walls"))
    for name, person in PEOPLE.items():
        if words and not any(word in name for word in words):
            continue
        tried = try_person(person)
        if tried is None:
            print(row(name, "-", "-", "-", "not run: no GPU here"), flush=True)
            continue
        walls += bool(tried.wall)
        seconds = f"{tried.seconds:.0f}", f"{sum(tried.processor.values()):.0f}"
        print(row(name, tried.commands, *seconds, tried.wall or "none"), flush=True)
        print(f"    {', '.join(f'{part} {value:.1f}' for part, value in tried.processor.items())}", flush=True)
    return 1 if walls else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
