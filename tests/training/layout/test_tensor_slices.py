"""What an engine hands to a checkpoint is a copy: the steps that follow while it is written don't change it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.training.run_stage import run_stage
from tests.training.toys import BERT, packed_classes, scratch
from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.stage import Workdir, stage
from trnflow.tasks.train import TrainConfig
from trnflow.tasks.train import environ as train_environ


def digest(slices: Iterable[Any]) -> str:
    found = hashlib.sha256()
    for part in slices:
        found.update(part.value.contiguous().numpy().tobytes())
    return found.hexdigest()


@stage(kind="checkpoint", environ=train_environ)
def steps_after_a_copy(config: TrainConfig, model: Source, packed: Input, out: Workdir) -> Meta:
    from trnflow.tasks.training.batches.sampler import Schedule, Split
    from trnflow.tasks.training.choose_engine import make_engine
    from trnflow.tasks.training.graph_registry import GraphRegistry
    from trnflow.tasks.training.model.build import build
    from trnflow.tasks.training.optim.optimizer import scalars

    engine = make_engine(config, build(model, packed, seed=0, weights=True), GraphRegistry())
    split = Split(packed, "train")
    schedule = Schedule(split.rows, config.global_batch, seed=0, last_batch="pad")

    def step(number: int) -> None:
        batch = split.read(schedule.address(number))
        engine.fetch([engine.train(batch, scalars(config, number, 4, batch.supervised), number)])

    step(0)
    slices = list(engine.slices(state=True))
    copied = digest(slices)
    step(1)
    return {"stayed": digest(slices) == copied, "moved": digest(engine.slices(state=True)) != copied}


@pytest.mark.parametrize(
    "layout",
    [
        {"engine": "native"},
        {"engine": "native", "dtype": "bfloat16"},
        pytest.param({"engine": "xla", "devices": 2, "zero1": True}, marks=pytest.mark.xla),
    ],
    ids=["native", "bf16", "xla"],
)
def test_slices_are_copies(tmp_path: Path, layout: dict[str, Any]) -> None:
    config = TrainConfig(global_batch=8, learning_rate=1e-2, **layout)
    packed = packed_classes(tmp_path / "packed", rows=24, lengths=[8])
    made = run_stage(steps_after_a_copy, config, tmp_path / "run", model=scratch(**BERT), packed=packed)
    assert made.artifact.meta == {"stayed": True, "moved": True}
