"""Any layout gives the losses of one plain device: to 1e-5 in fp32, parameters within 0.1 x learning rate x steps.

Four virtual devices, all layouts of an engine in one process: one with everything in the quick tests, a pairwise choice in the
slow ones, the whole product in the nightly ones.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tests.training.layout.coverage import all_of, pairwise
from tests.training.parity import agree
from tests.training.run_stage import Result, run_in_turn, run_stage, traced_and_trained
from tests.training.toys import BERT, DRY, LLAMA, packed_classes, packed_lm, scratch
from trnflow.tasks.train import TrainConfig
from trnflow.tasks.training.checkpoint.shards import Reader

LEARNING_RATE, STEPS, DEVICES = 1e-2, 4, 4
COMMON: dict[str, Any] = {"global_batch": 8, "epochs": 1, "learning_rate": LEARNING_RATE, "log_every": 1}
SETTINGS: dict[str, list[Any]] = {
    "tensor_parallel_size": [2, 1, 4],
    "zero1": [True, False],
    "sequence_parallel": [True, False],
    "remat": [2, False],
    "accumulation": [2, 1],
}


def sensible(layout: dict[str, Any]) -> bool:
    return layout["tensor_parallel_size"] > 1 or not layout["sequence_parallel"]


LAYOUTS = pairwise(all_of(SETTINGS, sensible))
OTHERS = [one for one in all_of({**SETTINGS, "remat": [2, True, False]}, sensible) if one not in LAYOUTS]
QUICK = {"tensor_parallel_size": 2, "zero1": True, "sequence_parallel": True, "remat": 2, "accumulation": 2}
AT_ONCE = 10  # layouts a process, of the nightly ones


def config_of(layout: dict[str, Any]) -> TrainConfig:
    """accumulation: forward passes an update; more than one takes a smaller `micro_batch`."""
    fields = {name: value for name, value in layout.items() if name != "accumulation"}
    share = COMMON["global_batch"] * layout["tensor_parallel_size"] // DEVICES
    return TrainConfig(**COMMON, **fields, devices=DEVICES, micro_batch=share // layout["accumulation"])


def name_of(layout: dict[str, Any]) -> str:
    model = layout["tensor_parallel_size"]
    options = [f"{name}={value}" for name, value in layout.items() if value not in (1, False) or value is True]
    return " ".join([f"{DEVICES // model}x{model}", *(text for text in options if "size" not in text)])


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Result:
    return trained(tmp_path_factory.mktemp("plain"), TrainConfig(engine="native", **COMMON))[0]


@pytest.fixture(scope="module")
def chosen(tmp_path_factory):
    """A layout's result; its whole group is trained when the first of it is asked for."""

    slow = [layout for layout in LAYOUTS if layout != QUICK]
    nightly = [OTHERS[start : start + AT_ONCE] for start in range(0, len(OTHERS), AT_ONCE)]
    groups = [[QUICK], slow, *nightly]

    @cache
    def results(number: int) -> list[Result]:
        return trained(tmp_path_factory.mktemp("mesh"), *map(config_of, groups[number]))

    def find(layout: dict[str, Any]) -> Result:
        number = next(number for number, layouts in enumerate(groups) if layout in layouts)
        return results(number)[groups[number].index(layout)]

    return find


def trained(folder: Path, *configs: TrainConfig) -> list[Result]:
    packed = packed_lm(folder / "packed", rows=STEPS * 8)
    return run_in_turn(configs, folder / "run", model=scratch(**LLAMA), packed=packed)


def check(found: Result, plain: Result) -> None:
    agree(found, plain, weights=0.1 * LEARNING_RATE * STEPS)


def test_every_pair_of_settings_meets() -> None:
    assert len(LAYOUTS) == 8 and QUICK in LAYOUTS
    for one, other in combinations(SETTINGS, 2):
        met = {(layout[one], layout[other]) for layout in LAYOUTS}
        assert met == {(layout[one], layout[other]) for layout in all_of(SETTINGS, sensible)}, (one, other)


@pytest.mark.xla
@pytest.mark.parametrize(
    "layout",
    [pytest.param(one, marks=pytest.mark.process if one == QUICK else pytest.mark.slow) for one in LAYOUTS],
    ids=name_of,
)
def test_layouts_agree(layout: dict[str, Any], chosen, plain) -> None:
    found = chosen(layout)
    check(found, plain)
    # one graph evaluates; a step has one, or one that accumulates and one that updates; some are those of the layout before
    assert 0 < found.figures["compiled_graphs"] <= 1 + layout["accumulation"]
    files = [shard.name for shard in found.artifact.path.glob("shard-*")]
    assert len(files) == layout["tensor_parallel_size"], "a shard file for each part of a split tensor"


@pytest.mark.xla
@pytest.mark.nightly
@pytest.mark.parametrize("layout", OTHERS, ids=name_of)
def test_all_other_layouts_agree(layout: dict[str, Any], chosen, plain) -> None:
    check(chosen(layout), plain)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({}, marks=pytest.mark.xla),
        pytest.param({"micro_batch": 2, "remat": True}, marks=pytest.mark.xla),
        pytest.param({"devices": 2, "tensor_parallel_size": 2}, marks=pytest.mark.xla),
        pytest.param({"devices": 8, "tensor_parallel_size": 2, "zero1": True}, marks=pytest.mark.xla),
        {"engine": "native", "micro_batch": 2, "remat": True},
    ],
    ids=str,
)
def test_other_numbers_of_devices_agree(fields: dict[str, Any], plain, tmp_path) -> None:
    check(trained(tmp_path, TrainConfig(**COMMON, **fields))[0], plain)


@pytest.mark.xla
@pytest.mark.nightly
def test_bfloat16_stays_close_to_float32(tmp_path, plain) -> None:
    for layout in ({"engine": "native"}, {"devices": 4, "tensor_parallel_size": 2, "zero1": True}):
        found = trained(tmp_path / str(len(layout)), TrainConfig(**COMMON, **layout, dtype="bfloat16"))[0]
        assert found.curve("loss") == pytest.approx(plain.curve("loss"), abs=0.05)
        assert {str(Reader(found.artifact.path).tensor(name).dtype) for name in Reader(found.artifact.path).names} == {
            "torch.float32"
        }


@pytest.mark.xla
@pytest.mark.nightly
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


@pytest.mark.xla
@pytest.mark.nightly
def test_remat_repeats_the_dropout(tmp_path) -> None:
    packed = packed_classes(tmp_path / "packed", rows=20)
    for engine in ("native", "xla"):
        configs = [TrainConfig(engine=engine, **COMMON, remat=remat) for remat in (False, True, 2)]
        found = run_in_turn(configs, tmp_path / engine, model=scratch(**BERT), packed=packed)
        for other in found[1:]:
            assert other.curve("loss") == pytest.approx(found[0].curve("loss"), abs=1e-5), engine
