"""What `bench_store` measures of the store, in a process of its own each: prints one line of JSON.

    python -m tests.bench.store_work files FOLDER COUNT     COUNT small files, all different
    python -m tests.bench.store_work large FOLDER BYTES     an artifact of four sparse files and its record
    python -m tests.bench.store_work ingest FOLDER          `files` becomes an artifact with a record
    python -m tests.bench.store_work status FOLDER          whether the bytes of all `files` are still known
    python -m tests.bench.store_work look FOLDER            what `files` are, as `plan` asks of data.source
    python -m tests.bench.store_work hit FOLDER             a stage whose artifact is on record, then its files laid out
    python -m tests.bench.store_work plan RECIPE [SETTING=VALUE ...] ROUNDS    `plan` again and again

seconds: of the clock, without the imports; cpu: of all threads; peak: bytes of memory this process held at most.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from trnflow.flows.finetune import KINDS, finetune
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.runner.context import open_store, plan_of
from trnflow.flows.runner.stored import check_record
from trnflow.tasks.keys.hash_cache import Memo
from trnflow.tasks.keys.key_document import key_of
from trnflow.tasks.sources.data_source import resolve_source
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.sources.split_files import FileSettings
from trnflow.tasks.store import Store
from trnflow.tasks.store.folders import files_below
from trnflow.tasks.system.clock import now

DOCUMENT = {"stage": "load_data", "code": {}, "params": {}, "inputs": {}, "env": {}, "accel": {}}
KEY = key_of(DOCUMENT)
FILES_A_FOLDER = 1000


def files(folder: str, count: str) -> None:
    """About 1 kB each."""
    for number in range(int(count)):
        path = Path(folder, "files", f"{number // FILES_A_FOLDER:04d}", f"{number:07d}.txt")
        if number % FILES_A_FOLDER == 0:
            path.parent.mkdir(parents=True)
        path.write_bytes(f"{number} {folder}\n".encode() * (1 + number % 30))
    os.sync()


def large(folder: str, size: str) -> None:
    source = Path(folder, "files")
    source.mkdir()
    for number in range(4):
        with open(source / f"{number}.bin", "wb") as handle:
            handle.write(f"{number}".encode())
            handle.truncate(int(size) // 4)
    _publish(_store(folder), source)


def ingest(folder: str) -> dict[str, Any]:
    store = _store(folder)
    return _measured(lambda: _publish(store, Path(folder, "files")))


def status(folder: str) -> dict[str, Any]:
    """Listed, looked at, and their digests remembered."""
    source, memo = Path(folder, "files"), Memo(Path(folder, "home/memo.db"))
    return _measured(lambda: memo.digests([f"{source}/{name}" for name in files_below(source)]))


def look(folder: str) -> dict[str, Any]:
    """As the recipe's data: their splits and formats too, in natural order."""
    resolver = Resolver(Path(folder, "home"), offline=True)
    pattern = str(Path(folder, "files"))
    return _measured(
        lambda: len(resolve_source(pattern, None, None, FileSettings(None, {}), resolver).identity["files"])
    )


def hit(folder: str) -> dict[str, Any]:
    store = Store(str(Path(folder, "store")), Path(folder, "home"))
    found: list[Any] = []

    def ask() -> None:
        found.append(check_record(store, store.record("load_data", KEY) or {}, KINDS["load_data"], set()))

    seen = _measured(ask)
    assert found[0].artifact and not found[0].changed
    view = Path(folder, f"view-{time.monotonic_ns()}")
    laid_out = _measured(lambda: store.link_files(found[0].artifact, view))
    return seen | {"laid_out": laid_out["seconds"], "bytes": found[0].artifact.size, "peak": _peak()}


def plan(recipe: str, *arguments: str) -> list[float]:
    """Each with a memo and a store opened anew, as a process that does nothing else would."""
    *overrides, rounds = arguments
    loaded = settings.load(recipe, overrides)
    seconds = []
    for _ in range(int(rounds)):
        begun = time.perf_counter()
        steps = plan_of(finetune(loaded), loaded, open_store(loaded)).steps
        seconds.append(time.perf_counter() - begun)
        assert {step.action for step in steps.values()} <= {"hit", "skip"}
    return seconds


def _store(folder: str) -> Store:
    store = Store(str(Path(folder, "store")), Path(folder, "home"))
    store.prepare()
    return store


def _publish(store: Store, source: Path) -> None:
    artifact = store.ingest(source, "rows", {})
    store.restore([], artifact)
    store.publish(
        {
            "stage": "load_data",
            "key": KEY,
            "document": DOCUMENT,
            "artifact": artifact.digest,
            "attempt": "a",
            "created": now(),
        }
    )


def _measured(what: Any) -> dict[str, Any]:
    begun, busy = time.perf_counter(), time.process_time()
    what()
    return {"seconds": time.perf_counter() - begun, "cpu": time.process_time() - busy, "peak": _peak()}


def _peak() -> int:
    """Bytes; the kernel's own figure for this process alone."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024


if __name__ == "__main__":
    work = {"files": files, "large": large, "ingest": ingest, "status": status, "look": look, "hit": hit, "plan": plan}
    print(json.dumps(work[sys.argv[1]](*sys.argv[2:])))
