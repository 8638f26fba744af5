"""Ranges and choices of a sweep: what is understood, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from trnflow.flows.sweeps.space import Dimension, combinations, override, parse, separate
from trnflow.tasks.errors import ConfigError


def of(**written: Any) -> tuple[Dimension, ...]:
    return parse({name.replace("__", "."): value for name, value in written.items()}, lambda name, value: None)


def test_ranges_and_choices_are_told_from_overrides() -> None:
    varied, fixed = separate(
        [
            "train.learning_rate=1e-5..1e-4:log", "train.lora.rank=4,8,16", "train.max_steps=40", "data.source=../rows",
            "data.text=[a, b]", "format.template='a, b'", "on=cpu", "model.source='a,b',c", "train.epochs=3..x",
        ]
    )  # fmt: skip
    assert varied == {
        "train.learning_rate": "1e-5..1e-4:log",
        "train.lora.rank": "4,8,16",
        "model.source": "'a,b',c",
        "train.epochs": "3..x",
    }
    assert fixed == [
        "train.max_steps=40",
        "data.source=../rows",
        "data.text=[a, b]",
        "format.template='a, b'",
        "on=cpu",
    ]


def test_a_dimension_has_the_settings_type() -> None:
    rate, rank = of(train__learning_rate="1e-5..1e-4:log", train__lora__rank="4,8,16")
    assert (rate.low, rate.high, rate.log, rate.whole) == (1e-5, 1e-4, True, False)
    assert rank.values == (4, 8, 16)
    (batch,) = of(train__global_batch="16..64:16")
    assert batch.whole
    assert batch.grid() == (16, 32, 48, 64)
    assert of(train__method=["lora", "full"])[0].values == ("lora", "full")
    assert override("train.learning_rate", 1e-5) == "train.learning_rate=1e-05"


def test_a_grid_is_every_combination() -> None:
    assert combinations(of(train__lora__rank="4,8", train__global_batch="1..2")) == [
        {"train.global_batch": batch, "train.lora.rank": rank} for batch in (1, 2) for rank in (4, 8)
    ]


@pytest.mark.parametrize(
    ("setting", "text", "said"),
    [
        ("train.learning_rate", "1e-4..1e-5", "is empty"),
        ("train.learning_rate", "1e-4..1e-4", "is empty.*does not vary is written train.learning_rate=1e-4"),
        ("train.learning_rate", "..", "no number"),
        ("train.learning_rate", "1e-5..abc", "no number"),
        ("train.learning_rate", "0..1:log", "logarithmic"),
        ("train.learning_rate", "0..1:linear", "neither log nor a step"),
        ("train.learning_rate", "0..1:0", "neither log nor a step"),
        ("train.global_batch", "8..16.5", "whole numbers"),
        ("train.method", "1..2", "takes no number"),
        ("train.lora.rank", "4,,8", "is empty"),
        ("train.lora.rank", [], "is empty"),
        ("train.lora.rank", [[1]], "list or mapping"),
        ("export.batch", "1,2", "no influence on training"),
        ("data.source", "https://me:pw@host/a,https://me:pw@host/b", "holds credentials"),
    ],
)
def test_bad_ranges_are_refused(setting: str, text: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        parse({setting: text}, lambda name, value: None)
    assert error.value.fix


def test_a_grid_needs_steps() -> None:
    (rate,) = of(train__learning_rate="1e-5..1e-4")
    with pytest.raises(ConfigError, match="range without steps"):
        rate.grid()


def test_a_grid_of_fractions_has_its_upper_end() -> None:
    """(0.3 - 0.1) / 0.1 is 1.9999999999999998."""
    (warmup,) = of(train__warmup_ratio="0.1..0.3:0.1")
    assert warmup.grid() == pytest.approx((0.1, 0.2, 0.3))
