"""What of training's settings and inputs is in the keys of its stages."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.training.toys import BERT, LLAMA, scratch
from trnflow.tasks.artifact import Artifact
from trnflow.tasks.compute_reference import reference_inputs, reference_settings
from trnflow.tasks.config import NOT_KEYED
from trnflow.tasks.consolidate import ConsolidateConfig, consolidate, consolidate_inputs
from trnflow.tasks.precompile import precompile
from trnflow.tasks.stage import stage_of
from trnflow.tasks.train import TrainConfig, train
from trnflow.tasks.training.checkpoint.result import published_settings
from trnflow.tasks.training.optim.optimizer import bytes_8bit

UNKEYED = [
    "allow_overcommit",
    "allow_recompile",
    "checkpoint_every",
    "collective_timeout_seconds",
    "compile_cache",
    "device_memory_gib",
    "keep_checkpoints",
    "log_every",
    "loss",
    "threads",
    "warm_start_from",
]
PACKED = Artifact("sha256:p", "packed", {}, ())


def test_intervals_and_limits_of_a_machine_move_no_key() -> None:
    unkeyed = [name for name, field in TrainConfig.model_fields.items() if NOT_KEYED in field.metadata]
    assert sorted(unkeyed) == UNKEYED
    params, others = stage_of(train).params, {"log_every": 3, "checkpoint_every": 7, "keep_checkpoints": 5}
    assert params(TrainConfig(**others)) == params(TrainConfig()) != params(TrainConfig(eval_every=7))


def test_a_reference_is_that_of_the_weights_or_of_the_seed_that_draws_them() -> None:
    def keyed(seed: int, weights: Any = None, start: str | None = None) -> Any:
        model = scratch(**LLAMA)
        model = replace(model, identity={**model.identity, "weights": weights})
        given: Any = {"model": model, "packed": PACKED}
        if start is not None:
            given["warm_start"] = Artifact(start, "model", {}, ())
        return reference_inputs(TrainConfig(seed=seed), given)

    assert keyed(1) != keyed(2), "the seed draws a model from scratch"
    assert keyed(1, {"files": {}}) == keyed(2, {"files": {}}) != keyed(1, {"files": {"a": "b"}})
    assert keyed(1, start="sha256:a") == keyed(2, start="sha256:a") != keyed(1, start="sha256:b")


def test_validation_rows_are_in_the_key_of_a_classifier_that_they_calibrate() -> None:
    def keyed(digest: str, task: str = "classification", *, calibrate: bool = True) -> Any:
        packed, shards = (Artifact(named, named, {"task": task}, ()) for named in (digest, "shards"))
        given = {"shards": shards, "model": scratch(**BERT), "packed": packed}
        return consolidate_inputs(ConsolidateConfig(calibrate=calibrate), given)

    assert keyed("a") != keyed("b")
    assert keyed("a", calibrate=False) == keyed("b", calibrate=False)
    assert keyed("a", "regression") == keyed("b", "regression")


def test_a_reference_is_of_the_type_in_which_training_holds_the_base() -> None:
    settings = reference_settings(TrainConfig(dtype="bfloat16", learning_rate=0.1))
    assert settings == reference_settings(TrainConfig(dtype="bfloat16")) != reference_settings(TrainConfig())
    quantised = TrainConfig(engine="native", method="lora", lora={"base_dtype": "int8"})
    assert reference_settings(quantised)["base_dtype"] == "int8"
    assert reference_settings(TrainConfig(attention="sdpa")) != reference_settings(TrainConfig())


@pytest.mark.parametrize(
    ("fields", "added"),
    [
        ({"ema_decay": 0.9}, {"ema_decay": 0.9}),
        ({"neftune_noise_alpha": 5.0}, {"neftune_noise_alpha": 5.0}),
        ({"freeze": ["embeddings"]}, {"freeze": ["embeddings"]}),
        ({"log_every": 3, "checkpoint_every": 9, "device": "cuda"}, {}),
    ],
)
def test_the_model_card_says_what_was_trained_and_not_where(fields: dict[str, Any], added: dict[str, Any]) -> None:
    plain, told = (published_settings(TrainConfig(engine="native", **given)) for given in ({}, fields))
    assert {name: value for name, value in told.items() if plain.get(name) != value} == added
    assert {"learning_rate", "epochs", "seed", "warmup_ratio", "global_batch"} <= told.keys()
    assert not {"device", "devices", "log_every"} & told.keys()


@pytest.mark.parametrize(
    ("numbers", "size"), [(4095, 8 * 4095), (4096, 2 * (4096 + 4 * 16)), (4097, 2 * (4097 + 4 * 17))]
)
def test_moments_in_8_bits_begin_where_those_of_bitsandbytes_do(numbers: int, size: int) -> None:
    assert bytes_8bit((numbers,)) == size


def test_rows_are_rounded_to_what_both_the_layout_and_the_device_take() -> None:
    layout: dict[str, Any] = {"engine": "native", "devices": 3, "tensor_parallel_size": 3, "sequence_parallel": True}
    (rows, alone), (_, both) = (TrainConfig(**layout, device=device).shape_unit for device in ("cpu", "cuda"))  # type: ignore[misc]
    assert (rows, alone, both) == (1, 3, 24)


def test_a_model_of_another_architecture_has_another_reference() -> None:
    keyed = [reference_inputs(TrainConfig(), {"model": scratch(**model), "packed": PACKED}) for model in (BERT, LLAMA)]
    assert keyed[0] != keyed[1]


def keys_of(function: Any, config: Any, *givens: dict[str, Any]) -> list[str]:
    return [json.dumps(stage_of(function).inputs(config, given), sort_keys=True) for given in givens]


def test_train_is_keyed_by_rows_weights_start_and_reference_and_not_by_the_tokenizer() -> None:
    model, other = scratch(**LLAMA), Artifact("sha256:q", "packed", {}, ())
    given = {"model": model, "packed": PACKED}

    def with_identity(**changed: Any) -> dict[str, Any]:
        return {**given, "model": replace(model, identity={**model.identity, **changed})}

    plain, tokenizer, *others = keys_of(
        train, TrainConfig(), given, with_identity(tokenizer={"files": {"a": "b"}}),
        with_identity(weights={"files": {"a": "b"}}), {**given, "packed": other}, {**given, "warm_start": other},
        {**given, "reference": other}, {**given, "reference": PACKED}, {**given, "rows": other}, {**given, "texts": other},
    )  # fmt: skip
    assert plain == tokenizer and len({plain, *others}) == 8


def test_graphs_are_keyed_by_shapes_and_with_auto_by_the_memory_of_a_device() -> None:
    shapes = {
        "task": "causal_lm",
        "lengths": [64],
        "vocab_size": 100,
        "pad_id": 0,
        "bos_id": 1,
        "eos_id": 2,
        "labels": None,
    }
    changes: list[dict[str, Any]] = [
        {}, {"lengths": [32, 64]}, {"vocab_size": 101}, {"pad_id": 3}, {"eos_id": 3}, {"new_tokens": [99]}, {"labels": ["a"]},
    ]  # fmt: skip
    givens = [{"model": scratch(**LLAMA), "packed": Artifact("", "packed", {**shapes, **one}, ())} for one in changes]
    assert len({*keys_of(precompile, TrainConfig(), *givens)}) == len(changes)
    accel = stage_of(precompile).accel
    auto, plain = (
        [accel(TrainConfig(engine="native", device_memory_gib=gib, micro_batch=size)) for gib in (8, 16)]
        for size in ("auto", None)
    )
    assert [one["memory_gib"] for one in auto] == [8, 16] and plain[0] == plain[1]


def test_a_published_model_is_keyed_by_what_training_began_with() -> None:
    model, shards = scratch(**LLAMA), Artifact("sha256:s", "checkpoint", {"task": "causal_lm", "settings": {}}, ())
    starts = [Artifact(f"sha256:{letter}", "model", {}, ()) for letter in "ab"]
    weights = replace(model, identity={**model.identity, "weights": {"files": {"a": "b"}}})
    givens = [{"shards": shards, "model": one} for one in (model, weights)]
    givens += [{**givens[0], "warm_start": start} for start in starts]
    assert len({*keys_of(consolidate, ConsolidateConfig(), *givens)}) == 4
