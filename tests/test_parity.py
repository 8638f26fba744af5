"""Any layout gives the losses of one plain device: to 1e-5 in fp32, parameters within 0.1 x learning rate x steps."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tasks.train import TrainConfig
from tasks.training.checkpoint import Reader
from tests.training.run_stage import Result, run_stage, traced_and_trained
from tests.training.toys import BERT, DRY, LLAMA, packed_classes, packed_lm, scratch

LEARNING_RATE, STEPS = 1e-2, 4
EVERYTHING = {"zero1": True, "sequence_parallel": True, "remat": True, "micro_batch": 1}
DEFAULT: dict[str, dict[str, Any]] = {
    "one device": {},
    "4x1 zero1": {"devices": 4, "zero1": True},
    "2x2 everything": {"devices": 4, "tensor_parallel_size": 2, **EVERYTHING},
    "1x4": {"devices": 4, "tensor_parallel_size": 4},
}
SLOW: dict[str, dict[str, Any]] = {
    "one device accumulating": {"micro_batch": 2},
    "one device remat": {"remat": True},
    "4x1": {"devices": 4},
    "4x1 zero1 accumulating": {"devices": 4, "zero1": True, "micro_batch": 1},
    "2x2": {"devices": 4, "tensor_parallel_size": 2},
    "2x2 zero1": {"devices": 4, "tensor_parallel_size": 2, "zero1": True},
    "2x2 sequence parallel": {"devices": 4, "tensor_parallel_size": 2, "sequence_parallel": True},
    "1x2": {"devices": 2, "tensor_parallel_size": 2},
    "8 devices, 4x2": {"devices": 8, "tensor_parallel_size": 2, "zero1": True},
    "native accumulating": {"engine": "native", "micro_batch": 2, "remat": True},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root = tmp_path_factory.mktemp("parity")
    packed = packed_lm(root / "packed", rows=STEPS * 8)

    @cache
    def run(name: str) -> Result:
        layout = {"native": {"engine": "native"}, **DEFAULT, **SLOW}[name]
        config = TrainConfig(global_batch=8, epochs=1, learning_rate=LEARNING_RATE, log_every=1, **layout)
        return run_stage(
            traced_and_trained, config, root / name.replace(" ", "-"), model=scratch(**LLAMA), packed=packed
        )

    return run


def check(found: Result, plain: Result) -> None:
    for name in ("loss", "eval_loss"):
        assert found.curve(name) == pytest.approx(plain.curve(name), abs=1e-5)
    assert found.curve("grad_norm") == pytest.approx(plain.curve("grad_norm"), rel=1e-4)
    one, other = (Reader(Path(result.artifact.path)) for result in (found, plain))
    assert one.names == other.names
    for name in one.names:
        assert (one.tensor(name) - other.tensor(name)).abs().max() <= 0.1 * LEARNING_RATE * STEPS, name


@pytest.mark.parametrize("layout", DEFAULT)
def test_layouts_agree(layout: str, trained) -> None:
    found = trained(layout)
    check(found, trained("native"))
    graphs = 3 if "everything" in layout else 2
    assert found.figures["compiled_graphs"] == graphs


@pytest.mark.slow
@pytest.mark.parametrize("layout", SLOW)
def test_more_layouts_agree(layout: str, trained) -> None:
    check(trained(layout), trained("native"))


def test_shards_are_the_mesh_s(trained) -> None:
    shards = {name: len(list(trained(name).artifact.path.glob("shard-*"))) for name in ("native", "4x1 zero1", "1x4")}
    assert shards == {"native": 1, "4x1 zero1": 1, "1x4": 4}


@pytest.mark.slow
def test_bfloat16_stays_close_to_float32(tmp_path, trained) -> None:
    packed = packed_lm(tmp_path / "packed", rows=STEPS * 8)
    for number, layout in enumerate(({"engine": "native"}, {"devices": 4, "tensor_parallel_size": 2, "zero1": True})):
        config = TrainConfig(
            global_batch=8, epochs=1, learning_rate=LEARNING_RATE, log_every=1, dtype="bfloat16", **layout
        )
        found = run_stage(traced_and_trained, config, tmp_path / str(number), model=scratch(**LLAMA), packed=packed)
        assert found.curve("loss") == pytest.approx(trained("native").curve("loss"), abs=0.05)
        assert {str(Reader(found.artifact.path).tensor(name).dtype) for name in Reader(found.artifact.path).names} == {
            "torch.float32"
        }


@pytest.mark.slow
def test_bert_in_two_lengths_with_a_padded_last_batch(tmp_path) -> None:
    packed = packed_classes(tmp_path / "packed", rows=20)
    results = []
    for number, layout in enumerate(({"engine": "native"}, {}, {"devices": 4, "zero1": True})):
        config = TrainConfig(global_batch=8, epochs=1, learning_rate=1e-2, log_every=1, **layout)
        model = scratch(**BERT, **DRY)
        results.append(run_stage(traced_and_trained, config, tmp_path / str(number), model=model, packed=packed))
    for found in results[1:]:
        for name in ("loss", "eval_loss", "eval_accuracy"):
            assert found.curve(name) == pytest.approx(results[0].curve(name), abs=1e-5)


@pytest.mark.slow
def test_remat_repeats_the_dropout(tmp_path) -> None:
    packed = packed_classes(tmp_path / "packed", rows=20)
    for engine in ("native", "xla"):
        curves = []
        for remat in (False, True):
            config = TrainConfig(engine=engine, global_batch=8, epochs=1, learning_rate=1e-2, log_every=1, remat=remat)
            folder = tmp_path / f"{engine}-{remat}"
            found = run_stage(traced_and_trained, config, folder, model=scratch(**BERT), packed=packed)
            curves.append(found.curve("loss"))
        assert curves[0] == pytest.approx(curves[1], abs=1e-5), engine
