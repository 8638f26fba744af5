"""What the kernel holds: a process reads what it may, whichever library opens the file, and so do its children."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trnflow.tasks.launch import landlock

HELD = """
import os, subprocess, sys
import pyarrow.parquet as pq
from trnflow.tasks.launch.landlock import read_only_these

folder, *allowed = sys.argv[1:]
read_only_these([*allowed, "/usr", "/lib", "/lib64", "/proc", "/dev", "/etc", f"{folder}/is not there"])
for name in ("known.parquet", "folder/known.parquet", "other.parquet"):
    try:
        found = pq.read_table(f"{folder}/{name}").num_rows
    except PermissionError:
        found = "refused"
    child = subprocess.run(["cat", f"{folder}/{name}"], capture_output=True).returncode
    print(name, found, child, name in os.listdir(folder))
open(f"{folder}/written", "w").close()
"""


@pytest.mark.skipif(not landlock.is_there(), reason="this kernel has no Landlock")
def test_native_readers_and_children_are_held(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "folder").mkdir()
    for name in ("known.parquet", "folder/known.parquet", "other.parquet"):
        pq.write_table(pa.table({"price": [1, 2]}), tmp_path / name)
    allowed = [str(tmp_path / "known.parquet"), str(tmp_path / "folder"), sys.prefix, sys.base_prefix]
    done = subprocess.run(
        [sys.executable, "-c", HELD, str(tmp_path), *allowed], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "known.parquet 2 0 True", "folder/known.parquet 2 0 False", "other.parquet refused 1 True",
    ]  # fmt: skip
    assert (tmp_path / "written").exists()


@pytest.mark.skipif(not landlock.is_there(), reason="this kernel has no Landlock")
def test_the_files_that_are_named_to_the_kernel_stay_open_no_longer(tmp_path: Path) -> None:
    script = (
        "import os, sys; from trnflow.tasks.launch.landlock import read_only_these\n"
        "count = lambda: len(os.listdir('/proc/self/fd'))\n"
        "before = count(); read_only_these([*sys.argv[1:], '/proc']); print(count() - before)"
    )
    names = [str(tmp_path / name) for name in "abc"]
    for name in names:
        Path(name).touch()
    done = subprocess.run([sys.executable, "-c", script, *names], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"
