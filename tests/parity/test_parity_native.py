"""Engine native on several ranks (gloo) gives the losses of one plain device, whatever is split: 1e-5 in fp32 over six steps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any

import pytest

from tests.parity.test_families import ENCODERS
from tests.parity.test_parity import check
from tests.training.run_stage import Result, run_in_turn, run_stage, traced_and_trained
from tests.training.toys import BERT, DRY, LLAMA, packed_classes, packed_lm, scratch
from trnflow.tasks.train import TrainConfig

STEPS = 6
SETTINGS: dict[str, Any] = {"engine": "native", "global_batch": 8, "epochs": 1, "learning_rate": 1e-2, "log_every": 1}
GROUPED = {**LLAMA, "num_key_value_heads": 2}
TP: dict[str, Any] = {"tensor_parallel_size": 2}
SP: dict[str, Any] = {**TP, "sequence_parallel": True}
SHARDINGS: list[dict[str, Any]] = [{}, {"zero1": True}, {"fsdp": True}]
TWO: list[dict[str, Any]] = [
    {"micro_batch": 2},
    {"zero1": True, "micro_batch": 1},
    {"fsdp": True, "remat": True, "micro_batch": 1},
    {**SP},
]
HSDP: dict[str, Any] = {"dp_replicate_size": 2}
FOUR: list[dict[str, Any]] = [
    {**TP, "zero1": True},
    {**SP, "fsdp": True, "remat": True, "micro_batch": 1},
    {**HSDP, "fsdp": True, "micro_batch": 1},
    {**HSDP, "zero1": True, "micro_batch": 1},
]


def every(devices: int, sizes: Sequence[int]) -> list[dict[str, Any]]:
    found = []
    for size, sharding, sequences, remat, micro in product(sizes, SHARDINGS, (False, True), (False, True), (None, 1)):
        if (sharding and devices == size) or (sequences and size == 1):
            continue
        layout = {"tensor_parallel_size": size, "sequence_parallel": sequences, "remat": remat, "micro_batch": micro}
        found.append({**layout, **sharding})
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Layouts of one model on `devices` ranks, which are started once for all of them."""
    root = tmp_path_factory.mktemp("native")
    packed = packed_lm(root / "packed", rows=STEPS * 8)

    def run(devices: int, layouts: Sequence[dict[str, Any]], name: str, **model: Any) -> list[Result]:
        configs = [TrainConfig(**SETTINGS, devices=devices, **layout) for layout in layouts]
        return run_in_turn(configs, root / name, model=scratch(**{**GROUPED, **model}), packed=packed)

    @cache
    def plain() -> Result:
        return run(1, [{}], "plain")[0]

    return run, plain


@pytest.mark.parametrize(("devices", "layouts"), [(2, TWO), (4, FOUR)])
def test_layouts_agree(devices: int, layouts: list[dict[str, Any]], trained) -> None:
    run, plain = trained
    for layout, found in zip(layouts, run(devices, layouts, str(devices)), strict=True):
        check(found, plain())
        sharded = devices // layout.get("dp_replicate_size", 1)
        split = sharded if layout.keys() & {"zero1", "fsdp"} else layout.get("tensor_parallel_size", 1)
        assert len(list(found.artifact.path.glob("shard-*"))) == split, layout


@pytest.mark.nightly
@pytest.mark.parametrize(("devices", "sizes"), [(2, (1, 2)), (4, (1, 2))])
def test_all_combinations_agree(devices: int, sizes: tuple[int, ...], trained) -> None:
    run, plain = trained
    for found in run(devices, every(devices, sizes), f"all-{devices}"):
        check(found, plain())


@pytest.mark.nightly
@pytest.mark.parametrize(
    "model",
    [
        {"tie_word_embeddings": True},
        {"model_type": "qwen2", "tie_word_embeddings": True},
        {"model_type": "qwen3", "head_dim": 8},
        {"model_type": "mistral"},
    ],
    ids=str,
)
def test_families_agree(model: dict[str, Any], trained) -> None:
    run, _ = trained
    name = "-".join(map(str, model.values()))
    (plain,) = run(1, [{}], f"plain-{name}", **model)
    for found in run(4, [{**TP, "zero1": True}, {**SP, "fsdp": True}], name, **model):
        check(found, plain)


@pytest.mark.nightly
def test_bfloat16_stays_close_to_float32(trained) -> None:
    run, plain = trained
    layouts = [{"dtype": "bfloat16", **sharding} for sharding in [*SHARDINGS, TP]]
    for found in run(2, layouts, "bfloat16"):
        assert found.curve("loss") == pytest.approx(plain().curve("loss"), abs=0.05)


@pytest.mark.nightly
@pytest.mark.parametrize("family", ENCODERS)
def test_encoders_agree(family: str, tmp_path) -> None:
    packed = packed_classes(tmp_path / "packed", rows=STEPS * 8, lengths=[16])
    inputs: dict[str, Any] = {"model": scratch(**ENCODERS[family]), "packed": packed}
    plain = run_stage(traced_and_trained, TrainConfig(**SETTINGS), tmp_path / "plain", **inputs)
    configs = [TrainConfig(**SETTINGS, devices=2, **layout) for layout in (TP, {**SP, "remat": 2})]
    for found in run_in_turn(configs, tmp_path / "ranks", **inputs):
        check(found, plain)


@pytest.mark.nightly
def test_bert_in_two_lengths_with_a_padded_last_batch(tmp_path) -> None:
    inputs: dict[str, Any] = {"model": scratch(**BERT, **DRY), "packed": packed_classes(tmp_path / "packed", rows=20)}
    plain = run_stage(traced_and_trained, TrainConfig(**SETTINGS), tmp_path / "plain", **inputs)
    configs = [TrainConfig(**SETTINGS, devices=2, **sharding) for sharding in SHARDINGS]
    for found in run_in_turn(configs, tmp_path / "ranks", **inputs):
        check(found, plain)
        assert found.curve("eval_accuracy") == pytest.approx(plain.curve("eval_accuracy"), abs=1e-5)
