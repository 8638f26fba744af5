"""Freeze, first champion and challengers of a language model, as a user does: demo-llm, shrunk to seconds."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.flows.champions.test_champions import artifact_folder, champions
from tests.helpers.command_line import InProcessShell

pytestmark = pytest.mark.slow

RECIPE = """
extends: [demo-llm, base/hardware/cpu]
data: {limit: {train: 400, validation: 20, test: 60}}
model: {config: {hidden_size: 64, num_hidden_layers: 1, intermediate_size: 128, max_position_embeddings: 1024}}
tokenize: {max_length: 1024, train: {vocab_size: 1000}}
pack: {chunk_length: 1024}
train: {max_steps: 1, warmup_ratio: 0.0, checkpoint_every: 100}
evaluate: {export_rows: 0, generation: {prompts: 1, max_new_tokens: 4}}
tracking: {enabled: false}
"""
STRONG = "train.max_steps=40"


def test_a_language_model_becomes_champion_by_bits_per_byte(tmp_path: Path) -> None:
    shell = InProcessShell(tmp_path)
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    assert shell.json("freeze", "tiny.yaml")["rows"] == 60
    shell.json("run", "tiny.yaml", "--direct", "--until", "consolidate")
    first = shell.json("promote", "tiny.yaml")
    assert first["promoted"] and first["number"] == 1 and not first["froze"]

    shell.json("run", "tiny.yaml", "--direct", STRONG)
    found = shell.json("promote", "tiny.yaml", STRONG)
    compared = found["comparison"]
    assert found["promoted"] and found["number"] == 2
    assert compared["metric"] == "bits_per_byte" and compared["rows"] == 60
    assert compared["difference"] == pytest.approx(compared["champion"] - compared["challenger"])
    assert 0 < compared["low"] < compared["difference"] < compared["high"]

    newest, _ = champions(shell)
    report = json.loads((artifact_folder(shell, newest["evaluation"], tmp_path / "e") / "report.json").read_bytes())
    assert report["cut"] == 0
    assert compared["challenger"] == pytest.approx(report["metrics"]["bits_per_byte"], rel=1e-4)
    scores = pq.read_table(artifact_folder(shell, newest["scores"], tmp_path / "s") / "scores.parquet").to_pydict()
    assert scores["frozen_row"] == list(range(60))
    assert sum(scores["tokens"]) == report["tokens"] and sum(scores["bytes"]) == report["bytes"]

    worse = shell.json("promote", "tiny.yaml", "last~1")
    assert worse["challenger"] == first["champion"] and not worse["promoted"]
    assert worse["comparison"]["high"] < 0
    assert shell.json("rollback", "tiny.yaml")["artifact"] == first["champion"]
