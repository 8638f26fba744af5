"""fp16: the loss scale moves as torch.amp.GradScaler's does, updates that overflow change nothing, and a resumed run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.amp.grad_scaler import GradScaler

from tests.training.parity import farthest
from tests.training.run_stage import run_in_turn
from tests.training.toys import LLAMA, first_rows, packed_lm, scratch
from trnflow.tasks.artifact import Input
from trnflow.tasks.train import TrainConfig
from trnflow.tasks.training.batches.sampler import Batch, Split
from trnflow.tasks.training.checkpoint import shards
from trnflow.tasks.training.choose_engine import make_engine
from trnflow.tasks.training.device_kinds import KINDS
from trnflow.tasks.training.engine import Engine
from trnflow.tasks.training.graph_registry import GraphRegistry
from trnflow.tasks.training.losses import loss_sum
from trnflow.tasks.training.model.build import build, logits_of
from trnflow.tasks.training.native import loss_scale
from trnflow.tasks.training.optim.optimizer import Scalars, scalars

FP16: dict[str, Any] = {
    "engine": "native", "dtype": "float16", "threads": 1, "attention": "sdpa", "global_batch": 8, "learning_rate": 1e-2,
    "schedule": "constant", "warmup_ratio": 0.0, "weight_decay": 0.1, "max_grad_norm": 0.5, "seed": 0,
}  # fmt: skip
UPDATES, PLANTED, HUGE = 24, (0, 7), 1e9


def batches(packed: Input) -> list[Batch]:
    split = Split(packed, "train")
    return [split.read(address) for address in split.in_order(8)]


def numbers(config: TrainConfig, step: int, batch: Batch) -> Scalars:
    """Those of update `step`; of the planted ones with a loss whose gradients overflow."""
    at = scalars(config, step, UPDATES, batch.supervised)
    return at._replace(scale=at.scale * HUGE) if step in PLANTED else at


def engine_of(config: TrainConfig, packed: Input, stored: shards.Reader | None = None) -> Engine:
    return make_engine(config, build(scratch(**LLAMA), packed, seed=0, weights=True), GraphRegistry(), stored)


def by_grad_scaler(config: TrainConfig, packed: Input, interval: int) -> list[tuple[float, float, float]]:
    """[(loss, norm, scale)] of plain PyTorch: a model in fp16, AdamW on fp32 masters, and GradScaler."""
    built = build(scratch(**LLAMA), packed, seed=0, weights=True)
    parameters = list(built.parameters().values())
    masters = [torch.nn.Parameter(parameter.detach().clone()) for parameter in parameters]
    for parameter in parameters:
        parameter.data = parameter.data.half()
    groups = [
        {"params": [one for one in masters if (one.ndim > 1) == decayed], "weight_decay": 0.1 * decayed}
        for decayed in (True, False)
    ]
    optimizer = torch.optim.AdamW(groups, lr=config.learning_rate, betas=(config.beta1, config.beta2), eps=config.eps)
    scaler, seen = GradScaler("cpu", growth_interval=interval), []
    for step, batch in enumerate(batches(packed)[:UPDATES]):
        scale, loss = scaler.get_scale(), 0.0
        for part in batch.micro_batches(config.micro_rows):
            columns = (part.input_ids, part.segment_ids, part.position_ids, part.targets)
            *inputs, targets = map(torch.from_numpy, columns)
            share = loss_sum(logits_of(built, *inputs).float(), targets) * numbers(config, step, batch).scale
            scaler.scale(share).backward()  # type: ignore[no-untyped-call]
            loss += share.item()
            for master, parameter in zip(masters, parameters, strict=True):
                assert parameter.grad is not None
                master.grad = parameter.grad.float() + (0 if master.grad is None else master.grad)
                parameter.grad = None
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(masters, 0.5)
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            for master, parameter in zip(masters, parameters, strict=True):
                parameter.copy_(master)
        optimizer.zero_grad()
        seen.append((loss, float(norm), scale))
    return seen


@pytest.mark.parametrize(("micro_batch", "logits"), [(8, 1 << 20), (2, 1 << 20), (8, 1 << 10)])
def test_losses_and_scales_are_those_of_grad_scaler(
    micro_batch: int, logits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two planted overflows, and a scale that grows every third update until gradients overflow by themselves; with
    `logits` bytes at once, in chunks too."""
    monkeypatch.setattr(loss_scale, "INTERVAL", 3)
    monkeypatch.setattr(KINDS["cpu"], "logits", logits)
    config, packed = TrainConfig(**FP16, micro_batch=micro_batch), packed_lm(tmp_path, rows=8 * UPDATES)
    engine, found = engine_of(config, packed), []
    for step, batch in enumerate(batches(packed)):
        found += engine.fetch([engine.train(batch, numbers(config, step, batch), seed=step)])
    expected = by_grad_scaler(config, packed, interval=3)
    scales = [scale for *_, scale in found]
    print([int(scale).bit_length() - 1 for scale in scales])
    assert scales == [scale for *_, scale in expected]
    skipped = [step for step, (_, norm, *_) in enumerate(found) if not torch.isfinite(torch.tensor(norm))]
    assert set(PLANTED) < set(skipped) and all(good for *_, good, _ in found)
    assert max(scales) > loss_scale.FIRST_SCALE
    differences = []
    for step, ((loss, norm, *_), (wanted, wanted_norm, _)) in enumerate(zip(found, expected, strict=True)):
        factor = HUGE if step in PLANTED else 1.0
        differences.append(abs(loss - wanted) / factor)
        if step not in skipped:
            assert norm == pytest.approx(wanted_norm, rel=1e-2), step
    print(f"largest difference of losses: {max(differences):.1e}")
    assert max(differences) < 1e-3


def test_a_resumed_run_goes_on_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_scale, "INTERVAL", 3)
    config, packed = TrainConfig(**FP16), packed_lm(tmp_path / "packed", rows=8 * UPDATES)
    whole, steps = engine_of(config, packed), list(enumerate(batches(packed)))
    for step, batch in steps[:9]:
        whole.train(batch, numbers(config, step, batch), seed=step)
    shards.write(tmp_path / "state", whole.slices(state=True), {})
    resumed = engine_of(config, packed, shards.Reader(tmp_path / "state"))
    for step, batch in steps[9:]:
        one, other = (engine.train(batch, numbers(config, step, batch), seed=step) for engine in (whole, resumed))
        assert torch.equal(one, other), step
    ends = [{part.name: part.value for part in engine.slices(state=True)} for engine in (whole, resumed)]
    assert ends[0].keys() == ends[1].keys() and loss_scale.NAME in ends[0]
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())
    # what was skipped before is known after: AdamW corrects its bias by the updates that were made
    assert float(ends[1][loss_scale.NAME][1]) > len(PLANTED)


def test_gradients_that_overflow_at_every_scale_change_nothing_and_are_an_error(tmp_path: Path) -> None:
    config, packed = TrainConfig(**FP16), packed_lm(tmp_path, rows=8)
    engine = engine_of(config, packed)
    before = {part.name: part.value for part in engine.slices(state=False)}
    batch, _ = first_rows(packed, 8)
    at = scalars(config, 0, 1, batch.supervised)
    found = engine.fetch([engine.train(batch, at._replace(scale=at.scale * 1e12), seed=0) for _ in range(19)])
    assert [scale for *_, scale in found] == [2.0 ** (16 - step) for step in range(19)]
    assert [good for _, _, good, _ in found] == [float(scale >= 1) for *_, scale in found]
    after = {part.name: part.value for part in engine.slices(state=False)}
    assert all(torch.equal(after[name], value) for name, value in before.items())
    # a loss that is not finite in the forward pass is one at once: no scale helps
    engine = engine_of(config, packed)
    ((_, _, harmless, _),) = engine.fetch([engine.train(batch, at._replace(scale=float("inf")), seed=0)])
    assert harmless == 0.0


WIDE: dict[str, dict[str, Any]] = {"plain": {}, "adafactor": {"optimizer": "adafactor"}, "averaged": {"ema_decay": 0.5}}
RANKS: dict[str, list[dict[str, Any]]] = {
    "plain": [{"micro_batch": 2}, {"zero1": True}, {"fsdp": True}, {"tensor_parallel_size": 2}],
    "adafactor": [{}],
    "averaged": [{"fsdp": True}],
}


@pytest.mark.slow
def test_ranks_train_in_fp16_as_one_process_in_fp32(tmp_path: Path) -> None:
    fields = {**FP16, "epochs": 2, "log_every": 1}
    inputs: dict[str, Any] = {"model": scratch(**LLAMA), "packed": packed_lm(tmp_path / "packed", rows=40)}
    plain = [TrainConfig(**{**fields, **wide, "dtype": "float32"}) for wide in WIDE.values()]
    wanted = dict(zip(WIDE, run_in_turn(plain, tmp_path / "plain", **inputs), strict=True))
    layouts = [(name, layout) for name, some in RANKS.items() for layout in some]
    configs = [TrainConfig(**fields, **WIDE[name], **layout, devices=2) for name, layout in layouts]
    for (name, layout), found in zip(layouts, run_in_turn(configs, tmp_path / "ranks", **inputs), strict=True):
        assert set(found.curve("loss_scale").values()) == {loss_scale.FIRST_SCALE}
        for curve in ("loss", "eval_loss"):
            print(name, layout, curve, farthest(found.curve(curve), wanted[name].curve(curve)))
            assert len(found.curve("loss")) == 10
            assert found.curve(curve) == pytest.approx(wanted[name].curve(curve), abs=3e-2), (name, layout)
