"""The command that measures on a GPU, rehearsed on the processor: no item takes the seconds of another, and nothing is lost."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from packaging.requirements import Requirement
from tokenizers import Tokenizer

from tests.bench import gpu, gpu_generation, gpu_peers, gpu_table, gpu_training, gpu_wheels
from tests.bench.gpu_cases import CASES, packed_rows, tweets
from tests.bench.gpu_items import ITEMS, TRAINING, Item, Row, rows
from tests.bench.gpu_results import described
from tests.conftest import PROJECT
from tests.training.toys import minilm

PAGE = (PROJECT / "docs/machines.md").read_text()
STUBBORN = 'trap "" TERM; '
CARD = {"device": "NVIDIA H100 80GB HBM3", "torch": "2.11.0+cu130", "transformers": "5.23.0"}


def is_running(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("ignores", ["", STUBBORN], ids=["ends at TERM", "ignores TERM"])
def test_an_item_that_overruns_is_ended_with_its_processes_and_its_output_stays(ignores: str, tmp_path: Path) -> None:
    begun = time.monotonic()
    command = ["sh", "-c", f'{ignores}echo begun; sleep 600 & echo $! > "$0"; wait', str(tmp_path / "child")]
    state = gpu.within(command, 1.0, tmp_path / "log", dict(os.environ))
    assert state == "ended at its limit of 1 s" and time.monotonic() - begun < 60
    assert (tmp_path / "log").read_text() == "begun\n"
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 10
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(child)


def given(tmp_path: Path) -> argparse.Namespace:
    return argparse.Namespace(out=tmp_path, work=tmp_path, wheels=tmp_path / "none", toy=True, ways=None)


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The limit of each item that was begun; the items take 7 seconds by a clock of their own."""
    now, limits = [0.0], list[float]()

    def within(command: list[str], seconds: float, log: Path, environ: dict[str, str]) -> str:
        limits.append(seconds)
        now[0] += 7.0
        return "ended"

    monkeypatch.setattr(gpu, "within", within)
    monkeypatch.setattr(gpu.time, "monotonic", lambda: now[0])
    return limits


def test_seconds_that_are_left_go_to_the_next_item_and_never_are_those_of_later_ones(
    limits: list[float], tmp_path: Path
) -> None:
    items = [Item(name, 1, 30, "gpu_tests", {"case": ("trnflow",)}) for name in ("one", "two", "three")]
    gpu.run_items(items, 90.0, given(tmp_path))
    assert limits == [30.0, 90 - 7 - 30.0, 90 - 14.0]


def test_items_for_which_no_time_is_left_are_left_out_and_said(limits: list[float], tmp_path: Path) -> None:
    items = [Item(name, 1, 30, "gpu_tests", {"case": ("trnflow",)}) for name in ("one", "two", "three")]
    gpu.run_items(items, 20.0, given(tmp_path))
    states = {line["item"]: line["state"] for line in map(json.loads, (tmp_path / "results.jsonl").open())}
    assert limits == [20.0, 13.0]
    assert states == {"one": "ended", "two": "ended", "three": "left out: 6 s are left of 20"}


def test_the_items_of_a_call_fit_the_lease() -> None:
    """Fifteen minutes with the machine's start, and time for one repeat."""
    seconds = {call: gpu.INSTALL + sum(item.seconds for item in gpu.items_of(call, None)) for call in (1, 2, 3)}
    assert seconds == {1: 300, 2: 260, 3: 260} and 90 + seconds[1] + seconds[2] <= 900 - 200


def test_each_case_and_way_of_the_list_is_known_to_its_program() -> None:
    assert {*gpu_training.LISTED} == {*CASES}
    assert {way for ways in gpu_training.LISTED.values() for way in ways} <= {*gpu_training.OURS, *gpu_peers.WAYS}
    (texts,) = [item for item in ITEMS if item.program == "gpu_generation"]
    assert texts.cases == {gpu_generation.CASE: (*gpu_generation.WAYS,)}


def test_the_table_has_a_row_for_each_way_of_the_list() -> None:
    table = gpu_table.table_rows(PAGE)
    assert [Row(*cells[:3]) for cells in table] == [*rows()]
    assert all((cells[3] == gpu_table.NEVER) == (not cells[4]) for cells in table)
    assert gpu_table.updated(PAGE, {}) == PAGE


def test_results_become_rows_of_the_table_and_other_rows_stay(tmp_path: Path) -> None:
    measured = {"rate": 45080.4, "unit": "tokens/s", "mfu": 0.3081, "memory": 45.3 * 2**30, "loss": 10.4}
    lines = [
        {"item": "packed", "case": "packed", "way": "trnflow", **CARD, **measured},
        {"item": "packed", "case": "packed", "way": "estimate", **CARD, "memory": 48.3 * 2**30},
        {"item": "packed", "case": "packed", "way": "TRL wrapped", **CARD, "failed": "OutOfMemoryError | none"},
        {"item": "packed", "state": "ended at its limit of 90 s", "wall": 92.0},
    ]
    (tmp_path / "results.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    page = gpu_table.updated(PAGE, gpu_table.read([tmp_path / "results.jsonl"]))
    card = "NVIDIA H100 80GB HBM3, torch 2.11.0+cu130, transformers 5.23.0"
    figures = "45,080 tokens/s, MFU 0.308, 45.3 GiB, loss 10.4000; the estimate says 48.3"
    assert f"| packed | packed | trnflow | {figures} | {card} |\n" in page
    assert f"| packed | packed | TRL wrapped | failed: OutOfMemoryError / none | {card} |\n" in page
    changed = {*map(tuple, gpu_table.table_rows(page))} ^ {*map(tuple, gpu_table.table_rows(PAGE))}
    assert {cells[2] for cells in changed} == {"trnflow", "TRL wrapped"}
    assert gpu_table.updated(page, {}) == page


def test_the_seconds_of_a_reference_are_said_beside_those_of_training() -> None:
    figures = {"rate": 16.0, "unit": "pairs/s", "seconds": 1.0, "reference_seconds": 0.25, "loss": 0.6931}
    assert described(figures) == "16 pairs/s, 12.8 with its reference, loss 0.6931"


def test_results_of_a_processor_are_no_rows_of_the_table(tmp_path: Path) -> None:
    line = {"item": "packed", "case": "packed", "way": "trnflow", "device": "cpu", "rate": 1.0, "unit": "tokens/s"}
    (tmp_path / "results.jsonl").write_text(json.dumps(line))
    with pytest.raises(SystemExit, match="packed was measured on a processor"):
        gpu_table.read([tmp_path / "results.jsonl"])


def test_what_is_taken_along_is_what_the_machine_lacks() -> None:
    machine = gpu_wheels.pinned(gpu_wheels.MACHINE)
    lacks = {
        text for text in ("torch>=2.11", "transformers>=5.23", "pydantic", "PyYAML>=5.1") if not has(machine, text)
    }
    assert lacks == {"transformers>=5.23", "pydantic"}
    roots = {Requirement(need).name for item in ITEMS for need in (*item.needs, *item.base)}
    pinned = gpu_wheels.pinned(gpu_wheels.LOCK)
    assert {name for name in roots if name not in pinned} <= {"trl", "liger-kernel", "unsloth", "unsloth_zoo"}


def has(machine: dict[str, Requirement], text: str) -> bool:
    return gpu_wheels.has(machine, Requirement(text))


NEEDS = {"trl": ("datasets>=4.7.0", "torch>=2.4", "vllm>=0.10; extra == 'vllm'"), "datasets": ("dill<0.4.2", "pandas")}


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that has every package in the version asked for, with NEEDS."""

    def download(wanted: Requirement, out: Path) -> Path:
        name, version = wanted.name, next(iter(wanted.specifier)).version
        wheel = out / f"{name}-{version}-py3-none-any.whl"
        described = ["Metadata-Version: 2.1", *(f"Requires-Dist: {need}" for need in NEEDS.get(name, ()))]
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"{name}-{version}.dist-info/METADATA", "\n".join(described))
        return wheel

    monkeypatch.setattr(gpu_wheels, "download", download)


def test_needs_of_what_is_taken_along_go_along_in_the_locks_versions(index: None, tmp_path: Path) -> None:
    lock = gpu_wheels.pinned(gpu_wheels.LOCK)
    wheels = {wheel.name for wheel in gpu_wheels.resolve(["trl==1.16.0"], tmp_path)}
    locked = {f"{name}-{next(iter(lock[name].specifier)).version}" for name in ("datasets", "dill")}
    assert wheels == {f"{name}-py3-none-any.whl" for name in (*locked, "trl-1.16.0")}


def test_a_version_that_another_package_refuses_is_named(index: None, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"trl needs datasets>=4\.7\.0, and datasets-4\.0\.0-py3-none-any\.whl"):
        gpu_wheels.resolve(["datasets==4.0.0", "trl==1.16.0"], tmp_path)


def test_the_rows_that_are_taken_along_are_emotion(shared: Path, tmp_path: Path) -> None:
    assert tweets(CASES["bert"], tmp_path)[1] == "random tokens"
    assert gpu_wheels.write_rows(tmp_path) == ""
    rows, name = tweets(CASES["bert"], tmp_path)
    train = parquet.read_table(shared / "data/emotion/train.parquet")
    assert name == "emotion" and rows.labels == train["label"].to_pylist()
    tokenizer = Tokenizer.from_file(str(minilm() / "tokenizer.json"))
    texts = [tokenizer.decode(ids).replace(" ", "") for ids in rows.ids[:200]]
    assert texts == [text.replace(" ", "") for text in train["text"].to_pylist()[:200]]
    counts = packed_rows(CASES["bert"], tmp_path, tmp_path / "packed").meta["rows"]["train"]
    assert len(counts) == 4 and sum(counts.values()) == 16_000


def test_bitsandbytes_keeps_the_library_of_one_cuda(tmp_path: Path) -> None:
    wheel, kept = tmp_path / "bitsandbytes-0.50.2-py3-none-any.whl", {"bitsandbytes/nn.py"}
    libraries = {f"bitsandbytes/libbitsandbytes_{name}.so": name for name in ("cpu", "cuda130", "cuda128", "rocm72")}
    record = "bitsandbytes-0.50.2.dist-info/RECORD"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in (*kept, *libraries):
            archive.writestr(name, "bytes")
        archive.writestr(record, "".join(f"{name},sha256=x,5\n" for name in (*kept, *libraries, record)))
    gpu_wheels.reduce(wheel)
    kept |= {name for name, device in libraries.items() if device in ("cpu", "cuda130")} | {record}
    with zipfile.ZipFile(wheel) as archive:
        assert {*archive.namelist()} == kept
        assert {line.partition(",")[0] for line in archive.read(record).decode().splitlines()} == kept
    assert [file.name for file in tmp_path.iterdir()] == [wheel.name]


def test_more_than_may_be_taken_along_is_refused() -> None:
    assert (
        gpu_wheels.check_size(50 << 20, 14 << 20)
        == "50.0 MiB of packages and rows, 14.0 MiB of the tree: 64.0 of 64 MiB"
    )
    with pytest.raises(SystemExit, match="more than the 64 MiB"):
        gpu_wheels.check_size(51 << 20, 14 << 20)


def toy(out: Path, items: tuple[str, ...], *options: str) -> list[dict[str, Any]]:
    """Measure items as toys, with the packages that are here; return the lines of the results."""
    command = [
        sys.executable,
        "-m",
        "tests.bench.gpu",
        "--toy",
        "--items",
        ",".join(items),
        "--seconds",
        "7200",
        *options,
    ]
    folders = ["--out", str(out / "out"), "--work", str(out / "work"), "--wheels", str(out / "none")]
    environ = os.environ | {"PYTHONPATH": str(PROJECT / ".clients/trl")}
    done = subprocess.run([*command, *folders], cwd=PROJECT, env=environ, capture_output=True, text=True, check=True)
    assert {file.name for file in (out / "out").iterdir()} == {"results.jsonl", "log.txt"}
    lines = [json.loads(line) for line in (out / "out/results.jsonl").open()]
    states = {line["item"]: line["state"] for line in lines if "state" in line}
    assert states == dict.fromkeys(items, "ended"), f"{done.stdout}\n{(out / 'out/log.txt').read_text()[-4000:]}"
    return [line for line in lines if "way" in line]


def losses_of(lines: list[dict[str, Any]], item: str) -> list[float]:
    return [line["loss"] for line in lines if line["item"] == item and "loss" in line]


@pytest.mark.nightly
def test_tests_texts_and_a_classifier_are_measured_as_toys(tmp_path: Path) -> None:
    texts = ["trnflow", "transformers generate", "transformers generate_batch"]
    ways = [*texts, "trnflow by-length", "HF Trainer by-length"]
    lines = toy(tmp_path, ("tests", "generation", "bert"), "--ways", ",".join(ways))
    rates = [line for line in lines if "rate" in line]
    assert [line["way"] for line in rates if line["item"] == "generation"] == texts
    assert {line["way"] for line in rates if line["item"] == "bert"} == {"trnflow", *ways[3:]}
    assert all(line["rate"] > 0 for line in rates if line["item"] != "tests")
    (outcome,) = [line for line in lines if line["case"] == "test_cuda.py"]
    tests = [line["way"] for line in lines if line["item"] == "tests" and line is not outcome]
    assert outcome["unit"] == f"tests passed, 0 failed, {tests.count('skipped')} skipped" and "skipped" in tests
    assert {line["rows"] for line in rates if line["item"] == "bert"} == {"random tokens"}
    # the same weights and rows, in another order
    assert max(losses_of(lines, "bert")) - min(losses_of(lines, "bert")) < 0.1


@pytest.mark.nightly
def test_every_way_is_measured_as_a_toy(tmp_path: Path) -> None:
    """All but Unsloth, which wants other versions, and Liger's kernels, which no processor runs."""
    items = tuple(item.name for item in gpu.items_of(None, None))
    lines = toy(tmp_path, items)
    found = {Row(line["item"], line["case"], line["way"]): line for line in lines}
    wanted = [row for row in rows() if row.item in items]
    assert [row for row in wanted if "rate" not in found[row] and "liger" not in row.way] == []
    trained = [item.name for item in ITEMS if item.name in items and item.program == TRAINING]
    assert {row.item for row in found if row.way == "estimate" and found[row]["memory"] > 0} == {*trained}
    for item in trained:
        assert max(losses_of(lines, item)) - min(losses_of(lines, item)) < 0.1, item
