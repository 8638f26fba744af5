"""What a rank of engine native computes with: its own dropout, none in an evaluation, and its weights in a checkpoint."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.training.toys import BERT, DRY, LLAMA, first_rows, packed_classes, packed_lm, scratch
from trnflow.tasks.artifact import Input
from trnflow.tasks.training.batches.sampler import Batch
from trnflow.tasks.training.choose_engine import make_engine
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.device_kinds import KINDS
from trnflow.tasks.training.engine import Engine
from trnflow.tasks.training.graph_registry import GraphRegistry
from trnflow.tasks.training.model.build import build, logits_of
from trnflow.tasks.training.optim.optimizer import Scalars, scalars
from trnflow.tasks.training.partition_specs import Mesh
from trnflow.tasks.training.world import ALONE, World

PHI = {**LLAMA, "model_type": "phi", "resid_pdrop": 0.0, "embd_pdrop": 0.0}
COMMON: dict[str, Any] = {"engine": "native", "threads": 1, "global_batch": 8}


def engine_of(packed: Input, model: dict[str, Any], world: World = ALONE, **settings: Any) -> Engine:
    config = TrainConfig(**COMMON, **settings)
    return make_engine(config, build(scratch(**model), packed, seed=0, weights=True), GraphRegistry(), None, world)


def at_rest(batch: Batch) -> Scalars:
    """The numbers of an update that moves no weight."""
    return scalars(TrainConfig(**COMMON), 0, 9, batch.supervised)._replace(lr=0.0)


def test_each_replica_drops_other_elements(tmp_path: Path) -> None:
    """Both replicas get the same rows: with the same masks they would have the same loss."""
    packed = packed_classes(tmp_path, lengths=[8])
    half, _ = first_rows(packed, 4)
    columns = ("input_ids", "targets", "segment_ids", "position_ids")
    twice: dict[str, Any] = {name: np.concatenate([getattr(half, name)] * 2) for name in columns}
    batch = Batch(half.length, **twice, samples=8)

    def losses(**model: float) -> list[float]:
        engines = [engine_of(packed, {**BERT, **model}, World(rank, Mesh(2, 1)), devices=2) for rank in range(2)]
        return [engine.fetch([engine.train(batch, at_rest(batch), seed=5)])[0][0] for engine in engines]

    first, second = losses(hidden_dropout_prob=0.5)
    assert abs(first - second) > 1e-3
    assert len({*losses(**DRY)}) == 1


def test_an_evaluation_drops_nothing_and_training_goes_on_with_dropout(tmp_path: Path) -> None:
    packed = packed_classes(tmp_path, lengths=[8])
    engine, (batch, _) = engine_of(packed, {**BERT, "hidden_dropout_prob": 0.5}), first_rows(packed, 8)
    plain, dry = engine_of(packed, {**BERT, **DRY}), list[float]()
    for one in (engine, plain):
        for seed in (1, 2):
            torch.manual_seed(seed)
            dry += [one.fetch([one.evaluate(batch)])[0][0]]
    assert len({*dry}) == 1
    wet = [engine.fetch([engine.train(batch, at_rest(batch), seed=seed)])[0][0] for seed in (1, 2)]
    assert wet[0] != wet[1]


def test_a_checkpoint_after_an_evaluation_holds_the_weights_beside_their_averages(tmp_path: Path) -> None:
    packed = packed_lm(tmp_path)
    engine, (batch, _) = engine_of(packed, LLAMA, ema_decay=0.5), first_rows(packed, 8)
    for seed in range(3):
        engine.train(batch, at_rest(batch)._replace(lr=1e-2, t=seed + 1), seed=seed)
    before = {part.name: part.value for part in engine.slices(state=True)}
    engine.evaluate(batch)
    after = {part.name: part.value for part in engine.slices(state=True)}
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(("remat", "often"), [(False, [1, 1, 1, 1]), (True, [2, 2, 2, 2]), (2, [1, 2, 1, 2])])
def test_remat_computes_every_nth_layer_again(remat: bool | int, often: list[int], tmp_path: Path) -> None:
    packed, counts = packed_lm(tmp_path), Counter[int]()
    built = build(scratch(**{**LLAMA, "num_hidden_layers": 4}), packed, seed=0, weights=True)
    for number, layer in enumerate(built.model.model.layers):
        layer.mlp.register_forward_pre_hook(lambda module, given, number=number: counts.update([number]))
    engine, (batch, _) = make_engine(TrainConfig(**COMMON, remat=remat), built, GraphRegistry()), first_rows(packed, 8)
    counts.clear()
    engine.train(batch, at_rest(batch), seed=0)
    assert [counts[number] for number in range(4)] == often


@pytest.mark.parametrize(("reference", "kl"), [(100.0, 0.0), (-200.0, None)])
def test_the_gain_of_mismatched_answers_counts_from_zero_on(reference: float, kl: float | None, tmp_path: Path) -> None:
    """A reference that likes them better than the model gives no negative KL (Ethayarajh et al. 2024, equation 8)."""
    packed, (rows, length) = packed_lm(tmp_path), (8, 8)
    packed.meta["task"] = "unpaired_preference"
    at = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
    ids = (at * 5 + np.arange(rows)[:, None]) % 60 + 3
    segments, targets = np.where(at < 4, 1, 2), np.where(at % 4 == 0, -100, ids)
    columns = {"input_ids": ids, "targets": targets, "segment_ids": segments, "position_ids": at % 4}
    given: dict[str, Any] = {name: values.astype(np.int32) for name, values in columns.items()}
    batch = Batch(
        length, **given, samples=rows,
        reference=np.array([[0, reference]] * rows, np.float32), marks=np.array([[1], [-1]] * 4, np.float32),
    )  # fmt: skip
    engine = engine_of(packed, LLAMA, objective="kto")
    ((_, _, good, *metrics),) = engine.fetch([engine.train(batch, at_rest(batch), seed=0)])
    assert good and (metrics[-1] == 0 if kl == 0 else metrics[-1] > 100)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("most", [1e-2, 100.0])
def test_an_update_follows_the_gradient_up_to_the_largest_norm(dtype: str, most: float, tmp_path: Path) -> None:
    """AdamW with an eps far above all gradients moves weights by them. In fp16 an update that overflows comes first: neither
    the loss scale nor the update that was skipped may show."""
    packed, eps = packed_lm(tmp_path), 1e4
    batch, columns = first_rows(packed, 8)
    plain = build(scratch(**LLAMA), packed, seed=0, weights=True)
    targets = torch.from_numpy(batch.targets).flatten().long()
    torch.nn.functional.cross_entropy(logits_of(plain, *columns).flatten(0, 1), targets).backward()  # type: ignore[no-untyped-call]
    norm = float(torch.cat([parameter.grad.flatten() for parameter in plain.model.parameters()]).norm())
    assert 1e-2 < norm < 100
    engine = engine_of(packed, LLAMA, dtype=dtype)
    at = at_rest(batch)._replace(lr=eps, eps=eps, max_norm=most, weight_decay=0.0)
    skipped = [at._replace(scale=at.scale * 1e9)] if dtype == "float16" else []
    before = {part.name: part.value for part in engine.slices(state=False)}
    for t, numbers in enumerate([*skipped, at], start=1):
        ((_, found, *_),) = engine.fetch([engine.train(batch, numbers._replace(t=t), seed=t)])
    moved = torch.cat([(part.value - before[part.name]).flatten() for part in engine.slices(state=False)])
    assert found == pytest.approx(norm, rel=2e-2)
    assert float(moved.norm()) == pytest.approx(min(norm, most), rel=2e-2)


@pytest.mark.parametrize("model", [LLAMA, PHI], ids=lambda model: model["model_type"])
def test_training_and_evaluation_in_chunks_are_those_of_whole_logits(
    model: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 8 positions each, of a head without and with a bias, which updates move."""
    packed, found = packed_lm(tmp_path), list[list[list[float]]]()
    batch, _ = first_rows(packed, 8)
    for logits in (1 << 25, 1):
        monkeypatch.setattr(KINDS["cpu"], "logits", logits)
        engine = engine_of(packed, model)
        handles = [engine.train(batch, at_rest(batch)._replace(lr=1e-2, t=step), seed=step) for step in (1, 2, 3)]
        found.append(engine.fetch([*handles, engine.evaluate(batch)]))
    whole, chunks = ([number for numbers in one for number in numbers] for one in found)
    assert chunks == pytest.approx(whole, rel=1e-4) and whole[0] > whole[6]
