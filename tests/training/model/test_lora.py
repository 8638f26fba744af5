"""Which layers LoRA chooses and where its matrices lie, from names alone."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trnflow.tasks.errors import ModelError
from trnflow.tasks.train import TrainConfig
from trnflow.tasks.training.model.lora import (
    BASE,
    STYLES_BELOW,
    A,
    B,
    adapted_rules,
    adapter_name,
    base_layer,
    check_rank,
    matching_layers,
    original_base,
    scaling,
    target_modules,
    values_by_layer,
)
from trnflow.tasks.training.model.quantised import _check_share
from trnflow.tasks.training.partition_specs import STYLES, Mesh, parameter_specs
from trnflow.tasks.training.settings.lora import LoraConfig

LAYERS = [f"model.layers.{n}.{part}" for n in (0, 1) for part in ("attn.q_proj", "attn.o_proj", "mlp.up_proj")]
RULES = {"model.layers.*.attn.q_proj": "colwise", "model.layers.*.attn.o_proj": "rowwise", "lm_head": "colwise_rep"}


@pytest.mark.parametrize(
    ("targets", "found"),
    [
        (["q_proj"], [LAYERS[0], LAYERS[3]]),
        (["up_proj", "q_proj"], [LAYERS[0], LAYERS[2], LAYERS[3], LAYERS[5]]),
        (["layers.1.attn.*"], [LAYERS[3], LAYERS[4]]),
        ([LAYERS[4]], [LAYERS[4]]),
        (["layers.*.mlp.up_proj", "1.mlp.up_proj"], [LAYERS[2], LAYERS[5]]),
    ],
)
def test_targets_name_layers_by_their_last_parts(targets: list[str], found: list[str]) -> None:
    assert matching_layers(targets, LAYERS, "Toy") == found


@pytest.mark.parametrize(
    ("target", "fix"),
    [
        ("qproj", "use q_proj or "),
        ("attn.oproj", "use o_proj or "),
        ("attn", "name some of o_proj, q_proj, up_proj, or set it to all-linear"),
    ],
)
def test_a_target_that_names_nothing_is_refused_with_the_nearest(target: str, fix: str) -> None:
    with pytest.raises(ModelError, match=f"train.lora.targets: {target} names no linear layer of Toy") as caught:
        matching_layers(["q_proj", target], LAYERS, "Toy")
    assert caught.value.fix.startswith(fix)


def test_an_update_is_smaller_than_its_layer() -> None:
    check_rank({"a": 8}, {"a": (8, 32)})
    with pytest.raises(ModelError, match="train.lora.rank is 9, and a has 32 inputs and 8 outputs"):
        check_rank({"a": 9}, {"a": (8, 32)})


@given(st.sets(st.sampled_from([*LAYERS, "pooler.q_proj", "q_proj"]), min_size=1))
def test_a_brief_list_names_the_same_layers_to_peft(wanted: set[str]) -> None:
    modules = [*LAYERS, "pooler.q_proj", "q_proj", "model", "model.layers"]
    names = target_modules(wanted, modules)

    def as_peft_matches(name: str) -> bool:
        return any(name == target or name.endswith(f".{target}") for target in names)

    assert {name for name in modules if as_peft_matches(name)} >= wanted
    if (
        "q_proj" not in wanted
    ):  # peft has no way to name pooler.q_proj without q_proj's being its suffix, nor the other way round
        assert {name for name in modules if as_peft_matches(name)} == wanted


def test_published_names_are_those_of_peft() -> None:
    assert adapter_name(f"{LAYERS[0]}{A}.weight") == f"base_model.model.{LAYERS[0]}.lora_A.weight"
    assert adapter_name("classifier.out_proj.bias") == "base_model.model.classifier.out_proj.bias"
    assert base_layer(LAYERS[0] + BASE) == base_layer(LAYERS[0] + B) == base_layer(LAYERS[0]) == LAYERS[0]


@pytest.mark.parametrize("rslora", [False, True])
def test_an_adapter_of_twice_the_rank_updates_as_much(rslora: bool) -> None:
    """alpha / rank, or alpha / sqrt(rank), of each layer as before: its trained matrices and the first ones side by side."""
    patterns = {"rank_pattern": {LAYERS[1]: 4}, "alpha_pattern": {LAYERS[1]: 24}}
    own = {"r": 8, "lora_alpha": 16, "use_rslora": rslora, "init_lora_weights": "pissa", **patterns}
    grown = original_base(own)
    assert (grown["r"], grown["rank_pattern"]) == (16, {LAYERS[1]: 8})
    for layer, rank, alpha in ((LAYERS[0], 8, 16), (LAYERS[1], 4, 24)):
        wanted = alpha / (rank**0.5 if rslora else rank)
        assert scaling(own, layer, rank) == pytest.approx(wanted)
        assert scaling(grown, layer, 2 * rank) == pytest.approx(wanted)


def test_matrices_are_split_as_their_layer_is() -> None:
    """By columns: B makes the parts of the output, A is whole. By rows: A reads the parts of the input, B is whole."""
    sizes = {BASE: (32, 48), A: (4, 48), B: (32, 4)}
    layers = [LAYERS[0], LAYERS[1], LAYERS[2], "lm_head"]
    shapes = {f"{layer}{part}.weight": size for layer in layers for part, size in sizes.items()}
    shapes[f"{LAYERS[1]}{BASE}.bias"] = (32,)
    specs = parameter_specs(shapes, adapted_rules(RULES), Mesh(1, 2), "Toy")
    column = {BASE: ("model", None), A: (None, None), B: ("model", None)}
    row = {BASE: (None, "model"), A: (None, "model"), B: (None, None)}
    whole = dict.fromkeys(sizes, (None, None))
    for layer, expected in zip(layers, [column, row, whole, column], strict=True):
        assert {part: specs[f"{layer}{part}.weight"] for part in sizes} == expected, layer
    assert specs[f"{LAYERS[1]}{BASE}.bias"] == (None,)


def test_every_style_has_its_matrices_and_a_plan_without_lora_stays() -> None:
    assert STYLES_BELOW.keys() == STYLES.keys()
    shapes = {"model.layers.0.attn.q_proj.weight": (32, 48), "lm_head.weight": (64, 48)}
    assert parameter_specs(shapes, adapted_rules(RULES), Mesh(1, 2), "Toy") == parameter_specs(
        shapes, RULES, Mesh(1, 2), "Toy"
    )


def test_lora_without_settings_is_lora_with_the_defaults() -> None:
    assert TrainConfig(method="lora") == TrainConfig(method="lora", lora=LoraConfig())
    assert TrainConfig.model_validate(TrainConfig(method="lora").model_dump(mode="json")) == TrainConfig(method="lora")
    assert TrainConfig().lora is None


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            {"method": "lora", "tensor_parallel_size": 2, "devices": 2, "lora": {"use_dora": True}},
            "lora.use_dora measures whole rows",
        ),
        (
            {"method": "lora", "lora": {"use_dora": True, "base_dtype": "nf4"}},
            "lora.use_dora computes with the base's exact weights",
        ),
        (
            {"method": "lora", "lora": {"init_lora_weights": "olora", "base_dtype": "int8"}},
            "lora.base_dtype=int8 rounds them",
        ),
        (
            {"method": "lora", "lora": {"init_lora_weights": "pissa", "use_rslora": True, "rank_pattern": {"q": 2}}},
            "which peft can't scale with use_rslora and patterns",
        ),
        ({"lora": {}}, "lora is set, and method is full: set method=lora, or lora=null"),
        ({"method": "head", "lora": {"rank": 4}}, "lora is set, and method is head"),
        ({"method": "lora", "lora": {"rank": 0}}, "greater than 0"),
        ({"method": "lora", "lora": {"loraplus_lr_ratio": 0}}, "greater than 0"),
        ({"ema_decay": 1.0}, "less than 1"),
        ({"ema_decay": 0.9, "dtype": "bfloat16", "stochastic_rounding": True}, "ema_decay averages fp32 weights"),
        (
            {"ema_decay": 0.9, "engine": "xla", "device": "neuron", "zero1": True, "devices": 2},
            "ema_decay with zero1 is for one",
        ),
        ({"method": "lora", "lora": {"dropout": 1.0}}, "less than 1"),
        ({"method": "lora", "lora": {"targets": []}}, "at least 1 item"),
        ({"method": "lora", "lora": {"targets": "q_proj"}}, r"write a list, such as \[q_proj\], or all-linear"),
        ({"method": "lora", "lora": {"r": 8}}, "Extra inputs are not permitted"),
        ({"method": "qlora"}, "'full', 'lora' or 'head'"),
        ({"tensor_parallel_rules": {"a": "shared"}}, "'shared' of a is not a style"),
    ],
)
def test_settings_that_can_not_be_are_refused(fields: dict, text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        TrainConfig(**fields)


@pytest.mark.parametrize(
    ("fields", "changes", "reads"),
    [
        ({}, False, False),
        ({"init_lora_weights": "gaussian"}, False, False),
        ({"init_lora_weights": "pissa"}, True, True),
        ({"use_dora": True}, False, True),
        ({"base_dtype": "int8"}, False, True),
    ],
)
def test_what_is_made_of_the_base_reads_it_whole(fields: dict[str, Any], changes: bool, reads: bool) -> None:
    lora = LoraConfig(**fields)
    assert (lora.changes_base, lora.reads_base) == (changes, reads)


@pytest.mark.parametrize(("columns", "fine"), [(11, True), (12, False)])
def test_a_tenth_of_the_weights_may_stay_as_they_are(columns: int, fine: bool) -> None:
    """Of 1,110 numbers 110 are 9.9 %, of 1,120 120 are 10.7 %."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = torch.nn.Linear(10, 100, bias=False)
            self.experts = torch.nn.Parameter(torch.zeros(10, columns))

        def get_output_embeddings(self) -> None: ...

    with nullcontext() if fine else pytest.raises(ModelError, match="such as experts"):
        _check_share(Model(), ["inside"], "int8", ())


def test_the_first_pattern_that_fits_counts_and_one_without_effect_is_refused() -> None:
    def values(patterns: dict[str, int]) -> dict[str, int]:
        return values_by_layer(patterns, LAYERS, "Model", "train.lora.rank_pattern")

    assert values({"0.attn.q_proj": 2, "q_proj": 4}) == {LAYERS[0]: 2, LAYERS[3]: 4}
    assert values({"q_proj": 4, "0.attn.q_proj": 4}) == {LAYERS[0]: 4, LAYERS[3]: 4}, "the same value: harmless"
    with pytest.raises(ModelError, match=r"all that 0\.attn\.q_proj names has another value by a pattern before it"):
        values({"q_proj": 4, "0.attn.q_proj": 2})
    with pytest.raises(ModelError, match="another value by a pattern before it"):
        values({"q_proj": 4, "o_proj": 2, "0.attn.*": 2})
