"""Remarks of a plan and a run that say nothing false: about splits, positions, memory, and rows that a limit leaves out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers.command_line import InProcessShell
from tests.helpers.data_stages import Bench
from trnflow.tasks.data.load.config import NO_TEST_SPLIT
from trnflow.tasks.training.config import positions_needed

FILES = ("train", "validation", "test")


def rows(folder: Path, splits: list[str]) -> InProcessShell:
    (folder / "rows").mkdir()
    for split in splits:
        lines = [{"text": f"{split} {n % 30}", "label": "ab"[n % 2]} for n in range(40)]
        (folder / "rows" / f"{split}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return InProcessShell(folder)


@pytest.mark.parametrize("splits", [["train"], ["train", "test"], ["train", "validation"], [*FILES]])
def test_a_test_split_is_made_only_of_data_without_one_and_said_by_plan_and_run(
    tmp_path: Path, splits: list[str]
) -> None:
    shell = rows(tmp_path, splits)
    own = ("data.source=rows", "data.name=null", "data.label=label", "tracking.enabled=false")
    is_made = splits == ["train"]
    assert (NO_TEST_SPLIT in shell.json("plan", "demo", *own)["notes"]) == is_made
    done = shell("run", "demo", *own, "--until", "load_data", "--direct")
    assert done.returncode == 0 and (NO_TEST_SPLIT in done.stderr) == is_made
    assert NO_TEST_SPLIT not in shell.json("plan", "demo", *own)["notes"]  # it is made


def test_counts_of_all_rows_are_called_so_where_a_limit_leaves_some_out(bench: Bench) -> None:
    rows(bench.root, [*FILES])
    for limit, of in ((None, ""), (10, " (of all rows, before data.limit)")):
        for named, what in (({"label": "label"}, "text"), ({}, "row")):
            bench.rows(source=str(bench.root / "rows"), limit=limit, **named)
            wanted = f"rows of train that repeat an earlier {what}{of}: 10; data.dedupe=true drops them"
            assert bench.warnings().pop() == wanted


@settings(max_examples=200, suppress_health_check=[*HealthCheck])
@given(st.integers(1, 40), st.integers(1, 40), st.lists(st.integers(1, 12), min_size=1), st.booleans())
def test_the_positions_that_packed_rows_need_are_those_of_their_longest_document(
    chunk: int, max_length: int, sizes: list[int], is_known: bool
) -> None:
    sizes = [size for size in sizes if size <= min(chunk, max_length)] or [1]
    known = {"rows": {"train": {str(chunk): 1}}, "longest": max(sizes), "max_length": max_length} if is_known else {}
    needed = positions_needed({"task": "causal_lm", "lengths": [chunk], **known})
    assert needed == (max(sizes) if is_known else None) or (is_known and chunk < max(sizes))
    # a classifier's rows are padded to their chunk
    assert positions_needed({"task": "classification", "lengths": [chunk], **known}) == chunk


LONG_CHUNKS = """
extends: demo-llm
data: {limit: 200}
model: {config: {max_position_embeddings: 64}}
tokenize: {max_length: 64, overlong: drop}
pack: {chunk_length: 256}
train: {engine: native, devices: 1, tensor_parallel_size: 1, zero1: false, max_steps: 2, global_batch: 2, micro_batch: null}
export: {target: TARGET, batch: 1}
evaluate: {export_rows: 1, generation: {prompts: 1, max_new_tokens: 4}}
"""


@pytest.mark.nightly
def test_chunks_longer_than_the_positions_train_and_export_where_no_document_is(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(LONG_CHUNKS.replace("TARGET", "onnx"))
    shell = InProcessShell(tmp_path)
    done = shell("run", "mine.yaml", "--direct", "--no-rehearse", "tracking.enabled=false", "--on", "cpu")
    assert done.returncode == 0, done.stderr
    assert "positions" not in done.stderr
    longer = ("mine.yaml", "tracking.enabled=false", "--on", "cpu", "tokenize.max_length=128")
    # before the rows are known
    assert any("no row may be longer" in note for note in shell.json("plan", *longer)["notes"])
    error = shell.error("run", *longer, "--direct", "--no-rehearse", code=1)
    assert "rows of " in error and "has 64 positions" in error and "rows of 256" not in error
