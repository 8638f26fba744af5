"""Training on another device than the processor, by a stand-in: no chip is involved."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.run_stage import Result, run_stage, traced_and_trained
from tests.training.toys import LLAMA, packed_lm, scratch
from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.errors import MissingDependency, ModelError
from trnflow.tasks.stage import Workdir, stage
from trnflow.tasks.system.gpus import Gpu, Usable
from trnflow.tasks.train import TrainConfig, ranks
from trnflow.tasks.train import environ as train_environ
from trnflow.tasks.training import devices
from trnflow.tasks.training.devices import check_device, check_gpu, check_torch_neuron, known_memory

CONFIG: dict[str, Any] = {"engine": "native", "global_batch": 8, "max_steps": 5, "log_every": 1, "learning_rate": 1e-2}


@stage(kind="checkpoint", environ=train_environ, ranks=ranks)
def trained_on_the_stand_in(config: TrainConfig, model: Source, packed: Input, out: Workdir) -> Meta:
    from tests.training.native.stand_in_device import StandInTensor, register

    library = register()
    meta = traced_and_trained(config, model, packed, out)
    del library
    out.figures(operators=StandInTensor.operators)
    return meta


def trained(config: TrainConfig, folder: Path) -> Result:
    packed = packed_lm(folder / "packed", rows=40)
    function = trained_on_the_stand_in if config.device == "neuron" else traced_and_trained
    return run_stage(function, config, folder / config.device, model=scratch(**LLAMA), packed=packed)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    return trained(TrainConfig(**CONFIG), tmp_path_factory.mktemp("plain")).curve("loss")


NEEDS = pytest.mark.skipif(
    "with_keyset" not in inspect.signature(torch.library.Library.fallback).parameters
    or not hasattr(torch.utils.backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch takes no device from Python",
)


@pytest.mark.slow
@NEEDS
@pytest.mark.parametrize("layout", [{}, {"devices": 2, "tensor_parallel_size": 2}], ids=str)
def test_a_stand_in_has_the_losses_of_the_processor(
    layout: dict[str, Any], plain: dict[int, float], tmp_path: Path
) -> None:
    found = trained(TrainConfig(**CONFIG, device="neuron", **layout), tmp_path)
    assert found.curve("loss") == pytest.approx(plain, abs=1e-5) and len(plain) == 5
    assert found.figures["operators"] > 1000


def test_a_device_that_torch_lacks_is_named() -> None:
    config = TrainConfig(**CONFIG, device="neuron")
    with pytest.raises(ModelError, match="train.device is neuron, and torch finds no NeuronCore here"):
        check_device(config)
    with pytest.raises(MissingDependency, match="no installed package adds Neuron to torch"):
        check_torch_neuron(config)
    if not torch.cuda.is_available():
        with pytest.raises(ModelError, match="train.device is cuda, and torch finds no GPU here"):
            check_device(TrainConfig(**CONFIG, device="cuda"))


@pytest.mark.parametrize(("capability", "narrow"), [((7, 5), False), ((8, 0), True), ((9, 0), True)])
def test_a_gpu_before_ampere_is_refused_for_bfloat16_alone(
    capability: tuple[int, int], narrow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch would emulate bfloat16 on a T4, slowly and without a word."""
    for name, value in {"is_available": True, "device_count": 1, "get_device_capability": capability}.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA T4")
    for dtype, fits in (("bfloat16", narrow), ("float16", True), ("float32", True)):
        config = TrainConfig(engine="native", device="cuda", dtype=dtype)
        if fits:
            check_device(config)
        else:
            with pytest.raises(ModelError, match="train.dtype is bfloat16, in which NVIDIA T4 does not compute"):
                check_device(config)
    with pytest.raises(ModelError, match="train.devices is 2, and torch finds 1 GPUs here"):
        check_device(TrainConfig(engine="native", device="cuda", devices=2, global_batch=2))


def test_a_rank_on_the_processor_has_its_share_of_the_machine_s_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "machine_memory", lambda: 64 << 30)
    config = TrainConfig(engine="native", devices=4, global_batch=4)
    assert known_memory(config) == 16 << 30
    assert known_memory(config.model_copy(update={"device_memory_gib": 1.5})) == 3 << 29
    assert known_memory(config.model_copy(update={"device": "cuda"})) is None


def test_gpus_are_those_that_a_stage_s_process_will_see(monkeypatch: pytest.MonkeyPatch) -> None:
    """`launch.environment` wins over this process's variables."""
    card = Gpu("NVIDIA T4", "GPU-1", 16 << 30, (7, 5))

    def usable(environ: Mapping[str, str]) -> Usable:
        shown = environ.get("CUDA_VISIBLE_DEVICES", "0,1,2").split(",")
        return Usable((card,) * len(shown), "") if shown != [""] else Usable(why="CUDA_VISIBLE_DEVICES= hides 3 x T4")

    monkeypatch.setattr(devices, "usable_gpus", usable)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    check_gpu({}, devices=2)
    with pytest.raises(ModelError, match="train.devices is 3, and there are 2 GPUs here"):
        check_gpu({}, devices=3)
    with pytest.raises(ModelError, match="train.devices is 2, and there are 1 GPUs here"):
        check_gpu({"CUDA_VISIBLE_DEVICES": "1"}, devices=2)
    with pytest.raises(ModelError, match="evaluate.device is cuda, and CUDA_VISIBLE_DEVICES= hides 3 x T4"):
        check_gpu({"CUDA_VISIBLE_DEVICES": ""}, "evaluate")
