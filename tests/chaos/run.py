"""Chaos under a schedule, repeatable by its seed: `python -m tests.chaos.run --seed N --minutes M [--every S]
[--postgres]`.

The deployment `retrain` fires every S seconds; its store is an S3 server behind a proxy, its tracking an MLflow server, its
home a small disk where one can be mounted. For M minutes acts (`acts.py`) kill processes, cut the store off, fill the disk and
change the rows; the last act takes Prefect's server away until what runs has ended. Then all is mended, and the truth is
looked up: exit code 0 if no artifact is lost, no result wrong, no process left, every run in a true state and `verify` clean.
With --postgres the databases of Prefect and MLflow are on a PostgreSQL server, which is among what is killed.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from tests.chaos import truth
from tests.chaos.acts import ACTS, WITH_POSTGRES, Scene, change_rows, flow_processes, kill_server, plan
from tests.chaos.data import rows
from tests.chaos.databases import environment, prepared
from tests.chaos.house import House, wait_for
from tests.chaos.outside import MlflowServer, ObjectStore, disk

PATIENCE = 1200.0
"""Seconds in which a mended house must have judged the newest rows."""
RECIPE = "store: {lease_ttl_seconds: 20, min_free_gb: 0.05}\n"
"""The home's disk is smaller than the default of `store.min_free_gb`."""


class Clock:
    """Prints lines with the seconds since the beginning."""

    def __init__(self) -> None:
        self.begun = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begun

    def say(self, text: str) -> None:
        print(f"{datetime.now(UTC):%H:%M:%S} {self.seconds:7.1f} s  {text}", flush=True)


def live(scene: Scene, seed: int, minutes: float, clock: Clock) -> None:
    """Do the seed's acts, one after the other, from the first training on until the time is over."""
    wait_for(scene.house.trainings, PATIENCE, "the first training")
    end = clock.seconds + 60 * minutes
    acts = WITH_POSTGRES if scene.postgres else ACTS
    for number, (pause, act, lasts, salt) in enumerate(plan(seed, 1000, acts), 1):
        if clock.seconds + pause + lasts > end:
            break
        time.sleep(pause)
        clock.say(f"act {number:3} {act.name}: {act.do(scene, random.Random(salt))}, for {lasts:.0f} s")
        time.sleep(lasts)
        act.undo(scene)
    clock.say(f"last act: the server goes away for good: {kill_server(scene, random.Random(seed))}")
    with contextlib.suppress(AssertionError):
        wait_for(lambda: not flow_processes(scene.house), PATIENCE, "the flow runs end without a server")
    clock.say(f"flow runs left: {flow_processes(scene.house)}")


def mend(scene: Scene, clock: Clock) -> list[str]:
    """Start the server again, change the rows once more, and wait until they are judged; return what is wrong."""
    scene.house.up()
    clock.say(f"mended: {change_rows(scene, random.Random(0))}")
    try:
        wait_for(lambda: truth.newest_judged_rows(scene.store) == scene.counts[-1], PATIENCE, "the last rows judged")
    except AssertionError as error:
        return [str(error)]
    clock.say("the last rows are judged")
    return []


def keep(home: Path, copy: Path) -> None:
    """Copy a home from the small disk, which is unmounted at the end, so that a fault can be looked into."""
    ignored = shutil.ignore_patterns("ballast", "*.sock")
    try:
        shutil.copytree(home, copy, symlinks=True, ignore=ignored, ignore_dangling_symlinks=True)
    except (OSError, shutil.Error) as error:
        print(f"not all of the home could be kept: {str(error)[:300]}")


def main(arguments: list[str]) -> int:
    options = argparse.ArgumentParser(
        prog="python -m tests.chaos.run", description=(__doc__ or "").partition("\n\n")[2]
    )
    options.add_argument("--seed", type=int, required=True)
    options.add_argument("--minutes", type=float, default=30)
    options.add_argument("--every", type=int, default=30, help="seconds between two firings")
    options.add_argument(
        "--postgres", action="store_true", help="Prefect and MLflow on PostgreSQL, which is killed too"
    )
    given = options.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leaves no process and no disk
    folder, clock = Path(tempfile.mkdtemp(prefix="trnflow-chaos-")), Clock()
    (folder / "house").mkdir()
    with contextlib.ExitStack() as stack:
        store = ObjectStore(folder)
        stack.callback(store.close)
        database = prepared() if given.postgres else None
        if database:
            stack.callback(database.close)
        mlflow = MlflowServer(folder, database.url("mlflow") if database else None)
        stack.callback(mlflow.kill)
        is_small = stack.enter_context(disk(folder / "house/.trnflow"))
        clock.say(f"seed {given.seed}, {given.minutes} minutes, {folder}, home on a small disk: {is_small}")
        environ = {**store.environ, **(environment(database) if database else {}), "MLFLOW_TRACKING_URI": mlflow.url}
        house = House(folder / "house", given.every, RECIPE, environ)
        stack.callback(house.kill_all)
        scene = Scene(house, store, mlflow, is_small, [400], database)
        house.put(rows(400, wrong=0.9))
        try:
            house.open()
            live(scene, given.seed, given.minutes, clock)
            found = mend(scene, clock) + truth.faults_of(scene, clock.say)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            found = [str(error)]
        if found and is_small:
            house.kill_all()
            keep(house.home, folder / "home")
    print("\n".join(["FAULTS:", *found] if found else ["no fault"]))
    print(f"seed {given.seed}: {clock.seconds:.0f} s; files: {folder}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
