"""Settings of training that do not fit together, and what follows from those that do."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from pydantic import ValidationError

from tests.training.toys import BERT, scratch
from trnflow.tasks.artifact import Artifact
from trnflow.tasks.config import graph_params, keyed_params
from trnflow.tasks.stage import stage_of
from trnflow.tasks.train import TrainConfig, environ, train

NEURON: dict[str, Any] = {"device": "neuron", "devices": 2}
EACH: dict[str, Any] = {**NEURON, "xla_processes": "per_device"}
TWO: dict[str, Any] = {"engine": "native", "devices": 2}


def test_fsdp_needs_replicas_and_not_only_devices() -> None:
    with pytest.raises(ValidationError, match="the data axis, which has one device here"):
        TrainConfig(engine="native", fsdp=True, devices=2, tensor_parallel_size=2)
    assert TrainConfig(engine="native", fsdp=True, devices=4, tensor_parallel_size=2).data_parallel == 2


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_weights_are_rounded_at_random_in_bfloat16_alone(dtype: str) -> None:
    with pytest.raises(ValidationError, match=f"dtype is {dtype}: set dtype=bfloat16"):
        TrainConfig.model_validate({"engine": "native", "stochastic_rounding": True, "dtype": dtype})
    assert not TrainConfig(engine="native", stochastic_rounding=True, dtype="bfloat16").keeps_masters


def test_lora_that_is_null_has_the_key_of_lora_with_its_defaults() -> None:
    plain, null, written = (
        TrainConfig.model_validate({"engine": "native", "method": "lora", **more})
        for more in ({}, {"lora": None}, {"lora": {}})
    )
    assert plain == null == written and null.lora is not None


def test_the_order_of_rates_is_in_the_key_because_the_first_that_fits_counts() -> None:
    rates = {"layers": 1e-3, "layers.0": 1e-4}
    keyed = [
        keyed_params(TrainConfig(engine="native", learning_rate_mapping=each))
        for each in (rates, dict(rates), dict(reversed(rates.items())))
    ]
    assert keyed[0] == keyed[1] != keyed[2]


@pytest.mark.parametrize(
    ("share", "objective", "is_refused"), [(0.5, "dpo", True), (0.49, "dpo", False), (0.5, "sft", False)]
)
def test_half_of_the_pairs_can_t_be_the_wrong_way_round(share: float, objective: str, is_refused: bool) -> None:
    robust = {"loss_type": "robust"} if objective == "dpo" else {}
    with pytest.raises(ValueError, match="must be below 0.5") if is_refused else nullcontext():
        TrainConfig(objective=objective, label_smoothing=share, **robust)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"devices": 3, "tensor_parallel_size": 2}, r"devices \(3\) must be a multiple of tensor_parallel_size \(2\)"),
        ({"global_batch": 10, "micro_batch": 4}, "global_batch .10. must be a multiple of micro_batch x data parallel"),
        ({"global_batch": 6, "devices": 4}, r"1 x 4 = 4"),
        ({"sequence_parallel": True}, "set tensor_parallel_size > 1"),
        ({"engine": "native", "devices": 2, "tensor_parallel_size": 2, "compile": True}, "compile is for whole layers"),
        ({"engine": "native", "devices": 2, "global_batch": 5}, r"1 x 2 = 2"),
        ({"devices": 2, "fsdp": True}, "fsdp is for engine native"),
        ({"engine": "native", "devices": 2, "fsdp": True, "zero1": True}, "set zero1=false"),
        ({"engine": "native", "devices": 2, "tensor_parallel_size": 2, "fsdp": True}, "shards over the data axis"),
        ({"engine": "native", "devices": 4, "dp_replicate_size": 2}, "set fsdp=true"),
        ({"engine": "native", "devices": 4, "dp_replicate_size": 4, "fsdp": True}, "leave two or more for each copy"),
        ({"device": "cuda"}, "set engine=native"),
        ({"xla_processes": "per_device", "devices": 2}, "XLA's CPU client does not connect processes"),
        ({**EACH, "engine": "native", "device": "cpu"}, "engine native always has one process a device"),
        ({**EACH, "tensor_parallel_size": 2}, "data parallel only, .* set tensor_parallel_size=1"),
        ({"device": "neuron", "devices": 2, "tensor_parallel_size": 2}, "experimental there: .* xla_processes=one"),
        (
            {**NEURON, "dtype": "bfloat16", "stochastic_rounding": True},
            "the default on device neuron.* xla_processes=one",
        ),
        ({**NEURON, "zero1": True, "optimizer": "adafactor"}, "the default on device neuron.* xla_processes=one"),
        ({**NEURON, "compiler_flags": ["model-type=transformer"]}, "'model-type=transformer' is no flag"),
        ({**NEURON, "compiler_flags": ["--cache_dir=/tmp"]}, "--cache_dir only says where files go"),
        ({"engine": "native", "compiler_flags": ["-O1"]}, "compiler_flags is for engine xla"),
        ({**EACH, "dtype": "bfloat16", "stochastic_rounding": True}, "copies of a weight would differ: .* zero1=true"),
        ({**EACH, "zero1": True, "optimizer": "adafactor"}, "splits AdamW's state; .* zero1=false"),
        ({"compile": True}, "for engine native"),
        ({"dtype": "float16"}, "dtype=float16 is for engine native"),
        ({"stochastic_rounding": True}, "dtype is float32: set dtype=bfloat16, or stochastic_rounding=false"),
        ({"learning_rate": 0}, "greater than 0"),
        ({"epochs": 0}, "greater than 0"),
        ({"remat": -1}, "greater than 0"),
        ({**TWO, "optimizer": "adamw_8bit", "zero1": True}, "adamw_8bit keeps moments of whole .*, and zero1 is set"),
        ({**TWO, "optimizer": "adamw_8bit", "fsdp": True}, "adamw_8bit keeps moments of whole .*, and fsdp is set"),
        ({**TWO, "optimizer": "adamw_8bit", "tensor_parallel_size": 2}, "whole .*, and tensor_parallel_size is set"),
        ({"optimizer": "adamw_8bit"}, "optimizer=adamw_8bit is for engine native"),
        (
            {**TWO, "method": "lora", "lora": {"use_dora": True}, "tensor_parallel_size": 2},
            "use_dora measures whole rows",
        ),
        ({"engine": "native", "compile_cache": True}, "set compile=true"),
        ({**NEURON, "loss": "mine:loss"}, "loss is for device cpu and cuda"),
        ({"engine": "native", "attention": "varlen"}, "attention=varlen is for device cuda with dtype=bfloat16"),
        ({"tensor_parallel_rules": {"a.*": "diagonal"}}, r"'diagonal' of a\.\* is not a style; the styles are colwise"),
    ],
)
def test_a_config_that_cannot_be_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        TrainConfig(**fields)


def test_the_ranks_of_engine_native_share_the_threads() -> None:
    described = stage_of(train)
    assert described.ranks(TrainConfig(engine="native", devices=64, global_batch=64)) == 64
    assert described.ranks(TrainConfig(devices=4)) == 1
    assert described.ranks(TrainConfig(**EACH)) == 2
    assert TrainConfig(engine="native", devices=64, global_batch=64).resolved_threads >= 1
    assert TrainConfig(engine="native", devices=2, threads=3).resolved_threads == 3


def test_each_of_several_xla_processes_takes_the_core_of_its_rank() -> None:
    """torch_xla gives it that; of one process for all it must be told how many."""
    assert environ(TrainConfig(**NEURON, xla_processes="one"))["NEURON_RT_NUM_CORES"] == "2"
    assert "NEURON_RT_NUM_CORES" not in environ(TrainConfig(**EACH))
    assert environ(TrainConfig(**EACH))["PJRT_DEVICE"] == "NEURON"


def test_on_neuron_a_process_a_core_is_the_default_and_either_spelling_is_one_key() -> None:
    """AWS's documented way there; everywhere else one process drives all devices, as before."""
    assert TrainConfig(**NEURON) == TrainConfig(**EACH) != TrainConfig(**NEURON, xla_processes="one")
    assert keyed_params(TrainConfig(**NEURON))["xla_processes"] == "per_device"
    assert graph_params(TrainConfig(**NEURON)) == graph_params(TrainConfig(**EACH))
    for elsewhere in ({}, {"devices": 2, "tensor_parallel_size": 2}, {"engine": "native"}):
        assert TrainConfig(**elsewhere) == TrainConfig(**elsewhere, xla_processes="one")
    assert TrainConfig.model_validate(TrainConfig(**NEURON).model_dump(mode="json")) == TrainConfig(**EACH)


def test_compiler_flags_are_keyed_and_follow_those_of_the_environment(monkeypatch) -> None:
    monkeypatch.setenv("NEURON_CC_FLAGS", "-O2")
    flags = ["--model-type=transformer", "--enable-saturate-infinity"]
    asked = TrainConfig(**NEURON, compiler_flags=flags)
    assert environ(asked)["NEURON_CC_FLAGS"] == "-O2 --model-type=transformer --enable-saturate-infinity"
    assert graph_params(asked)["compiler_flags"] == keyed_params(asked)["compiler_flags"] == flags
    assert "NEURON_CC_FLAGS" not in environ(TrainConfig(**NEURON))


def test_batches_follow_from_the_layout() -> None:
    config = TrainConfig(devices=8, tensor_parallel_size=2, global_batch=64, micro_batch=4)
    assert (config.data_parallel, config.micro_rows, config.accumulation) == (4, 16, 4)
    assert TrainConfig(devices=4, global_batch=64).accumulation == 1


def test_the_key_leaves_out_what_cannot_change_the_result() -> None:
    described = stage_of(train)
    unkeyed = {"log_every": 1, "checkpoint_every": 7, "keep_checkpoints": 9, "allow_recompile": True}
    unkeyed["collective_timeout_seconds"] = 9
    assert described.params(TrainConfig(**unkeyed)) == described.params(TrainConfig())
    assert described.accel(TrainConfig(threads=1)) != described.accel(TrainConfig(threads=2))
    assert TrainConfig().resolved_threads >= 1 and "threads" not in described.params(TrainConfig())
    packed = Artifact("sha256:1", "packed", {}, ())
    keyed = described.inputs(TrainConfig(), {"model": scratch(**BERT), "packed": packed})
    assert keyed == {"model": {"config": scratch(**BERT).identity["config"], "weights": None}, "packed": "sha256:1"}
