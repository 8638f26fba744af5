"""An estimate of memory is kept under the settings, rows and limit that it depends on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.training.memory.test_memory import DEVICES, row_meta
from tests.training.toys import LLAMA, scratch
from trnflow.tasks.keys.hash_cache import Memo
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.memory.trace_process import trace_key


def test_a_figure_is_kept_under_what_it_depends_on(tmp_path: Path) -> None:
    memo, config = Memo(tmp_path / "memo.db"), TrainConfig(**DEVICES)
    model, meta = scratch(**LLAMA), row_meta(64)

    def key(config: TrainConfig = config, rows: dict[str, Any] = meta, limit: int = 1, **fields: Any) -> str:
        return trace_key(config.model_copy(update=fields), scratch(**{**LLAMA}), rows, limit, memo)

    same = key()
    assert same == key(learning_rate=1.0) == key(limit=2) == key(epochs=9) == trace_key(config, model, meta, 1, memo)
    others = [key(rows=row_meta(32)), key(remat=True), key(keep_best=True), key(dtype="bfloat16"), key(global_batch=16)]
    assert len({same, *others}) == 6
    labels = [key(rows={**meta, "labels": names}) for names in (["a"], ["b"], ["a", "b"])]
    assert same != labels[0] == labels[1] != labels[2], "how many there are"
    assert key(micro_batch="auto", limit=1) != key(micro_batch="auto", limit=2)
