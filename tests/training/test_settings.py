"""Settings of training that do not fit together."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from pydantic import ValidationError

from trnflow.tasks.config import keyed_params
from trnflow.tasks.train import TrainConfig


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
