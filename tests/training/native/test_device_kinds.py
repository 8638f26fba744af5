"""Training on another device than the processor, by a stand-in: no chip is involved."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.run_stage import Result, run_stage, traced_and_trained
from tests.training.toys import LLAMA, packed_lm, scratch
from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.errors import MissingDependency, ModelError
from trnflow.tasks.stage import Workdir, stage
from trnflow.tasks.train import TrainConfig, ranks
from trnflow.tasks.train import environ as train_environ
from trnflow.tasks.training.devices import check_device, check_torch_neuron

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
