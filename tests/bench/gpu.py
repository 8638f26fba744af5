"""Measure engine native on a GPU beside other programs: the items of `gpu_items`, in order of worth, each within its seconds.

    python3 -m tests.bench.gpu --call 1 --out DIR [--items NAME,...] [--ways NAME,...] [--seconds 300] [--toy]

For a machine that is lent for minutes: packages in `.whl` (`make wheels`) are installed first, into a folder that a second call
finds again. An item that overruns is ended, with all its processes; time that earlier items left is added to its own. One for
which none is left is left out. DIR gets `results.jsonl`, to which each way is added as it ends, and `log.txt`, with all that was
printed. This program needs Python alone.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.bench.gpu_items import INSTALL, NAMES, TRAINING, Item, items_of
from tests.bench.gpu_results import described

PROJECT = Path(__file__).resolve().parents[2]
GRACE = 2.0
"""Seconds between TERM and KILL."""
LEAST = 10.0
"""Seconds with which no item is begun any more."""


def within(command: Sequence[str], seconds: float, log: Path, environ: dict[str, str]) -> str:
    """Run a command in a process group of its own; return "ended", "failed (N)", or that it was ended."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, cwd=PROJECT, env=environ, start_new_session=True
        )
    try:
        status = process.wait(seconds)
        return "ended" if status == 0 else f"failed ({status})"
    except subprocess.TimeoutExpired:
        _signal(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        return f"ended at its limit of {seconds:.0f} s"
    finally:
        _signal(process, signal.SIGKILL)  # what an item leaves running would disturb the next
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to all of a process group that are left."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def run_items(items: Sequence[Item], seconds: float, arguments: argparse.Namespace) -> None:
    """Run the items in turn, all within `seconds`."""
    begun, environ = time.monotonic(), install(arguments)
    for number, item in enumerate(items):
        left = seconds - (time.monotonic() - begun)
        # those before it may have left some
        limit = min(left, max(item.seconds, left - sum(later.seconds for later in items[number + 1 :])))
        if limit < LEAST:
            say(arguments.out, item.name, f"left out: {left:.0f} s are left of {seconds:.0f}", 0.0)
            continue
        since = time.monotonic()
        state = within(command_of(item, arguments), limit, arguments.out / "log.txt", environ)
        say(arguments.out, item.name, state, time.monotonic() - since)


def command_of(item: Item, arguments: argparse.Namespace) -> list[str]:
    """Return the command that measures an item."""
    ways = dict.fromkeys(way for ways in item.cases.values() for way in ways if way in (arguments.ways or ways))
    command = [sys.executable, "-u", "-m", f"tests.bench.{item.program}", "--item", item.name]
    command += ["--cases", ",".join(item.cases), "--ways", ",".join(ways)]
    folders = {"results": results_in(arguments.out), "work": arguments.work, "data": arguments.wheels}
    command += [f"--{name}={path}" for name, path in folders.items()]
    steps = ["--steps", str(3 if arguments.toy else item.steps)] if item.program == TRAINING else []
    return [*command, *steps, *(["--toy"] if arguments.toy else [])]


def results_in(out: Path) -> Path:
    return out / "results.jsonl"


def say(out: Path, item: str, state: str, seconds: float) -> None:
    """Write down how an item ended; print that and its results."""
    lines = results_in(out).read_text().splitlines() if results_in(out).exists() else []
    with results_in(out).open("a") as results:
        results.write(json.dumps({"item": item, "state": state, "wall": round(seconds, 1)}) + "\n")
    print(f"{item}: {state}, {seconds:.0f} s", flush=True)
    for measured in map(json.loads, lines):
        if measured["item"] == item and "way" in measured:
            print(f"    {measured['case']}, {measured['way']}: {described(measured)}", flush=True)


def install(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the environment of the items, in which the packages of `.whl` come before the machine's."""
    site, wheels = arguments.work / "site", sorted(arguments.wheels.glob("*.whl"))
    environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
    if not wheels:
        return environ
    if not site.exists():
        since, unfinished = time.monotonic(), arguments.work / "unfinished"
        options = ["-q", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--upgrade", "--target"]
        command = [sys.executable, "-m", "pip", "install", *options, str(unfinished), *map(str, wheels)]
        state = within(command, 3 * INSTALL, arguments.out / "log.txt", environ)
        if state == "ended":
            unfinished.rename(site)
        say(arguments.out, "install", state, time.monotonic() - since)
    return {**environ, "PYTHONPATH": os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH"))))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--call", type=int, choices=(1, 2, 3), help="the items of one command on the lent machine")
    parser.add_argument("--items", type=lambda text: text.split(","), help=", ".join(NAMES))
    parser.add_argument("--ways", type=lambda text: text.split(","), help="of the items' ways; default: all")
    parser.add_argument("--out", type=Path, default=Path("gpu-results"))
    parser.add_argument("--seconds", type=float, help="for all items; default: as many as they have together")
    parser.add_argument("--wheels", type=Path, default=Path(".whl"), help="the folder of packages to install")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "trnflow-gpu")
    parser.add_argument("--toy", action="store_true", help="small models, on the processor")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.items or () if name not in NAMES]:
        parser.error(f"there is no item {', '.join(unknown)}; there are {', '.join(NAMES)}")
    items = items_of(arguments.call, arguments.items)
    for folder in ("out", "work", "wheels"):
        setattr(arguments, folder, getattr(arguments, folder).resolve())
    arguments.out.mkdir(parents=True, exist_ok=True)
    arguments.work.mkdir(parents=True, exist_ok=True)
    run_items(items, arguments.seconds or INSTALL + sum(item.seconds for item in items), arguments)


if __name__ == "__main__":
    main()
