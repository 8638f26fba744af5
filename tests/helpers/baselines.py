"""Rows through the data stages, and the baseline that is learnt from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from tests.helpers.data_stages import Bench, new_bench
from trnflow.tasks.artifact import Input, Meta
from trnflow.tasks.evaluation.baselines.measured import measure_baselines
from trnflow.tasks.evaluation.columns import save_columns
from trnflow.tasks.evaluation.config import SplitConfig
from trnflow.tasks.evaluation.row_losses import source_rows
from trnflow.tasks.fit_baseline import fit_baseline

Splits = Mapping[str, list[dict[str, Any]]]


class Fitted:
    """What `fit_baseline` made of rows. found: its arrays by name; evaluated: the rows of test, in their order."""

    def __init__(self, root: Path, splits: Splits, data: Meta, **format: Any) -> None:
        self.bench: Bench = new_bench(root)
        self.texts, self.packed = packed(self.bench, splits, data, **format)
        self.made = self.bench.made(fit_baseline, SplitConfig(), texts=self.texts, packed=self.packed)
        self.found = {file.stem: np.load(file) for file in self.made.path.glob("*.npy")}
        rows = pq.read_table(self.texts.path / "test.parquet").take(source_rows(self.packed, "test"))
        self.evaluated: list[dict[str, Any]] = rows.to_pylist()
        self.train: list[dict[str, Any]] = pq.read_table(self.texts.path / "train.parquet").to_pylist()

    def measured(self, columns: Any) -> dict[str, float]:
        """Return the metrics of the baseline. columns: of a model."""
        predicted = self.bench.workdir().path
        save_columns(columns, predicted)
        model = Input(
            predicted, "evaluation.shard", {"split": "test", "labels": self.packed.meta["labels"]}, "sha256:1"
        )
        out = self.bench.workdir().path
        (entry,) = measure_baselines({"baseline": self.made}, model, self.packed, self.packed.meta["task"], out)
        assert pq.read_table(out / "baseline.parquet")["row"].to_pylist() == [*range(1, len(self.evaluated) + 1)]
        return entry["metrics"]


def packed(bench: Bench, splits: Splits, data: Meta, model: Meta | None = None, **format: Any) -> tuple[Input, Input]:
    """Return the rows formatted, and packed. model: of which the tokenizer is; default: one is trained on the rows."""
    folder = bench.root / "rows"
    folder.mkdir()
    for split, rows in splits.items():
        (folder / f"{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    texts = bench.texts(bench.rows(source=str(folder), **data), **format)
    trains = {} if model else {"train": {"kind": "wordpiece", "vocab_size": 200}}
    model = model or {"config": {"model_type": "bert"}}
    tokens = bench.tokens(texts, model, max_length=256, overlong="truncate", **trains)
    return texts, bench.packed(tokens, strategy="bucket", chunk_length=256, buckets=2)
