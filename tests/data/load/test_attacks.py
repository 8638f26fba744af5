"""Input that is made to take all memory is refused by its place, and takes little: `pytest -m nightly -s` prints how much."""

from __future__ import annotations

import gzip
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.command_line import Shell, write_project
from trnflow.tasks.launch.guard import Held

GIB = 2**30


def bomb(folder: Path) -> None:
    """10 GiB of one line in 10 MB: members of a gzip file are one text."""
    member = gzip.compress(b"a" * 2**26, 1)
    (folder / "train.jsonl").unlink()
    with (folder / "train.jsonl.gz").open("wb") as file:
        file.write(gzip.compress(b'{"label": "pos", "text": "'))
        for _ in range(10 * GIB // 2**26):
            file.write(member)


def cell(folder: Path) -> None:
    """A cell of 200 MB."""
    with (folder / "train.jsonl").open("a") as file:
        file.write('\n{"label": "pos", "text": "' + "a " * 10**8 + '"}\n')


def repeated(folder: Path) -> None:
    """A Parquet file of 150 KB: 12,000 rows have one text of 300 KB, 3.6 GB."""
    (folder / "train.jsonl").unlink()
    text = "".join(random.Random(0).choices("0123456789abcdef", k=300_000))
    columns = {"text": [text], "label": ["pos"]}
    places = pa.array([0] * 12_000, pa.int32())
    data = {name: pa.DictionaryArray.from_arrays(places, pa.array(values)) for name, values in columns.items()}
    pq.write_table(pa.table(data), folder / "train.parquet", compression="zstd")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("attack", "named", "told"),
    [
        (bomb, "train.jsonl.gz", "MB"),
        (cell, "train.jsonl", "MB"),
        (repeated, "train.parquet", "raise data.max_growth (200)"),
    ],
)
def test_an_attack_is_named_and_takes_less_than_2_gib(
    attack: Callable[[Path], None], named: str, told: str, tmp_path: Path
) -> None:
    shell = Shell(write_project(tmp_path))
    attack(shell.folder / "rows")
    run = shell.start("run", "mine.yaml", "--direct", "--until", "load_data", stderr=subprocess.PIPE)
    held = Held(run.pid)
    while run.poll() is None:
        held.measure()
        time.sleep(0.05)
    assert run.stderr is not None
    error = run.stderr.read()
    print(f"{attack.__name__}: at most {held.most / GIB:.2f} GiB in all processes; {error}")
    assert run.returncode == 1
    assert named in error and told in error
    assert held.most < 2 * GIB
