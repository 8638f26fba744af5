"""Peak memory of each data stage over Dolly's rows, repeated until there are as many as asked for, each text its own.

    python -m tests.bench.bench_memory [--rows 15000 150000] [--format parquet] [--until pack_chunks]

Every stage has a run of its own, with those above it as hits. Of the run's processes (the flow, the warm parent, the stage's
guard and process) the largest counts. `resident` is the kernel's peak (VmHWM), which counts pages of mapped files too, though
the kernel takes them back when it needs them; `own` is what the process alone holds (RssAnon). Both are looked at a hundred
times a second. The first line is a flow that ran no stage. Data lies in the temporary
folder (some 0.9 GB a million rows, as jsonl) until the end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.bench.bench_data import dolly, make_tokenizer
from tests.conftest import PROJECT
from trnflow.flows.finetune import DATA_STAGES, finetune

NOTHING = "(no stage)"


def numbered(table: pa.Table, count: int) -> Iterator[pa.Table]:
    """Tables that are `count` rows together: those of `table` again and again, the row's number behind its answer."""
    for start in range(0, count, table.num_rows):
        part = table.slice(0, min(table.num_rows, count - start))
        answers = [f"{text} {start + number}" for number, text in enumerate(part["response"].to_pylist())]
        yield part.set_column(part.schema.get_field_index("response"), "response", pa.array(answers))


def make_rows(path: Path, count: int) -> None:
    tables = numbered(dolly(), count)
    if path.suffix == ".parquet":
        first = next(tables)
        with pq.ParquetWriter(path, first.schema) as writer:
            for table in (first, *tables):
                writer.write_table(table)
    else:
        with path.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for table in tables for row in table.to_pylist())


def run_stage(stage: str, rows: Path, model: Path, home: Path) -> dict[str, Any]:
    """Run one stage: return the peaks of this process and its descendants in bytes, and the seconds of the stage."""
    from trnflow.flows.recipes import recipe as settings
    from trnflow.flows.runner.context import context_of, open_store
    from trnflow.flows.runner.plan import Options
    from trnflow.flows.runner.run import run

    os.environ["TRNFLOW_HOME"] = str(home)
    recipe = settings.load(
        "llama2-7b-dolly", [f"data.source={rows}", f"model.source={model}", "tracking.enabled=false"]
    )
    store = open_store(recipe)
    store.prepare()
    seconds = 0.0
    with Sampler() as sampler:
        if stage != NOTHING:
            result = run(finetune(recipe), context_of(recipe, store), Options(until=stage))
            if result.error:
                raise result.error
            seconds = result.steps[-1].seconds or 0.0
    return {"stage": stage, "seconds": seconds, **sampler.peaks}


class Sampler(threading.Thread):
    """Samples this process and its descendants. peaks: the largest values seen of any of them, in bytes: "resident" (VmHWM)
    and "own" (RssAnon)."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peaks = {"resident": 0, "own": 0}
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(0.01):
            self._look()

    def __enter__(self) -> Sampler:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self.join()
        self._look()

    def _look(self) -> None:
        for process in descendants(os.getpid()):
            with contextlib.suppress(OSError, KeyError):  # it has ended
                found = status(process)
                for name, field in (("resident", "VmHWM"), ("own", "RssAnon")):
                    self.peaks[name] = max(self.peaks[name], found[field])


def descendants(process: int) -> Iterator[int]:
    """Yield the process, its children, their children and so on."""
    yield process
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from descendants(int(child))


def status(process: int) -> dict[str, int]:
    """Return the kernel's figures of a process that are in kB, in bytes."""
    lines = (line.split() for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[-1] == "kB"}


def measure(count: int, kind: str, until: str) -> None:
    """Prints a line a stage as it ends."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = folder / f"train.{kind}"
        make_tokenizer(folder / "model", dolly())
        apart("--make", rows, count)
        print(f"{count:,} rows, {rows.stat().st_size / 1e6:.0f} MB of {kind}")
        for stage in (NOTHING, *DATA_STAGES[: DATA_STAGES.index(until) + 1]):
            found = json.loads(apart("--stage", stage, rows, folder / "model", folder / "home").splitlines()[-1])
            sizes = f"resident {found['resident'] / 1e6:7.0f} MB  own {found['own'] / 1e6:7.0f} MB"
            print(f"  {stage:<15} {sizes}  {found['seconds']:7.1f} s", flush=True)


def apart(*arguments: object) -> str:
    command = [sys.executable, "-m", "tests.bench.bench_memory", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[15_000])
    parser.add_argument("--format", choices=("parquet", "jsonl"), default="parquet")
    parser.add_argument("--until", choices=DATA_STAGES, default=DATA_STAGES[-1])
    parser.add_argument("--make", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--stage", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        make_rows(Path(options.make[0]), int(options.make[1]))
    elif options.stage:
        print(json.dumps(run_stage(options.stage[0], *map(Path, options.stage[1:]))))
    else:
        for count in options.rows:
            measure(count, options.format, options.until)


if __name__ == "__main__":
    main()
