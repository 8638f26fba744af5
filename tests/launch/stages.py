"""Stages that behave, and misbehave, in a process of their own."""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.config import StageConfig
from trnflow.tasks.errors import DataError, Interrupted
from trnflow.tasks.stage import Workdir

SLEEPER = "import time; time.sleep(600)"
EATER = "import time; held = [bytearray(b'x') * 2**24 for _ in range(64)]; time.sleep(20)"
GPU_IS_FULL = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 22.06 GiB of which 1.44 GiB is free. "
    "Of the allocated memory 20.01 GiB is allocated by PyTorch, and 310.00 MiB is reserved by PyTorch but unallocated. If "
    "reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
)
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)


class NapConfig(StageConfig):
    """how: what the stage does; pids: where it notes its own process and those it starts."""

    how: str = ""
    pids: Path | None = None


def empty(config: NapConfig, out: Workdir) -> Meta:
    return {}


def describe(config: NapConfig, rows: Input, model: Source, graphs: Input, out: Workdir) -> Meta:
    print("to stdout")
    print("to stderr", file=sys.stderr)
    (out.path / "made.txt").write_text(rows.path.joinpath("rows.txt").read_text().upper())
    (out.scratch / "litter").write_text("x")
    return {
        "how": config.how,
        "model": model.identity,
        "where": model.location,
        "graphs": graphs.digest,
        "flag": os.environ["TRNFLOW_TEST_FLAG"],
        "pid": os.getpid(),
    }


def talk(config: NapConfig, out: Workdir) -> Meta:
    """A hundred points, a warning of 200 kB (more than a pipe holds), then it waits for the file `how`."""
    for step in range(100):
        out.metrics(step, loss=1 / (step + 1))
    out.warn("w" * 200_000)
    out.progress(1, 2)
    while not Path(config.how).exists():
        time.sleep(0.01)
    out.progress(2, 2)
    out.figures(seconds=1.5)
    return {"metrics": {"train_loss": 0.01}}


def tell(config: NapConfig, out: Workdir) -> Meta:
    """Prints `how`, and a line that does not end; returns the names of the files beside its folder."""
    print(f"my token is {config.how}")
    print("and the last line", end="")
    return {"beside": sorted(path.name for path in out.path.parent.iterdir() if path.is_file())}


def fail(config: NapConfig, out: Workdir) -> Meta:
    """Fails in the way `how`."""
    print("last words")
    if config.how == "data":
        raise DataError("rows.csv, row 3: no label", "give every row a label")
    if config.how == "bug":
        return {"x": 1 / 0}
    if config.how == "not json":
        return {"x": object()}
    if config.how == "nan":
        return {"x": float("nan")}
    if config.how == "secret":
        raise ValueError(f"no login with {os.environ['TRNFLOW_TEST_FLAG']}")
    if config.how == "exit":
        os._exit(7)
    os.kill(os.getpid(), getattr(signal, config.how))
    time.sleep(60)
    return {}


def sleep(config: NapConfig, out: Workdir) -> Meta:
    """Sleeps for ever, with children as `how` says: plain, stubborn (ignores TERM), escaped (left the session too)."""
    children = []
    for kind in config.how.split():
        child = subprocess.Popen(
            [sys.executable, "-c", SLEEPER if kind == "plain" else STUBBORN],
            stdout=subprocess.PIPE,
            start_new_session=kind == "escaped",
        )
        if kind != "plain" and child.stdout:
            child.stdout.readline()
        children.append(child.pid)
    _note(config, [os.getpid(), os.getppid(), *children])
    out.info("asleep")
    time.sleep(600)
    return {}


def leave(config: NapConfig, out: Workdir) -> Meta:
    child = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE)
    assert child.stdout
    child.stdout.readline()
    _note(config, [os.getpid(), child.pid])
    return {"left": child.pid}


def eat(config: NapConfig, out: Workdir) -> Meta:
    """Takes 1 GiB, in the way `how`: held, child (in a process of its own), mapped (half, a file), reserved (and never used), or
    all at once more than there is (huge)."""
    if config.how == "mapped":
        (out.scratch / "large").write_bytes(b"x" * 2**26)
        with (out.scratch / "large").open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), 0)
            file.truncate(2**29)
            mapped.resize(2**29)
        return {"sum": sum(mapped[at] for at in range(0, 2**29, mmap.PAGESIZE))}
    if config.how == "reserved":
        return {"length": len(mmap.mmap(-1, 2**30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))}
    if config.how == "child":
        return {"ended": subprocess.run([sys.executable, "-c", EATER], check=False).returncode}
    if config.how == "huge":
        return {"length": len(bytearray(2**46))}
    exec(EATER)
    return {}


def train(config: NapConfig, out: Workdir) -> Meta:
    """Fails as PyTorch does where a GPU's memory is full."""
    raise RuntimeError(GPU_IS_FULL)


def save(config: NapConfig, out: Workdir) -> Meta:
    """As training does: SIGTERM is noted, a checkpoint is written to the file `how`, then it leaves."""
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
    out.saves()
    _note(config, [os.getpid(), os.getppid()])
    out.info("asleep")
    while not stopped:
        time.sleep(0.02)
    time.sleep(0.2)
    Path(config.how).write_text("checkpoint")
    out.info("saved")
    raise Interrupted("stopped at step 5; the checkpoint is kept", "run it again to resume")


def deaf(config: NapConfig, out: Workdir) -> Meta:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _note(config, [os.getpid(), os.getppid()])
    out.info("asleep")
    time.sleep(600)
    return {}


def together(config: NapConfig, out: Workdir) -> Meta:
    """Each rank notes its process in a file `rank-K`; then, when all have, rank 1 does as `how` says and the others wait."""
    assert config.pids
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    out.info(f"rank {rank}")
    (config.pids / f"rank-{rank}").write_text(str(os.getpid()))
    while not all((config.pids / f"rank-{other}").exists() for other in range(count)):
        time.sleep(0.01)
    if config.how == "agree":
        return {"rank": rank, "met at": os.environ["TRNFLOW_RENDEZVOUS"], "port": int(os.environ["MASTER_PORT"])}
    if rank == 1 and config.how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1 and config.how == "data":
        raise DataError("rows.csv, row 3: no label", "give every row a label")
    if rank != 1 and config.how == "stuck":
        raise RuntimeError("waited for rank 1")
    if rank == 0 and config.how == "save":
        return save(NapConfig(how=str(config.pids / "saved"), pids=config.pids / "pids.json"), out)
    return stuck(config)


def stuck(config: NapConfig) -> Meta:
    time.sleep(600)
    return {}


def _note(config: NapConfig, pids: list[int]) -> None:
    assert config.pids
    aside = config.pids.with_suffix(".part")
    aside.write_text(json.dumps(pids))
    aside.replace(config.pids)


def look_around(config: NapConfig, out: Workdir) -> Meta:
    """Says what its process has been given. parent: of its guard; torch: whether it was imported before the stage began."""
    out.info("looks")
    while not config.pids.with_name("looked").exists():  # whoever hears this looks at the process while it runs
        time.sleep(0.01)
    guard = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
    return {
        "made": True,
        "parent": int(guard[1]),
        "environ": dict(sorted(os.environ.items())),
        "folder": os.getcwd(),
        "torch": "torch" in sys.modules,
        "threads": len(os.listdir("/proc/self/task")),
    }
