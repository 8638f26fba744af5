"""Gradients of several passes: engine native sums them in fp32, whatever the dtype that computes them."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.products import few
from tests.training.run_stage import FolderPartial, Stage, run_stage, traced_and_trained
from tests.training.toys import LLAMA, first_rows, packed_lm, scratch
from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.stage import Workdir, stage
from trnflow.tasks.train import TrainConfig, environ, ranks
from trnflow.tasks.training.checkpoint.shards import Reader
from trnflow.tasks.training.choose_engine import make_engine
from trnflow.tasks.training.graph_registry import GraphRegistry
from trnflow.tasks.training.losses import loss_sum
from trnflow.tasks.training.model.build import build, logits_of
from trnflow.tasks.training.optim.optimizer import scalars
from trnflow.tasks.training.shared_types import FIRST_MOMENT

BFLOAT16: dict[str, Any] = {
    "engine": "native",
    "dtype": "bfloat16",
    "max_grad_norm": None,
    "threads": 1,
    "attention": "sdpa",
}
TWO: dict[str, Any] = {"devices": 2, "max_steps": 2, "checkpoint_every": 1, "keep_checkpoints": 2}


def by_plain_pytorch(packed: Input, rows: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """(sums in float64, sums in bfloat16) of the gradients of `rows` passes over a row each, by parameter."""
    built = build(scratch(**LLAMA), packed, seed=0, weights=True)
    for parameter in built.parameters().values():
        parameter.data = parameter.data.to(torch.bfloat16)
    batch, (ids, segments, positions) = first_rows(packed, rows)
    exact: dict[str, torch.Tensor] = {}
    narrow: dict[str, torch.Tensor] = {}
    for row in range(rows):
        one = slice(row, row + 1)
        logits = logits_of(built, ids[one], segments[one], positions[one])
        loss = loss_sum(logits, torch.from_numpy(batch.targets[one])) * (1 / batch.supervised)
        loss.backward()  # type: ignore[no-untyped-call]
        for name, parameter in built.parameters().items():
            assert parameter.grad is not None
            exact[name] = exact.get(name, 0) + parameter.grad.double()
            narrow[name] = narrow.get(name, 0) + parameter.grad
            parameter.grad = None
    return exact, narrow


def of_the_engine(packed: Input, rows: int, micro: int) -> dict[str, torch.Tensor]:
    """The gradients of one update, from the first moments after it: these are (1 - beta1) times the gradients."""
    config = TrainConfig(**BFLOAT16, global_batch=rows, micro_batch=micro)
    engine = make_engine(config, build(scratch(**LLAMA), packed, seed=0, weights=True), GraphRegistry())
    batch, _ = first_rows(packed, rows)
    engine.train(batch, scalars(config, 0, 1, batch.supervised), seed=0)
    slices = {part.name: part.value for part in engine.slices(state=True)}
    fresh = 1 - config.beta1
    return {
        name.removeprefix(FIRST_MOMENT): value / fresh
        for name, value in slices.items()
        if name.startswith(FIRST_MOMENT)
    }


def error(found: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> float:
    assert found.keys() == exact.keys()
    away = sum(float((found[name] - exact[name]).square().sum()) for name in exact)
    return float((away / sum(float(value.square().sum()) for value in exact.values())) ** 0.5)


@pytest.mark.parametrize("passes", [16, 256])
def test_sums_of_many_passes_are_exact_to_fp32(passes: int, tmp_path: Path) -> None:
    packed = packed_lm(tmp_path, rows=passes, length=16)
    exact, narrow = by_plain_pytorch(packed, passes)
    found = error(of_the_engine(packed, passes, 1), exact)
    print(f"{passes} passes: relative error {found:.1e}, summed in bfloat16 {error(narrow, exact):.1e}")
    assert found < 1e-6
    assert error(narrow, exact) > 1e-3  # this is what the sums in fp32 save


def test_the_gradients_of_one_pass_are_those_of_plain_pytorch_to_the_bit(tmp_path: Path) -> None:
    packed = packed_lm(tmp_path, rows=1, length=16)
    exact, _ = by_plain_pytorch(packed, 1)
    found = of_the_engine(packed, 1, 1)
    for name, value in exact.items():
        # through the first moment, which rounds once more in fp32
        assert torch.equal(found[name].to(torch.bfloat16).double(), value), name


LAYOUTS: list[tuple[dict[str, Any], float | None]] = [
    ({"fsdp": True}, 1e-6),
    ({"zero1": True}, 1e-6),
    ({"tensor_parallel_size": 2}, None),  # its passes themselves round elsewhere
]


@pytest.mark.parametrize(("layout", "limit"), LAYOUTS, ids=str)
def test_ranks_sum_as_precisely(layout: dict[str, Any], limit: float | None, tmp_path: Path) -> None:
    """Of 64 passes, 32 a rank under data parallelism. No limit: half the error, or less, of sums in bfloat16."""
    packed = packed_lm(tmp_path / "packed", rows=64, length=16)
    config = TrainConfig(**BFLOAT16, **TWO, **layout, global_batch=64, micro_batch=1, seed=0)
    inputs: dict[str, Any] = {"model": scratch(**LLAMA), "packed": packed}
    Stage(traced_and_trained, config, tmp_path / "run", tmp_path / "partial", **inputs).result()
    newest = FolderPartial(tmp_path / "partial").newest(lambda text: None)
    assert newest is not None and newest[0] == 1
    stored = Reader(newest[1])
    found = {
        name.removeprefix(FIRST_MOMENT): stored.tensor(name) / (1 - config.beta1)
        for name in stored.names
        if name.startswith(FIRST_MOMENT)
    }
    exact, narrow = by_plain_pytorch(packed, 64)
    print(f"{layout}: relative error {error(found, exact):.1e}, summed in bfloat16 {error(narrow, exact):.1e}")
    assert error(found, exact) < (limit or error(narrow, exact) / 2)


@stage(kind="checkpoint", environ=environ, ranks=ranks)
def growth_between_passes(config: TrainConfig, model: Source, packed: Input, out: Workdir) -> Meta:
    """{"growth": bytes that tensors hold before an update's last pass, beyond those before its first, "trained": numbers of a
    rank's part}, of rank 0. Of the second update: by then everything else is there."""
    from trnflow.tasks.training.choose_engine import join_ranks
    from trnflow.tasks.training.native.engine import NativeEngine

    with join_ranks(config) as world:
        built = build(model, packed, seed=0, weights=True)
        engine = NativeEngine(config, built, GraphRegistry(), None, world)
        held, plain = [], engine._loss_of

        def counted(*arguments: Any) -> torch.Tensor:
            held.append(bytes_of_tensors())
            return plain(*arguments)

        engine._loss_of = counted
        batch, _ = first_rows(packed, config.global_batch)
        for step in range(2):
            engine.train(batch, scalars(config, step, 2, batch.supervised), seed=step)
        trained = sum(part.value.numel() for part in engine.slices(state=False))
    return {"growth": held[-1] - held[config.accumulation], "trained": trained}


def bytes_of_tensors() -> int:
    gc.collect()
    tensors = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
    tensors += [one.grad for one in tensors if one.is_leaf and one.grad is not None]
    plain = [getattr(one, "_local_tensor", one) for one in tensors]
    return sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in plain}.values())


@pytest.mark.parametrize("dtype", few(["bfloat16", "float32"], 1))
def test_between_passes_a_rank_of_fsdp_holds_its_part_of_the_sums_in_fp32(dtype: str, tmp_path: Path) -> None:
    """And no whole gradient, whatever dtype computes."""
    config = TrainConfig(**{**BFLOAT16, "dtype": dtype}, devices=2, fsdp=True, global_batch=8, micro_batch=1)
    inputs: dict[str, Any] = {"model": scratch(**LLAMA), "packed": packed_lm(tmp_path / "packed", rows=8)}
    found = run_stage(growth_between_passes, config, tmp_path / "run", **inputs).artifact.meta
    assert found["growth"] == pytest.approx(4 * found["trained"], rel=0.1)
