"""What an engine hands to a checkpoint is a copy: the steps that follow while it is written don't change it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tasks.artifact import Input, Meta, Source
from tasks.stage import Workdir, stage
from tasks.train import TrainConfig
from tasks.train import environ as train_environ
from tests.training.run_stage import run_stage
from tests.training.toys import BERT, packed_classes, scratch


def digest(boxes: Iterable[Any]) -> str:
    found = hashlib.sha256()
    for box in boxes:
        found.update(box.value.contiguous().numpy().tobytes())
    return found.hexdigest()


@stage(kind="checkpoint", process=True, environ=train_environ)
def steps_after_a_copy(config: TrainConfig, model: Source, packed: Input, out: Workdir) -> Meta:
    from tasks.training.batches import Schedule, Split
    from tasks.training.engine import make_engine
    from tasks.training.inventory import Ledger
    from tasks.training.model import build
    from tasks.training.optim import scalars

    engine = make_engine(config, build(model, packed, seed=0, weights=True), Ledger())
    split = Split(packed, "train")
    schedule = Schedule(split.rows, config.global_batch, seed=0, last_batch="pad")

    def step(number: int) -> None:
        batch = split.read(schedule.address(number))
        engine.fetch([engine.train(batch, scalars(config, number, 4, batch.supervised), number)])

    step(0)
    boxes = list(engine.boxes(state=True))
    copied = digest(boxes)
    step(1)
    return {"stayed": digest(boxes) == copied, "moved": digest(engine.boxes(state=True)) != copied}


@pytest.mark.parametrize(
    "layout",
    [{"engine": "native"}, {"engine": "native", "dtype": "bfloat16"}, {"engine": "xla", "devices": 2, "zero1": True}],
    ids=["native", "bf16", "xla"],
)
def test_boxes_are_copies(tmp_path: Path, layout: dict[str, Any]) -> None:
    config = TrainConfig(global_batch=8, learning_rate=1e-2, **layout)
    packed = packed_classes(tmp_path / "packed", rows=24, lengths=[8])
    made = run_stage(steps_after_a_copy, config, tmp_path / "run", model=scratch(**BERT), packed=packed)
    assert made.artifact.meta == {"stayed": True, "moved": True}
