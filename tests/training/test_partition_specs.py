"""From a model's tp_plan to the layout of its parameters, without a device."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnflow.tasks.errors import ModelError
from trnflow.tasks.training.partition_specs import STYLES, Mesh, check_heads, parameter_specs, state_spec

PLAN = {
    "model.layers.*.self_attn.q_proj": "colwise",
    "model.layers.*.self_attn.o_proj": "rowwise",
    "model.embed_tokens": "embedding_rowwise",
    "lm_head": "colwise_gather_output",
}
SHAPES = {
    "model.embed_tokens.weight": (64, 32),
    "model.layers.0.self_attn.q_proj.weight": (32, 32),
    "model.layers.0.self_attn.q_proj.bias": (32,),
    "model.layers.11.self_attn.o_proj.weight": (32, 32),
    "model.layers.11.self_attn.o_proj.bias": (32,),
    "model.norm.weight": (32,),
    "lm_head.weight": (63, 32),
}


def test_styles_become_specs() -> None:
    assert parameter_specs(SHAPES, PLAN, Mesh(2, 2), "Toy") == {
        "model.embed_tokens.weight": ("model", None),
        "model.layers.0.self_attn.q_proj.weight": ("model", None),
        "model.layers.0.self_attn.q_proj.bias": ("model",),
        "model.layers.11.self_attn.o_proj.weight": (None, "model"),
        "model.layers.11.self_attn.o_proj.bias": (None,),
        "model.norm.weight": (None,),
        "lm_head.weight": (None, None),  # 63 entries: replicated
    }


def test_without_a_model_axis_nothing_is_split() -> None:
    assert set(parameter_specs(SHAPES, {}, Mesh(4, 1), "Toy").values()) == {(None, None), (None,)}


@pytest.mark.parametrize(
    ("plan", "mesh", "text"),
    [
        ({}, Mesh(1, 2), "Toy has no tp_plan, and no rules are known"),
        ({**PLAN, "model.norm": "diagonal"}, Mesh(1, 2), "the style 'diagonal' for model.norm"),
        (PLAN, Mesh(1, 3), "is 32, which 3 tensor parallel devices do not divide"),
    ],
)
def test_what_does_not_fit_is_refused(plan: dict[str, str], mesh: Mesh, text: str) -> None:
    with pytest.raises(ModelError, match=text) as caught:
        parameter_specs(SHAPES, plan, mesh, "Toy")
    assert "tensor_parallel_size" in caught.value.fix


@pytest.mark.parametrize(
    ("fields", "size", "text"),
    [
        ({"num_attention_heads": 12}, 8, r"12 heads \(num_attention_heads\), which 8 .* do not divide"),
        ({"n_heads": 6}, 4, r"6 heads \(n_heads\)"),
        ({"num_attention_heads": 32, "num_key_value_heads": 4}, 8, r"4 heads \(num_key_value_heads\)"),
    ],
)
def test_heads_are_computed_whole(fields: dict[str, int], size: int, text: str) -> None:
    with pytest.raises(ModelError, match=text):
        check_heads(fields, size)
    check_heads(fields, 2)
    check_heads({}, size)


@given(
    shape=st.lists(st.sampled_from([1, 3, 4, 8, 12]), min_size=1, max_size=3).map(tuple),
    style=st.sampled_from(sorted(STYLES)),
    zero1=st.booleans(),
)
def test_state_is_split_where_it_can_be(shape: tuple[int, ...], style: str, zero1: bool) -> None:
    mesh = Mesh(4, 1)
    spec = (None,) * len(shape)
    found = state_spec(shape, spec, mesh, zero1)
    assert found.count("data") == (1 if zero1 and any(size % 4 == 0 for size in shape) else 0)
    assert all(axis is None or size % 4 == 0 for axis, size in zip(found, shape, strict=True))


def test_state_keeps_the_parameter_s_axis() -> None:
    assert state_spec((32, 32), ("model", None), Mesh(2, 2), True) == ("model", "data")
    assert state_spec((32, 32), (None, "model"), Mesh(2, 2), True) == ("data", "model")
    assert state_spec((32, 32), ("model", None), Mesh(2, 2), False) == ("model", None)
