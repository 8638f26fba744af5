"""Sound recipes, of a grid of task, file, split, engine and model: a rehearsal finds nothing."""

from __future__ import annotations

import csv
import json
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.flows.rehearsal.faults import RECIPES, WORDS, talk, texts, write_sound
from trnflow.flows.rehearsal.rehearse import rehearse
from trnflow.flows.runner.context import open_context
from trnflow.tasks.load_data import NO_TEST_SPLIT

pytestmark = pytest.mark.nightly

ENCODER = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 64}
DECODER = RECIPES["instruct"]["model"]["config"]
MODELS: dict[str, list[dict[str, Any]]] = {
    "classify": [
        {"model_type": "bert", "num_hidden_layers": 2, **ENCODER},
        {"model_type": "distilbert", "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64},
        {"model_type": "modernbert", "num_hidden_layers": 4, **ENCODER},
    ],
    "instruct": [
        DECODER,
        DECODER | {"model_type": "qwen3", "head_dim": 8},
        DECODER | {"model_type": "smollm3", "num_hidden_layers": 8},
    ],
}
MODELS["chat"] = MODELS["instruct"]
SPLITS = ("hash", "files", "none")
GRID = [
    (kind, suffix, split, ("native", "xla")[(number + model) % 2], model)
    for kind, model in product(("classify", "instruct", "chat"), range(3))
    for number, (suffix, split) in enumerate(product(("csv", "jsonl", "parquet"), SPLITS))
    if not (kind == "chat" and suffix == "csv")
]
"""(task, file's suffix, where the splits come from, engine, number of the model)"""


def rows_of(kind: str, count: int, word: str) -> list[dict[str, Any]]:
    if kind == "classify":
        return [{"text": f"{word} {text}", "label": WORDS[n % 3]} for n, text in enumerate(texts(count))]
    if kind == "chat":
        return [talk(n, ("user", f"{word} {n}?"), ("assistant", f"It is {n}.")) for n in range(count)]
    return [{"instruction": f"{word} {text}", "response": f"Yes, {text}."} for text in texts(count)]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, list(rows[0]))
            table.writeheader()
            table.writerows(rows)


@pytest.mark.parametrize(("kind", "suffix", "split", "engine", "model"), GRID)
def test_a_sound_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, suffix: str, split: str, engine: str, model: int
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRNFLOW_HOME", str(tmp_path / "home"))
    write_sound(tmp_path, kind)
    (tmp_path / "rows").mkdir()
    for name in ("train", "validation", "test") if split == "files" else ("train",):
        write(tmp_path / f"rows/{name}.{suffix}", rows_of(kind, 60, name))
    recipe = json.loads((tmp_path / "mine.yaml").read_text())
    recipe["data"] |= {"source": "rows", "split": recipe["data"]["split"] if split == "hash" else None}
    recipe["model"]["config"] = MODELS[kind][model]
    recipe["train"] = {**recipe.get("train", {}), "engine": engine}
    (tmp_path / "mine.yaml").write_text(json.dumps(recipe))
    rehearsal = rehearse(open_context("mine.yaml"))
    assert rehearsal.fault is None, str(rehearsal.fault)
    assert rehearsal.remarks == ([NO_TEST_SPLIT] if split == "none" else [])
    assert rehearsal.killed
