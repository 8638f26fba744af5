"""A recipe in a folder, whose classifier is trained for a few steps (weak) or for more (strong)."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.helpers.command_line import InProcessShell

RECIPE = """
extends: base/hardware/cpu
data: {source: rows, text: text, label: label}
format: {task: classification}
model:
  config: {model_type: bert, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 64,
    max_position_embeddings: 32, hidden_dropout_prob: 0.0, attention_probs_dropout_prob: 0.0, initializer_range: 0.1}
tokenize: {max_length: 16, train: {kind: wordpiece, vocab_size: 200}}
pack: {strategy: pad, chunk_length: 16}
train: {global_batch: 32, learning_rate: 1.0e-2, max_steps: 1}
export: {target: stablehlo}
evaluate: {export_rows: 0}
tracking: {enabled: false}
"""
WORDS = {
    "pos": ["lovely", "bright", "happy", "sunny", "warm", "kind"],
    "neg": ["awful", "dark", "sad", "rainy", "cold", "mean"],
}
NEUTRAL = ["the", "a", "day", "it", "was", "very", "and", "then", "some", "thing"]
STRONG = "train.max_steps=40"


def write_rows(folder: Path, names: dict[str, str], seed: int = 1) -> None:
    """Write three splits of labelled rows. names: the label that is written for "pos" and for "neg"."""
    draw = random.Random(seed)
    folder.mkdir(exist_ok=True)
    for split, count in {"train": 400, "validation": 40, "test": 160}.items():
        rows = []
        for number in range(count):
            label = draw.choice(["pos", "neg"])
            other = "neg" if label == "pos" else "pos"
            words = [draw.choice(WORDS[label if draw.random() < 0.9 else other]) for _ in range(3)]
            words += draw.choices(NEUTRAL, k=5)
            draw.shuffle(words)
            rows.append(json.dumps({"text": f"{' '.join(words)} {number}", "label": names[label]}))
        (folder / f"{split}.jsonl").write_text("\n".join(rows))


def write_amounts(folder: Path) -> None:
    """Write rows as `write_rows` does, with a number in the column `amount`."""
    write_rows(folder, {"pos": "pos", "neg": "neg"})
    for file in folder.iterdir():
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps({**row, "amount": n % 7 + 0.5}) + "\n" for n, row in enumerate(rows)))


def write_tiny(folder: Path) -> Path:
    """Write the recipe `tiny.yaml` and its rows into a folder; return the folder."""
    (folder / "tiny.yaml").write_text(RECIPE)
    write_rows(folder / "rows", {"pos": "pos", "neg": "neg"})
    return folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> InProcessShell:
    """The command line in a folder with the recipe `tiny.yaml`, which was run with one step and with forty."""
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny(folder)
    shell = InProcessShell(folder)
    shell.json("run", "tiny.yaml", "--direct", "--until", "consolidate")
    shell.json("run", "tiny.yaml", "--direct", STRONG)
    return shell
