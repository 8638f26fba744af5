"""Rates are of training alone; what isn't known isn't said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.training.toys import LLAMA, packed_lm, scratch
from trnflow.tasks.training.batches.sampler import Batch
from trnflow.tasks.training.device_kinds import KINDS
from trnflow.tasks.training.graphs.flops import Costs, costs, flops_per_batch, flops_per_row, mfu
from trnflow.tasks.training.meter import Meters, host_memory
from trnflow.tasks.training.model.build import build


def batch() -> Batch:
    ids = np.zeros((4, 8), np.int32)
    segments, targets = ids + 1, ids.copy()
    segments[:, 6:] = 0
    targets[:, 5:] = -100
    return Batch(8, ids, targets, segments, ids, samples=4)


def test_rate_factors_count_tokens_by_kind() -> None:
    meters = Meters()
    meters.count(batch(), flops=10)
    meters.count(batch(), flops=10)
    meters.whole.start -= 100.0
    meters.add_elsewhere(98.0)  # leaves some two seconds
    rates = meters.whole.rates()
    kinds = ["tokens_per_second", "real_tokens_per_second", "padded_tokens_per_second"]
    assert [rates[name] / rates["samples_per_second"] for name in kinds] == pytest.approx([5, 6, 8])
    assert 0.4 < rates["samples_per_second"] <= 4.0
    assert (meters.whole.steps, meters.lap.flops) == (2, 20)


def rows_of(*documents: list[int], length: int) -> Batch:
    """A batch whose rows have documents of these sizes, padded to `length`."""
    segments = np.zeros((len(documents), length), np.int32)
    for row, sizes in zip(segments, documents, strict=True):
        row[: sum(sizes)] = np.repeat(np.arange(1, len(sizes) + 1), sizes)
    return Batch(length, segments, segments, segments, segments, samples=len(documents))


@pytest.mark.parametrize(("causal", "pairs"), [(True, 6 + 3 + 36), (False, 9 + 4 + 64)])
def test_attention_is_counted_by_document(causal: bool, pairs: int) -> None:
    """A position sees its document alone, and in a causal model what is before it and itself; padding sees nothing."""
    assert flops_per_batch(Costs(10, 1000), rows_of([3, 2], [8], length=8), causal=causal) == 10 * 16 + 1000 * pairs


def test_packed_documents_need_what_they_need_in_rows_of_their_own(tmp_path: Path) -> None:
    built = build(scratch(**LLAMA), packed_lm(tmp_path, length=16, rows=2), seed=0, weights=False)
    packed, *alone = [
        flops_per_batch(costs(built), rows_of(sizes, length=sum(sizes)), causal=built.causal)
        for sizes in ([5, 11], [5], [11])
    ]
    assert packed == sum(alone) < flops_per_row(built, 16)


def test_a_forward_pass_has_the_flops_that_torch_counts(tmp_path: Path) -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    heads = {"head_dim": 32, "num_attention_heads": 4, "num_key_value_heads": 4}  # wider together than the model
    built = build(scratch(**{**LLAMA, **heads}), packed_lm(tmp_path, length=16, rows=2), seed=0, weights=True)
    built.model.set_attn_implementation("eager")  # torch counts no fused kernel of the CPU
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        built.model(input_ids=torch.ones(2, 16, dtype=torch.long))
    batch = rows_of([16], [16], length=16)
    # torch counts the pairs that a causal mask hides; norms are ours alone
    assert flops_per_batch(costs(built), batch, causal=False) == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_utilisation_is_of_known_devices_alone() -> None:
    peak = KINDS["cuda"].peak_flops
    assert mfu(989e12, peak("NVIDIA H200"), 2) == {"mfu": 0.5}
    assert mfu(835e12, peak("NVIDIA H200 NVL"), 1) == {"mfu": 1.0}
    known = {"NVIDIA A10G": 70, "NVIDIA L4": 121, "Tesla T4": 65}
    assert [mfu(35e12, peak(name), 1)["mfu"] for name in known] == [35 / of for of in known.values()]
    assert mfu(1e12, peak("NVIDIA L40S"), 1) == {}
    assert mfu(95e12, KINDS["neuron"].peak_flops("trn1.2xlarge"), 2) == {"mfu": 0.5}
    assert KINDS["cpu"].peak_flops("cpu") is None and mfu(1e12, peak("NVIDIA GeForce RTX 9090"), 1) == {}


def test_memory_is_what_was_touched() -> None:
    before = host_memory()
    held = np.ones(2**26, np.uint8)
    assert host_memory() >= held.nbytes and host_memory() >= before


def test_time_elsewhere_is_left_out_of_the_whole_and_of_the_lap() -> None:
    meters = Meters()
    with meters.pause():
        pass
    meters.add_elsewhere(3.0)
    assert meters.whole.elsewhere == meters.lap.elsewhere >= 3.0


def test_both_texts_of_a_labelled_row_attend_to_each_other() -> None:
    """Segment ids of a row with two texts are token types plus 1."""
    pair = replace(rows_of([3, 2], length=8), targets=np.zeros(1, np.int32))
    assert flops_per_batch(Costs(0, 1), pair, causal=False) == 25
