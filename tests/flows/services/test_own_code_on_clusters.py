"""Own code on a real Ray and a real Dask: edited between two runs, it is never stale, also on workers that live on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.flows.champions.conftest import RECIPE
from tests.flows.prefect_api import Api

pytestmark = pytest.mark.nightly


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """Settings of a cluster: of Ray one a run, of Dask one whose workers outlive the runs."""
    kind = request.param
    with ExitStack() as closing:
        address = []
        if kind == "dask":
            from distributed import LocalCluster

            standing = closing.enter_context(
                LocalCluster(n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None)
            )
            address = [f"task_runner.address={standing.scheduler_address}"]
        yield [f"task_runner.kind={kind}", "task_runner.workers=1", *address]


def first_text(house: Api, folder: Path, *settings: str) -> str:
    environ = house.environ | {"TRNFLOW_HOME": str(folder / "home")}
    command = [sys.executable, "-m", "trnflow", "run", "own.yaml", "--until", "format_prompts", *settings]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    records = [*(folder / "home/store/records").glob("format_prompts.shard/*.json")]
    assert records, "workers made the parts"
    get = [sys.executable, "-m", "trnflow", "get", "own.yaml", *settings, "format_prompts", str(to := folder / "got")]
    subprocess.run(get, cwd=folder, env=environ, check=True, capture_output=True, timeout=600)
    text = str(pq.read_table(to / "train.parquet")["text"][0])
    subprocess.run(["rm", "-r", str(to)], check=True)
    return text


@pytest.mark.parametrize("cluster", ["ray", "dask"], indirect=True)
def test_edited_code_is_never_stale(cluster: list[str], api: Api, tmp_path: Path) -> None:
    rows = [json.dumps({"text": f"a {n}", "label": ("pos", "neg")[n % 2]}) for n in range(40)]
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows/train.jsonl").write_text("\n".join(rows))
    make = "task: classification, make: 'formats:ticket'}"
    (tmp_path / "own.yaml").write_text(RECIPE.replace("task: classification}", make))
    helper = tmp_path / "words.py"
    (tmp_path / "formats.py").write_text(
        "from words import PREFIX\n\n\ndef ticket(row):\n    return f\"{PREFIX} {row['text']}\"\n"
    )
    for prefix in ("first", "second", "first"):
        helper.write_text(f"PREFIX = {prefix!r}\n")
        assert first_text(api, tmp_path, *cluster).startswith(f"{prefix} a ")
