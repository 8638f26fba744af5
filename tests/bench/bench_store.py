"""The store's costs beside its targets, and beside dvc and Hamilton where they do the same: one table.

    python -m tests.bench.bench_store [--only plan,hit,status,ingest,hash,closure] [--files 100000] [--gigabytes 20]

Medians of several runs; the others are measured in the same run, in an environment made for it. Everything lies in a temporary
folder (of --folder, which must be on the disk to be measured). cpu is the processor's time: what a shared machine says least
wrongly. A cold process counts from its start to its end.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median as middle

from tests.bench.clock import Row, Spent, median, spent, table, timed
from tests.bench.peers import Peers
from tests.conftest import PROJECT
from trnflow.tasks.keys.code_closure import closure
from trnflow.tasks.keys.hash_cache import Memo, sha256_file

CHUNK = bytes(1 << 20)
HASHED = 512 << 20
DEMO = ("demo", "tracking.enabled=false", "train.epochs=1")


@dataclass
class Bench:
    """peers: None where they are not installed."""

    folder: Path
    files: int
    gigabytes: float
    rounds: int
    peers: Peers | None

    def work(self, *arguments: str) -> Spent:
        return spent([sys.executable, "-m", "tests.bench.store_work", *arguments], cwd=PROJECT, env=self.environ)

    def trnflow(self, *arguments: str) -> Spent:
        return spent([str(Path(sys.executable).with_name("trnflow")), *arguments], cwd=PROJECT, env=self.environ)

    @property
    def environ(self) -> dict[str, str]:
        apart = {name: value for name, value in os.environ.items() if not name.startswith("TRNFLOW")}
        return apart | {"TRNFLOW_HOME": str(self.folder / "home")}

    def place(self, name: str) -> str:
        (self.folder / name).mkdir()
        return str(self.folder / name)


def plan(bench: Bench) -> Iterator[Row]:
    bench.trnflow("run", "--direct", *DEMO)
    cold = median([bench.trnflow("plan", *DEMO) for _ in range(bench.rounds)])
    again = median([bench.trnflow("run", "--direct", *DEMO) for _ in range(bench.rounds)])
    warm = bench.work("plan", *DEMO, str(10 * bench.rounds)).told
    theirs_cold, theirs_warm = _nine_hits(bench)
    yield Row("plan of 9 hits, cold process", cold.wall, cold.cpu, 0.45, theirs_cold)
    yield Row("plan of 9 hits, in process", middle(warm[1:]), None, 0.015, theirs_warm)
    yield Row("run with 9 hits, cold process", again.wall, again.cpu, None, theirs_cold)


def _nine_hits(bench: Bench) -> tuple[dict[str, float], dict[str, float]]:
    if bench.peers is None:
        return {}, {}
    peers, rounds = bench.peers, bench.rounds
    project = peers.nine_stages()
    peers.hamilton(1)
    cold = {
        "dvc": median([peers.dvc(project, "repro", "-q") for _ in range(rounds)]).wall,
        "Hamilton": median([peers.hamilton_cold() for _ in range(rounds)]).wall,
    }
    warm = {"dvc": middle(peers.reproduce(project, rounds)[1:]), "Hamilton": middle(peers.hamilton(rounds)[1:])}
    return cold, warm


def hit(bench: Bench) -> Iterator[Row]:
    folder = bench.place("large")
    try:
        bench.work("large", folder, str(int(bench.gigabytes * 1e9)))
        runs = [bench.work("hit", folder).told for _ in range(bench.rounds)]
        yield _hit_row(f"hit on {bench.gigabytes:g} GB", runs, 0.05)
    finally:
        shutil.rmtree(folder)


def _hit_row(what: str, runs: list[dict[str, float]], target: float | None) -> Row:
    note = f"laid out in {1e3 * middle(run['laid_out'] for run in runs):.0f} ms, peak {runs[0]['peak'] / 1e6:.0f} MB"
    return _middle_row(what, runs, target)._replace(note=note)


def _middle_row(what: str, runs: list[dict[str, float]], target: float | None) -> Row:
    return Row(what, middle(run["seconds"] for run in runs), middle(run["cpu"] for run in runs), target)


def status(bench: Bench) -> Iterator[Row]:
    folder = bench.place("status")
    bench.work("files", folder, str(bench.files))
    theirs, first = _dvc_status(bench, folder)
    begun = bench.work("look", folder).told
    known = [bench.work("status", folder).told for _ in range(bench.rounds)]
    looks = [bench.work("look", folder) for _ in range(bench.rounds)]
    row = Row(f"first look at {bench.files} files of data", begun["seconds"], begun["cpu"], None, first)
    yield row._replace(note="hashes them; dvc also copies")
    yield _middle_row(f"status of {bench.files} unchanged files", known, 0.5)
    yield _middle_row("as data.source: splits, formats, order", [run.told for run in looks], None)
    cold = median(looks)
    yield Row("the same, cold process", cold.wall, cold.cpu, None, theirs)
    bench.work("ingest", folder)
    yield _hit_row(f"hit on {bench.files} files", [bench.work("hit", folder).told for _ in range(bench.rounds)], None)
    shutil.rmtree(folder)


def _dvc_status(bench: Bench, folder: str) -> tuple[dict[str, float], dict[str, float]]:
    if bench.peers is None:
        return {}, {}
    project = bench.peers.project("dvc-status")
    shutil.copytree(Path(folder, "files"), project / "files")
    os.sync()
    first = bench.peers.dvc(project, "add", "-q", "files")
    again = median([bench.peers.dvc(project, "status", "-q") for _ in range(bench.rounds)])
    shutil.rmtree(project)
    return {"dvc": again.wall}, {"dvc": first.wall}


def ingest(bench: Bench) -> Iterator[Row]:
    ours, theirs = [], []
    for number in range(max(1, bench.rounds // 2)):
        folder = bench.place(f"ingest-{number}")
        bench.work("files", folder, str(bench.files))
        project = bench.peers.project(f"dvc-{number}") if bench.peers else None
        if bench.peers and project:
            shutil.copytree(Path(folder, "files"), project / "files")
            os.sync()
            theirs.append(bench.peers.dvc(project, "add", "-q", "files").wall)
            shutil.rmtree(project)
            os.sync()
        ours.append(bench.work("ingest", folder).told)
        shutil.rmtree(folder)
    note = f"peak {max(run['peak'] for run in ours) / 1e6:.0f} MB"
    seconds, cpu = (middle(run[name] for run in ours) for name in ("seconds", "cpu"))
    yield Row(
        f"first ingest of {bench.files} files", seconds, cpu, 10.0, {"dvc": middle(theirs)} if theirs else {}, note
    )


def hashing(bench: Bench) -> Iterator[Row]:
    """The share of hashlib's own rate over memory that reading and hashing files in the page cache reaches."""
    paths = [bench.folder / f"hashed-{number}" for number in range(2)]
    for path in paths:
        path.write_bytes(os.urandom(1 << 20) * (HASHED >> 20))
        sha256_file(path)
    yield _share("hashing, one core, share of raw sha256", bench, lambda: sha256_file(paths[0]), _raw, 1)
    yield _share("hashing, two cores", bench, lambda: _fresh(bench.folder).digests(paths), _raw_twice, 2)


def _share(what: str, bench: Bench, ours: Callable[[], object], raw: Callable[[], object], cores: int) -> Row:
    pairs = [(timed(ours), timed(raw)) for _ in range(bench.rounds)]
    one, other = (median([pair[side] for pair in pairs]) for side in (0, 1))
    rate = cores * HASHED / one.wall / 1e9
    note = f"{rate:.2f} GB/s; by cpu {other.cpu / one.cpu:.1%}"
    return Row(what, other.wall / one.wall, one.cpu, 0.9, {}, note, share=True)


def _raw() -> None:
    digest = hashlib.sha256()
    for _ in range(HASHED >> 20):
        digest.update(CHUNK)


def _raw_twice() -> None:
    threads = [threading.Thread(target=_raw) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _fresh(folder: Path) -> Memo:
    return Memo(folder / f"memo-{os.urandom(4).hex()}.db")


def closures(bench: Bench) -> Iterator[Row]:
    module, path = "trnflow.tasks.train", bench.folder / "closure.db"
    first = timed(lambda: closure(module, memo := Memo(path)) and memo.save())
    yield Row(f"code closure of {module}, first time", first.wall, first.cpu)
    opened = [timed(lambda: closure(module, Memo(path))) for _ in range(10 * bench.rounds)]
    yield Row("the same, memoised, memo opened anew", median(opened).wall, median(opened).cpu, 0.005)
    memo = Memo(path)
    known = [timed(lambda: closure(module, memo)) for _ in range(10 * bench.rounds)]
    yield Row("the same, memo open", median(known[1:]).wall, median(known[1:]).cpu, 0.005)


SECTIONS = {"plan": plan, "hit": hit, "status": status, "ingest": ingest, "hash": hashing, "closure": closures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default=",".join(SECTIONS), metavar=",".join(SECTIONS))
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--gigabytes", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where the temporary folder is made")
    parser.add_argument("--alone", action="store_true", help="without dvc and Hamilton")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="bench-store-") as folder:
        why = "" if options.alone else (peers := Peers(Path(folder))).install()
        others = None if options.alone or why else peers
        bench = Bench(Path(folder), options.files, options.gigabytes, options.rounds, others)
        rows = [row for name in options.only.split(",") for row in SECTIONS[name](bench)]
    print(table(rows))
    if why:
        print(f"note: {why}")


if __name__ == "__main__":
    main()
