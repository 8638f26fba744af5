"""Engine xla as one process a device: what it computes, on XLA's CPU client; how it is started, as far as one can without
Trainium. Nothing of it has run there."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.training.run_stage import PROJECT, Result, run_in_turn, run_stage
from tests.training.toys import BERT, DRY, LLAMA, packed_classes, packed_lm, scratch
from tests.training.xla.replicas import ReplicasConfig, joining, met_alone, per_device, replicated
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import CompileError, ModelError
from trnflow.tasks.stage import write_json
from trnflow.tasks.train import TrainConfig
from trnflow.tasks.training.checkpoint.shards import Reader
from trnflow.tasks.training.graphs.neuron_precompile import check_same_graphs, trial_command
from trnflow.tasks.training.shared_types import PARAMETER

pytestmark = pytest.mark.xla

STEPS, LEARNING_RATE = 5, 1e-2
COMMON: dict[str, Any] = {"global_batch": 8, "epochs": 1, "learning_rate": LEARNING_RATE, "log_every": 1}
MODELS: dict[str, Any] = {
    "bert": {**BERT, **DRY, "num_hidden_layers": 1},
    "llama": LLAMA,
}  # its 3 labels are no two halves
HALF, SPOILT = 3, 1  # the steps before which all is saved and read again, and at which an update is refused first


def config(**fields: Any) -> TrainConfig:
    return per_device(**{**COMMON, "devices": 2, **fields})


SPLIT, WHOLE = config(zero1=True, micro_batch=2), config()


def inputs(folder: Path, model: str) -> dict[str, Any]:
    rows = STEPS * COMMON["global_batch"]
    packed = packed_lm(folder, rows=rows) if model == "llama" else packed_classes(folder, rows=rows, lengths=[8])
    return {"model": scratch(**MODELS[model]), "packed": packed}


def together(folder: Path, model: str, *configs: TrainConfig) -> list[Meta]:
    how = ReplicasConfig(configs=configs, devices=configs[0].devices, half=HALF, spoilt=SPOILT)
    return replicated(how, folder / "replicas", **inputs(folder / "packed", model))


def plain(folder: Path, model: str, *configs: TrainConfig) -> list[Result]:
    return run_in_turn(configs, folder / "plain", **inputs(folder / "packed", model))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[Meta]:
    return together(tmp_path_factory.mktemp("pair"), "bert", SPLIT, WHOLE)


def agrees(found: Meta, plain: Result) -> None:
    """A step that was refused, and a state that was saved and read, are no difference."""
    steps = dict(enumerate(found["steps"], start=1))
    assert {n: loss for n, (loss, _, _) in steps.items()} == pytest.approx(plain.curve("loss"), abs=1e-5)
    assert {n: norm for n, (_, norm, _) in steps.items()} == pytest.approx(plain.curve("grad_norm"), rel=1e-4)
    assert found["eval_loss"] == pytest.approx(plain.curve("eval_loss")[STEPS], abs=1e-5)
    mine, other = Reader(found["folder"]), Reader(plain.artifact.path)
    assert set(other.names) < set(mine.names)
    for name in other.names:
        assert (mine.tensor(name) - other.tensor(name)).abs().max() <= 0.1 * LEARNING_RATE * STEPS, name


def test_replicas_train_as_one_device(pair: list[Meta], tmp_path: Path) -> None:
    """With ZeRO-1 and accumulation, and with neither."""
    (alone,) = plain(tmp_path, "bert", TrainConfig(engine="native", **COMMON))
    for found in pair:
        agrees(found, alone)


def test_replicas_run_one_graph(pair: list[Meta]) -> None:
    """Equal hashes, so what one of them compiled serves all."""
    split, whole = pair
    for found, graphs in ((split, {"accumulate", "update", "eval"}), (whole, {"train", "eval"})):
        assert found["hashes"][0].keys() == graphs
        assert found["hashes"][0] == found["hashes"][1]
        assert found["compiled"] == len(graphs)


def test_zero1_holds_its_part_and_sends_each_gradient_once(pair: list[Meta]) -> None:
    split, whole = pair
    names = [name for name in Reader(split["folder"]).names if name.startswith(PARAMETER)]
    sizes = {name: math.prod(Reader(split["folder"]).shape(name)) for name in names}
    odd = 3  # numbers: of the classifier's bias
    assert whole["held"] == [2 * 4 * sum(sizes.values())] * 2  # two moments in fp32
    assert split["held"] == [2 * 4 * ((sum(sizes.values()) - odd) // 2 + odd)] * 2

    sent = split["collectives"]
    assert sent["accumulate"] == []
    assert kinds(sent["eval"]) == ["all-reduce"]
    # by dimension: the classifier's weight [3, 32] is split along its second
    assert kinds(sent["update"]) == [
        *["all-reduce", "reduce-scatter", "reduce-scatter"], "all-reduce", *["all-gather", "all-gather"],
    ]  # fmt: skip
    bias, first, second, totals, *gathered = (numbers(line) for line in sent["update"])
    assert (bias - 1, totals - 1) == (odd, 2)  # with torch_xla's token
    assert first + second == (sum(sizes.values()) - odd) // 2
    assert sum(gathered) == sum(sizes.values()) - odd
    assert kinds(whole["collectives"]["train"]) == ["all-reduce", "all-reduce"]
    assert numbers(whole["collectives"]["train"][0]) - 1 == sum(sizes.values())
    for line in [line for graphs in (split, whole) for some in graphs["collectives"].values() for line in some]:
        assert "replica_groups={}" in line  # all of them


def kinds(lines: list[str]) -> list[str]:
    return [re.findall(r" (all-reduce|reduce-scatter|all-gather)\(", line)[0] for line in lines]


def numbers(line: str) -> int:
    result = re.split(r" (?:all-reduce|reduce-scatter|all-gather)\(", line.partition(" = ")[2])[0]
    return sum(
        math.prod(map(int, filter(None, sizes.split(",")))) for sizes in re.findall(r"[a-z]\d+\[([\d,]*)\]", result)
    )


@pytest.mark.nightly
@pytest.mark.parametrize("devices", [2, 4])
def test_all_combinations_train_as_one_device(devices: int, tmp_path: Path) -> None:
    share = COMMON["global_batch"] // devices
    fields = [{"zero1": zero1, "micro_batch": share // n} for zero1 in (True, False) for n in (1, 2)] + [
        {"remat": True}
    ]
    (alone,) = plain(tmp_path, "llama", TrainConfig(engine="native", **COMMON))
    for found in together(tmp_path, "llama", *[config(devices=devices, **one) for one in fields]):
        agrees(found, alone)


@pytest.mark.nightly
def test_replicas_train_with_adafactor_as_one_device(tmp_path: Path) -> None:
    (alone,) = plain(tmp_path, "bert", TrainConfig(engine="native", **COMMON, optimizer="adafactor"))
    (found,) = together(tmp_path, "bert", config(optimizer="adafactor"))
    agrees(found, alone)


@pytest.mark.nightly
def test_replicas_that_drop_out_differently_run_one_graph(tmp_path: Path) -> None:
    fields = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    packed = packed_classes(tmp_path / "packed", rows=16, lengths=[8])
    how = ReplicasConfig(configs=(config(zero1=True),), devices=2)
    (found,) = replicated(how, tmp_path / "run", model=scratch(**{**MODELS["bert"], **fields}), packed=packed)
    assert found["hashes"][0] == found["hashes"][1] and found["compiled"] == len(found["hashes"][0])


@pytest.mark.nightly
def test_replicas_in_bfloat16_train_as_one_device_that_accumulates_their_shares(tmp_path: Path) -> None:
    """The same products of the same rows, compiled alike, and two gradients summed in fp32. (Of four the sums' order differs, and
    their last bit tips weights in bf16: 3e-5 in the fifth step's loss, so nothing is asked of them here.)"""
    half: dict[str, Any] = {"dtype": "bfloat16"}
    (alone,) = plain(tmp_path, "llama", TrainConfig(**COMMON, **half, micro_batch=4))
    for found in together(tmp_path, "llama", *[config(**half, zero1=zero1) for zero1 in (True, False)]):
        agrees(found, alone)


def test_processes_that_xla_does_not_join_are_refused(tmp_path: Path) -> None:
    """Started as on Trainium; XLA's CPU client knows of no others, and each would have trained a model of its own."""
    refused = r"2 processes train together \(WORLD_SIZE\), and XLA sees 1 devices in all: each would train alone"
    with pytest.raises(ModelError, match=refused) as caught:
        run_stage(joining, ReplicasConfig(configs=(config(),), devices=2), tmp_path / "run")
    assert "set train.devices" in caught.value.fix and "train.xla_processes=one" in caught.value.fix


@pytest.mark.nightly
def test_hosts_speak_beside_the_devices(tmp_path: Path) -> None:
    """Through a group of their own, so that it makes no graph; here one alone."""
    found = run_stage(met_alone, TrainConfig(), tmp_path / "run").artifact.meta
    assert found == {"told": ["a", True, "b", ["c"]], "groups": ["xla", "gloo"]}


@pytest.mark.nightly
def test_the_trial_run_is_started_by_torchrun(tmp_path: Path) -> None:
    """On the CPU both of its processes come as far as XLA's world of one."""
    plain = TrainConfig(device="neuron", devices=2, xla_processes="one")
    assert trial_command(plain, tmp_path) == [
        sys.executable,
        "-m",
        "trnflow.tasks.training.graphs.neuron_precompile",
        str(tmp_path),
    ]
    packed = {"path": str(tmp_path), "kind": "packed", "meta": {}, "digest": ""}
    spec = {"config": config().model_dump(mode="json"), "model": {}, "packed": packed, "graphs": ""}
    write_json(tmp_path / "trial.json", spec)
    command = trial_command(config(), tmp_path / "trial.json")
    env = {"PYTHONPATH": str(PROJECT), "PJRT_DEVICE": "CPU", "PATH": "/usr/bin:/bin", "USE_TORCH_XLA": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode and "XLA sees 1 devices in all" in done.stderr, done.stderr


def test_ranks_that_traced_other_graphs_are_named() -> None:
    graphs = [{"name": "train", "length": 8, "hash": "a"}, {"name": "update", "length": 0, "hash": "b"}]
    assert check_same_graphs([graphs, graphs]) == graphs
    with pytest.raises(CompileError, match="rank 1 traced another graph update of length any"):
        check_same_graphs([graphs, [graphs[0], {**graphs[1], "hash": "c"}]])
