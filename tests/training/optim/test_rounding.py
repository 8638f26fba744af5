"""fp32 to bf16 by chance: one of the two neighbours, the nearer one more often, and what fits exactly stays."""

from __future__ import annotations

import math
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trnflow.tasks.training.optim.rounding import RandomBits, round_stochastically, store
from trnflow.tasks.training.partition_specs import Mesh, Spec
from trnflow.tasks.training.world import ALONE, World

PATTERNS = st.integers(0, 0xFFFFFFFF)
BITS = st.integers(0, 0xFFFF)
RANGE = 0x7F7F0000  # the pattern of bf16's largest number
CPU = torch.device("cpu")


def as_float(pattern: int) -> torch.Tensor:
    return torch.tensor([struct.unpack("<i", struct.pack("<I", pattern))[0]], dtype=torch.int32).view(torch.float32)


def pattern_of(value: torch.Tensor) -> int:
    return (int(value.view(torch.int16)) & 0xFFFF) << 16


def drawn(*bits: int) -> torch.Tensor:
    return torch.tensor(bits, dtype=torch.int32)


@settings(deadline=None)
@given(pattern=PATTERNS, bits=BITS)
def test_a_number_becomes_one_of_its_neighbours(pattern: int, bits: int) -> None:
    """Of every pattern that fp32 has: denormals, both zeros, infinities and NaN as well."""
    value = as_float(pattern)
    found = round_stochastically(value, drawn(bits))
    if value.isnan():
        assert found.isnan()
    elif pattern & 0x7FFFFFFF > RANGE:
        assert torch.equal(found, value.to(torch.bfloat16))
    else:
        below = pattern & 0xFFFF0000
        assert pattern_of(found) in (below, below + 0x10000 if pattern & 0xFFFF else below)
        assert found.isfinite()


@settings(deadline=None)
@given(high=st.integers(0, 0xFFFF), bits=BITS)
def test_what_bf16_holds_stays_to_the_bit(high: int, bits: int) -> None:
    value = as_float(high << 16)
    found = round_stochastically(value, drawn(bits))
    assert found.isnan() if value.isnan() else pattern_of(found) == high << 16


@settings(deadline=None, max_examples=20)
@given(pattern=st.integers(0, RANGE - 0x10000), sign=st.sampled_from([0, 0x80000000]))
def test_of_all_draws_as_many_go_up_as_the_number_lies_above(pattern: int, sign: int) -> None:
    """Not by a sample: each of the 65,536 draws once. So the mean is the number itself."""
    value = as_float(pattern | sign)
    found = round_stochastically(value.expand(1 << 16), torch.arange(1 << 16, dtype=torch.int32))
    up = (found.view(torch.int16).int() & 0xFFFF) != ((pattern | sign) >> 16)
    assert int(up.sum()) == pattern & 0xFFFF


def test_the_mean_of_many_draws_is_the_number() -> None:
    """Five standard deviations of the mean; the seed is fixed."""
    value = torch.full((1 << 18,), 1 + 0.3 / 128)
    found = round_stochastically(value, RandomBits(3, ALONE, CPU).bits((None,), len(value))).double()
    deviation = math.sqrt(0.3 * 0.7 / len(value)) / 128
    assert found.unique().tolist() == [1, 1 + 1 / 128]
    assert abs(float(found.mean() - value[0].double())) < 5 * deviation


def test_draws_fill_all_sixteen_bits_evenly() -> None:
    bits = RandomBits(3, ALONE, CPU).bits((None,), 1 << 18)
    assert bits.shape == (1 << 18,) and bits.dtype == torch.int32
    for bit in range(16):
        share = float(((bits >> bit) & 1).double().mean())
        assert abs(share - 0.5) < 5 * 0.5 / math.sqrt(1 << 18), bit


def bits_of(rank: int, spec: Spec, seed: int = 1, before: Spec | None = None) -> list[int]:
    draws = RandomBits(seed, World(rank, Mesh(2, 2)), CPU)
    if before is not None:
        draws.bits(before, 7)
    return draws.bits(spec, 5).tolist()


@pytest.mark.parametrize(
    ("spec", "alike"),
    [
        ((None, None), [[0, 1, 2, 3]]),
        (("model", None), [[0, 2], [1, 3]]),
        (("data", None), [[0, 1], [2, 3]]),
        (("model", "data"), [[0], [1], [2], [3]]),
    ],
)
def test_ranks_that_hold_the_same_part_draw_the_same(spec: Spec, alike: list[list[int]]) -> None:
    """Rank 2 x data + model; and what they drew for other parts before does not matter."""
    groups = [{tuple(bits_of(rank, spec)) for rank in ranks} for ranks in alike]
    assert all(len(group) == 1 for group in groups) and len(set.union(*groups)) == len(alike)
    for other in ((None,), ("model",), ("data",), ("data", "model")):
        if set(other) - {None} != set(spec) - {None}:
            assert bits_of(3, spec, before=other) == bits_of(3, spec)


def test_each_step_draws_anew_and_again_the_same() -> None:
    assert bits_of(0, (None,)) == bits_of(0, (None,))
    assert bits_of(0, (None,)) != bits_of(0, (None,), seed=2)
    assert bits_of(0, (None,)) != bits_of(0, (None,), before=(None,))


@pytest.mark.parametrize("shape", [(), (5,), (3, 200_000), (700, 1000)])
def test_put_rounds_a_weight_of_any_shape(shape: tuple[int, ...]) -> None:
    value = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    weight = torch.zeros(shape, dtype=torch.bfloat16)
    store(weight, value, (None,) * len(shape), RandomBits(1, ALONE, CPU))
    assert ((weight.float() - value).abs() <= value.abs() / 128).all()
    held = weight.clone()
    store(weight, weight.float(), (None,) * len(shape), RandomBits(2, ALONE, CPU))
    assert torch.equal(weight, held)
    plain = torch.zeros(shape)
    store(plain, value, (None,) * len(shape), None)
    assert torch.equal(plain, value)
