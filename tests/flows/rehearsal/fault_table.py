"""What a rehearsal finds of the planted faults, and what a run alone would waste on them.

`python -m tests.flows.rehearsal.fault_table` prints a table; `... fault_table 23 29` of those kinds alone.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.flows.rehearsal.faults import FAULTS, RECIPES, Fault, write_sound
from tests.flows.rehearsal.harms import HARMS, ended
from trnflow.flows.finetune import ROLES, finetune
from trnflow.flows.rehearsal.rehearse import Rehearsal, rehearse
from trnflow.flows.runner.context import RunContext, open_context
from trnflow.flows.runner.plan import Options
from trnflow.flows.runner.run import Result, run
from trnflow.tasks.errors import Interrupted, TrnflowError, unexpected
from trnflow.tasks.events import Event, EventLog, Reader, RunState

CHECKPOINTS = 23
"""The kind of a checkpoint that can't be written or resumed."""


def rehearsed(folder: Path, fault: Fault) -> Rehearsal:
    """Return the rehearsal of a sound recipe with a fault planted. The working directory is `folder`."""
    write_sound(folder, fault.kind)
    fault.plant(folder)
    with fault.around(folder):
        try:
            return rehearse(open_context("mine.yaml", fault.overrides))
        except TrnflowError as error:  # the recipe, or its store, can't be opened
            return Rehearsal(fault=error)


def is_named(fault: Fault, rehearsal: Rehearsal) -> bool:
    """Return whether a rehearsal says what is wrong: a remark, or a fault with a fix."""
    if fault.remark:
        return rehearsal.fault is None and any(fault.words in remark for remark in rehearsal.remarks)
    return rehearsal.fault is not None and bool(rehearsal.fault.fix) and fault.words in str(rehearsal.fault)


class Ran(NamedTuple):
    """A run without a rehearsal. seconds: of its stage train, by its event log; harmed: whether it ended well, and `HARMS`
    shows what the fault did to it."""

    error: TrnflowError | None
    seconds: float
    harmed: bool = False


class Interrupter(Reader):
    """Reader that interrupts training (Ctrl-C) after its first steps, so that it has a checkpoint to go on from."""

    def __init__(self) -> None:
        self.done = False

    def read(self, event: Event, state: RunState) -> None:
        if event["event"] == "progress" and event["stage"] == ROLES["training"] and not self.done:
            self.done = True
            os.kill(os.getpid(), signal.SIGINT)


def _run(fault: Fault, *readers: Reader) -> tuple[Result, RunContext]:
    """Run a recipe; the training of a fault of checkpoints is long enough to be interrupted."""
    long = ("train.epochs=60", "train.checkpoint_every=20") if fault.number == CHECKPOINTS else ()
    context = open_context("mine.yaml", (*fault.overrides, *long, "tracking.enabled=false"))
    opened = context.for_run(EventLog(*readers))
    return run(finetune(opened.recipe), opened, Options()), opened


def ran(folder: Path, name: str) -> Ran:
    """Run a sound recipe with a fault planted."""
    fault = FAULTS[name]
    write_sound(folder, fault.kind)
    fault.plant(folder)
    with fault.around(folder):
        try:
            result, opened = _run(fault, *([Interrupter()] if fault.number == CHECKPOINTS else []))
            if isinstance(result.error, Interrupted):
                result, opened = _run(fault)
        except (TrnflowError, OSError) as refused:
            return Ran(unexpected(refused), 0.0)
        harmed = result.error is None and name in HARMS and HARMS[name](ended(result, opened.store, folder / "made"))
    train = opened.log.state.stages.get(ROLES["training"])
    return Ran(result.error, train.seconds or 0.0 if train is not None else 0.0, harmed)


@contextmanager
def new_folder() -> Iterator[Path]:
    """Yield an empty folder, which is the working directory and has a home of its own."""
    with tempfile.TemporaryDirectory(prefix="trnflow-fault-", ignore_cleanup_errors=True) as name, chdir(name):
        os.environ |= {"TRNFLOW_HOME": f"{name}/home", "HF_HUB_OFFLINE": "1"}
        yield Path(name)


def main(numbers: list[int]) -> int:
    row, found, tried, wasted, alarms = "{:>4}  {:60} {:8} {:>10}  {}".format, 0, 0, 0.0, 0
    print(row("kind", "planted", "found", "training s", "what a run alone does"))
    for name, fault in FAULTS.items():
        if numbers and fault.number not in numbers:
            continue
        with new_folder() as folder:
            named = is_named(fault, rehearsed(folder, fault))
        with new_folder() as folder:
            error, seconds, harmed = ran(folder, name)
        tried, found = tried + 1, found + named
        wasted += seconds
        ends = (
            type(error).__name__ if error is not None else f"ends well, {'its harm is shown' if harmed else 'NO HARM'}"
        )
        print(row(fault.number, name, "yes" if named else "NO", f"{seconds:.1f}", ends), flush=True)
    for kind in RECIPES:
        with new_folder() as folder:
            write_sound(folder, kind)
            rehearsal = rehearse(open_context("mine.yaml"))
            alarms += rehearsal.fault is not None or bool(rehearsal.remarks)
    print(f"{found} of {tried} found before a stage that costs; {alarms} false alarms of {len(RECIPES)} sound recipes")
    print(f"{wasted:.1f} s of training that runs without a rehearsal threw away, all together")
    return 0 if found == tried and not alarms else 1


if __name__ == "__main__":
    sys.exit(main([int(number) for number in sys.argv[1:]]))
