"""What GSPMD makes of the layouts: each device's program as XLA's partitioner left it, by kinds, number and bytes of collectives.

The Llama recipe's layout (tensor parallel 8 x data parallel 4, ZeRO-1, remat, bf16, micro batch 1) on 32 virtual devices at a toy
width, others on four. On the CPU a reduce-scatter stands as an all-reduce and a slice.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.training.run_stage import run_stage, traced_and_trained
from tests.training.toys import BERT, DRY, LLAMA, packed_classes, packed_lm, scratch
from tests.training.xla.hlo import Module, dumped, partitioned
from trnflow.tasks.train import TrainConfig

pytestmark = pytest.mark.xla

WIDTH, LENGTH, MODEL, DATA, LAYERS = 128, 40, 8, 4, 2
WIDE: dict[str, Any] = {
    **LLAMA, "hidden_size": WIDTH, "intermediate_size": 256, "num_attention_heads": 8, "num_key_value_heads": 8,
}  # fmt: skip
RECIPE: dict[str, Any] = {
    "devices": MODEL * DATA, "tensor_parallel_size": MODEL, "zero1": True, "remat": True, "dtype": "bfloat16", "micro_batch": 1,
    "global_batch": 16, "epochs": 1,
}  # fmt: skip
PASS = {
    ("all-reduce", f"bf16[1,{LENGTH},{WIDTH}]"): 8 * LAYERS
    + 1,  # a layer: 2 forward, 1 again, 5 back; the output layer's
    ("all-reduce", f"f32[{LENGTH},{WIDTH}]"): 1,  # the embedding's parts
    ("all-reduce", f"f32[{LENGTH}]"): 3,  # the loss over a vocabulary that is split
    ("all-reduce", "f32[]"): 2,
    (
        "all-reduce",
        f"f32[{64 // MODEL},{WIDTH}]",
    ): 1,  # over data, in each pass: the embedding's gradient, and those of norms
    ("all-reduce", f"f32[{WIDTH}]"): 2 * LAYERS + 1,
}
SPLIT = {
    **PASS,
    ("all-gather", f"bf16[1,{LENGTH},{WIDTH}]"): 6 * LAYERS
    + 2,  # a layer: 2 forward, 2 again, 2 back; both ends of the model
    ("all-reduce", f"f32[{WIDTH}]"): 2 * (2 * LAYERS + 1),  # norms see a part of the positions: over model as well
}
BEFORE = {True: 3_150_852, False: 402_440}
"""Bytes a pass with 64 positions, by sequence parallelism, before the activations were annotated and the gradients kept apart:
60 all-gathers with sequence parallelism, 44 of them of whole weights."""


def compiled(config: TrainConfig, folder: Path, **inputs: Any) -> list[Module]:
    """Its graphs in the order in which training meets them, the evaluation before the first step ahead."""
    with dumped(folder / "hlo"):
        run_stage(traced_and_trained, config, folder / "run", **inputs)
    return partitioned(folder / "hlo")


def of_recipe(folder: Path, length: int = LENGTH, **fields: Any) -> list[Module]:
    packed = packed_lm(folder / "packed", rows=16, length=length, validation=4)
    return compiled(TrainConfig(**RECIPE, **fields), folder, model=scratch(**WIDE), packed=packed)


@pytest.mark.parametrize(("sequence_parallel", "expected"), [(True, SPLIT), (False, PASS)])
def test_a_pass_of_the_llama_recipe_moves_activations_alone(
    sequence_parallel: bool, expected: dict[tuple[str, str], int], tmp_path: Path
) -> None:
    """No weight is gathered and no linear layer's gradient is reduced in a pass; each is once an update, in fp32."""
    evaluate, accumulate, update = of_recipe(tmp_path, sequence_parallel=sequence_parallel)
    assert accumulate.collectives == expected
    assert {kind for kind, _ in evaluate.collectives} == {"all-gather", "all-reduce"}
    assert evaluate.moved < accumulate.moved
    check_update(update)


def check_update(update: Module) -> None:
    """Each gradient that was kept apart is reduced in fp32, and what ZeRO-1 gathers is the weight in bf16."""
    columns, rows = {f"[{WIDTH // MODEL},{WIDTH}]": 3, f"[{256 // MODEL},{WIDTH}]": 2}, {}
    rows = {f"[{WIDTH},{WIDTH // MODEL}]": 1, f"[{WIDTH},{256 // MODEL}]": 1}
    split = Counter({shape: LAYERS * count for shape, count in {**columns, **rows}.items()})
    split[f"[{64 // MODEL},{WIDTH}]"] += 1  # the output layer
    reduced = {
        kind: count for (name, kind), count in update.collectives.items() if name == "all-reduce" and kind != "f32[]"
    }
    gathered = {kind: count for (name, kind), count in update.collectives.items() if name == "all-gather"}
    assert reduced == {f"f32{shape}": count for shape, count in split.items()}
    split[f"[{64 // MODEL},{WIDTH}]"] += 1  # the embedding
    split[f"[{WIDTH}]"] += 2 * LAYERS + 1
    assert gathered == {f"bf16{shape}": count for shape, count in split.items()}
    assert {name for name, _ in update.collectives} == {"all-gather", "all-reduce"}


@pytest.mark.nightly
@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_a_pass_moves_less_than_it_did(sequence_parallel: bool, tmp_path: Path) -> None:
    """At the length at which it was measured before."""
    accumulate = of_recipe(tmp_path, 64, sequence_parallel=sequence_parallel)[1]
    assert accumulate.moved == {True: 550_664, False: 318_728}[sequence_parallel] < BEFORE[sequence_parallel]


def test_attention_over_several_rows_gathers_no_heads(tmp_path: Path) -> None:
    """PyTorch's products merge rows with heads, for which GSPMD gathered all heads on every device."""
    config = TrainConfig(devices=4, tensor_parallel_size=2, global_batch=8, epochs=1)
    packed = packed_lm(tmp_path / "packed", rows=8, validation=8)
    evaluate, train = compiled(config, tmp_path, model=scratch(**LLAMA), packed=packed)
    assert {kind for name, kind in train.collectives if name != "all-reduce"} == set()
    assert {kind for name, kind in evaluate.collectives if name == "all-gather"} == {"f32[4,16,2]", "s32[4,16,2]"}, (
        "the largest logit of each part of the vocabulary"
    )


def test_sequence_parallel_bert_gathers_activations_alone(tmp_path: Path) -> None:
    config = TrainConfig(devices=4, tensor_parallel_size=2, sequence_parallel=True, global_batch=8, epochs=1)
    packed = packed_classes(tmp_path / "packed", rows=8, lengths=[8], validation=8)
    evaluate, train = compiled(config, tmp_path, model=scratch(**BERT, **DRY), packed=packed)
    for module, gathers in ((evaluate, 4), (train, 9)):
        assert {kind: n for (name, kind), n in module.collectives.items() if name != "all-reduce"} == {
            "f32[4,8,32]": gathers
        }


def test_data_parallel_replicas_reduce_once_an_update(tmp_path: Path) -> None:
    """In bf16 with accumulation: only embeddings and norms in each pass, all in fp32."""
    config = TrainConfig(devices=4, dtype="bfloat16", global_batch=8, micro_batch=1, epochs=1)
    packed = packed_classes(tmp_path / "packed", rows=8, lengths=[8], validation=4)
    model = scratch(**{**BERT, **DRY, "hidden_size": 48})
    _, accumulate, update = compiled(config, tmp_path, model=model, packed=packed)
    small = {"f32[64,48]": 2, "f32[2,48]": 1, "f32[48]": 10}  # tokens and positions, kinds of token, 5 norms
    assert accumulate.collectives == {("all-reduce", kind): count for kind, count in {**small, "f32[]": 1}.items()}
    linear = {
        "f32[48,48]": 9,
        "f32[48]": 11,
        "f32[64,48]": 2,
        "f32[64]": 2,
        "f32[48,64]": 2,
        "f32[3,48]": 1,
        "f32[3]": 1,
    }
    assert update.collectives == {("all-reduce", kind): count for kind, count in linear.items()}
