"""What can go wrong under a schedule: each act does one thing to one part, and undoes it after some seconds."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.chaos.data import bomb, rows, with_long_cell
from tests.chaos.house import House
from tests.chaos.outside import MlflowServer, ObjectStore
from tests.helpers.postgres import Postgres
from tests.helpers.small_disk import fill

ALL = "GET HEAD PUT POST DELETE"
RANK_SECONDS = 150.0
"""How long to wait for a training whose rank can be killed: until the schedule fires, and for the stages before training."""
TROUBLES = {
    "drop before": {"methods": ALL, "drop": "before"},
    "drop after": {"methods": ALL, "drop": "after"},
    "drop half": {"methods": "GET", "drop": "half"},
    "delay": {"methods": ALL, "delay": 3},
    "403": {"methods": ALL, "status": 403, "code": "AccessDenied"},
    "403 to writes": {"methods": "PUT POST", "status": 403, "code": "AccessDenied"},
}


class Scene(NamedTuple):
    """All that acts can reach. counts: the numbers of training rows that there were; disk: whether the home is a small disk;
    postgres: None where the databases are SQLite files."""

    house: House
    store: ObjectStore
    mlflow: MlflowServer
    disk: bool
    counts: list[int]
    postgres: Postgres | None = None


class Act(NamedTuple):
    """do: returns what was done, in a few words; undo: called after the act's seconds."""

    name: str
    do: Callable[[Scene, random.Random], str]
    undo: Callable[[Scene], None] = lambda scene: None


def kill(process: int) -> str:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
        return f"kill -9 {process}"
    return f"{process} had ended"


def kill_worker(scene: Scene, chance: random.Random) -> str:
    assert scene.house.worker
    done = kill(scene.house.worker.pid)
    scene.house.worker.wait()
    return done


def kill_worker_and_runs(scene: Scene, chance: random.Random) -> str:
    """Kill the worker and the processes of its flow runs; those of stages have to end by themselves."""
    done = [kill_worker(scene, chance)]
    return ", ".join(done + [kill(process) for process in flow_processes(scene.house)])


def flow_processes(house: House) -> list[int]:
    """The processes of flow runs, and those by which Prefect's worker watches over them."""
    names = ("prefect.engine", "prefect.runner.")
    return [process for process, line in house.processes().items() if any(name in line for name in names)]


def kill_server(scene: Scene, chance: random.Random) -> str:
    return kill(json.loads((scene.house.home / "prefect/server.json").read_text())["pid"])


def start_server(scene: Scene) -> None:
    scene.house.up()


def kill_mlflow(scene: Scene, chance: random.Random) -> str:
    scene.mlflow.kill()
    return f"kill -9 {scene.mlflow.process.pid}"


def kill_rank(scene: Scene, chance: random.Random) -> str:
    """Kill one process of a training: a rank, the process that starts ranks, or the guard. New rows bring a training about."""
    if not training_processes(scene.house):
        change_rows(scene, chance)
    deadline = time.monotonic() + RANK_SECONDS
    while time.monotonic() < deadline:
        if found := sorted(training_processes(scene.house)):
            process = chance.choice(found)
            return f"{kill(process)} of {found}"
        time.sleep(0.2)
    return "nothing trained"


def training_processes(house: House) -> list[int]:
    """The processes of the stage train, as their environment says."""
    found = []
    for process in house.processes():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
            found += [process for word in words if word.startswith(b"TRNFLOW_ATTEMPT=") and b"-train-" in word]
    return found


def trouble(name: str) -> Act:
    def do(scene: Scene, chance: random.Random) -> str:
        scene.store.set(TROUBLES[name])
        return json.dumps(TROUBLES[name])

    return Act(f"S3 {name}", do, lambda scene: scene.store.set())


def fill_disk(scene: Scene, chance: random.Random) -> str:
    if not scene.disk:
        return "skipped: no small disk can be mounted here (needs root)"
    return f"{fill(scene.house.home).stat().st_size >> 20} MiB of ballast"


def empty_disk(scene: Scene) -> None:
    (scene.house.home / "ballast").unlink(missing_ok=True)


def change_rows(scene: Scene, chance: random.Random) -> str:
    """Write another number of rows than ever before, of any quality."""
    count = max(scene.counts) + 1
    scene.counts.append(count)
    scene.house.put(rows(count, wrong=chance.choice((0.05, 0.5, 0.9))))
    return f"{count} rows"


def put(train: Callable[[], bytes], what: str) -> Callable[[Scene, random.Random], str]:
    def do(scene: Scene, chance: random.Random) -> str:
        scene.house.put(train())
        return what

    return do


def break_blob(scene: Scene, chance: random.Random) -> str:
    """Cut any blob in half: of an input, of the champion, of the frozen rows."""
    blobs = scene.store.names("blobs/")
    if not blobs:
        return "there is none"
    scene.store.cut(name := chance.choice(blobs))
    return name


def mend_rows(scene: Scene) -> None:
    change_rows(scene, random.Random(0))


def restart_worker(scene: Scene) -> None:
    scene.house.start_worker()


def kill_postgres(scene: Scene, chance: random.Random) -> str:
    assert scene.postgres
    scene.postgres.kill()
    return "its connections are broken"


def start_postgres(scene: Scene) -> None:
    assert scene.postgres
    scene.postgres.start()


ACTS = (
    Act("kill worker", kill_worker, restart_worker),
    Act("kill worker and runs", kill_worker_and_runs, restart_worker),
    Act("kill Prefect server", kill_server, start_server),
    Act("kill MLflow", kill_mlflow, lambda scene: scene.mlflow.start()),
    Act("kill rank", kill_rank),
    *(trouble(name) for name in TROUBLES),
    Act("fill disk", fill_disk, empty_disk),
    Act("change rows", change_rows),
    Act("change rows", change_rows),
    Act("gzip bomb", put(bomb, "4 GiB in a line"), mend_rows),
    Act("long cell", put(lambda: with_long_cell(rows(400)), "200 MB"), mend_rows),
    Act("break blob", break_blob, lambda scene: scene.store.restore()),
)
WITH_POSTGRES = (*ACTS, Act("kill PostgreSQL", kill_postgres, start_postgres))


class Planned(NamedTuple):
    """pause: seconds before the act; lasts: seconds until it is undone; salt: seeds the act's own choices."""

    pause: float
    act: Act
    lasts: float
    salt: int


def plan(seed: int, count: int, acts: tuple[Act, ...] = ACTS) -> list[Planned]:
    """The first acts of a seed. Every act comes once before any comes again."""
    chance, found = random.Random(seed), list[Planned]()
    while len(found) < count:
        for act in chance.sample(acts, len(acts)):
            found.append(Planned(chance.uniform(2, 20), act, chance.uniform(2, 25), chance.randrange(1 << 30)))
    return found[:count]
