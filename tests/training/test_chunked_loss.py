"""The loss in chunks beside the plain one: the same loss and gradients, whatever the chunks, the targets and the layout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import linear

from tests.helpers.products import few
from tests.training.parity import agree
from tests.training.run_stage import FolderPartial, Stage, files_of, kill_after, run_stage, traced_and_trained
from tests.training.toys import LLAMA, packed_lm, scratch
from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.errors import ProcessFailed
from trnflow.tasks.stage import Workdir, stage
from trnflow.tasks.train import TrainConfig, environ, ranks
from trnflow.tasks.training.chunked_loss import ChunkedLoss, ends_in_linear
from trnflow.tasks.training.device_kinds import Cpu
from trnflow.tasks.training.losses import loss_sum
from trnflow.tasks.training.memory.traced_memory import trace_memory
from trnflow.tasks.training.model.build import build

SMALL = 4 * 64 * 5  # five positions of the toys' vocabulary


@settings(deadline=None)
@given(
    positions=st.integers(1, 40),
    width=st.integers(1, 9),
    vocabulary=st.integers(2, 50),
    chunk=st.integers(1, 45),
    supervised=st.sampled_from([0.0, 0.3, 1.0]),
    smoothing=st.sampled_from([0.0, 0.1]),
    weighted=st.booleans(),
    biased=st.booleans(),
    frozen=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 9),
)
def test_loss_and_gradients_are_those_of_the_plain_computation(
    positions, width, vocabulary, chunk, supervised, smoothing, weighted, biased, frozen, dtype, seed
) -> None:
    torch.manual_seed(seed)
    targets = torch.randint(vocabulary, (positions,), dtype=torch.int32)
    targets[torch.rand(positions) >= supervised] = -100
    weights = torch.rand(vocabulary) + 0.5 if weighted else None
    hidden, weight = torch.randn(positions, width), torch.randn(vocabulary, width)
    inputs = [hidden, weight, torch.randn(vocabulary)] if biased else [hidden, weight]

    def computed(chunked: bool) -> list[torch.Tensor]:
        leaves = [tensor.to(dtype).requires_grad_(at != 1 or not frozen) for at, tensor in enumerate(inputs)]
        above, below, *rest = leaves
        bias = rest[0] if rest else None

        def score(logits: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
            return loss_sum(logits.float(), to, weights, smoothing) * 0.25

        if chunked:
            at = (targets != -100).nonzero()[:, 0]
            loss = ChunkedLoss.apply(above[at], below, bias, targets[at], score, chunk)
        else:
            loss = score(linear(above, below, bias), targets)
        (loss * 3).backward()
        return [loss, *(leaf.grad for leaf in leaves if leaf.requires_grad)]

    found, plain = computed(True), computed(False)
    bits = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    for one, other in zip(found, plain, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, **bits)


GEMMA = {**LLAMA, "model_type": "gemma3_text", "head_dim": 8, "final_logit_softcapping": 30.0}
MODELS: dict[str, tuple[dict[str, Any], bool]] = {
    "llama": (LLAMA, True),
    "tied": ({**LLAMA, "tie_word_embeddings": True}, True),
    "gpt2": ({"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2}, True),
    "softcapped": (GEMMA, False),
    "scaled": ({**LLAMA, "model_type": "cohere", "logit_scale": 0.1}, False),
    "granite": ({**LLAMA, "model_type": "granite", "logits_scaling": 2.0}, False),
}


@pytest.mark.parametrize("kind", MODELS)
def test_logits_that_are_changed_after_the_output_layer_are_found(kind: str, tmp_path: Path) -> None:
    fields, plain = MODELS[kind]
    packed = packed_lm(tmp_path)
    for weights in (True, False):
        built = build(scratch(**fields), packed, seed=0, weights=weights)
        assert ends_in_linear(built) is plain
        assert built.model.training and "forward" not in vars(built.model.get_output_embeddings())


def test_a_classifier_has_no_chunks(tmp_path: Path) -> None:
    built = build(scratch(**LLAMA), packed_lm(tmp_path), seed=0, weights=False)
    assert not ends_in_linear(replace(built, task="classification"))


@stage(kind="checkpoint", environ=environ, ranks=ranks)
def in_small_chunks(config: TrainConfig, model: Source, packed: Input, out: Workdir) -> Meta:
    """`traced_and_trained`, with chunks of five positions; fails if no loss was computed so."""
    Cpu.logits, calls = SMALL, []
    plain = ChunkedLoss.apply
    ChunkedLoss.apply = lambda *arguments: calls.append(1) or plain(*arguments)  # type: ignore[method-assign]
    meta = traced_and_trained(config, model, packed, out)
    if not calls:
        raise ProcessFailed("no loss was computed in chunks")
    return meta


SETTINGS: dict[str, Any] = {"engine": "native", "global_batch": 8, "epochs": 1, "learning_rate": 1e-2, "log_every": 1}
LAYOUTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"remat": True, "micro_batch": 2, "label_smoothing": 0.1}, {"tie_word_embeddings": True}),
    ({"devices": 2, "fsdp": True, "remat": True, "micro_batch": 1}, {"tie_word_embeddings": True}),
    ({"method": "lora", "lora": {"rank": 4, "targets": ["q_proj"]}}, {}),
    ({"method": "head"}, {}),
    ({"devices": 2, "micro_batch": 2, "zero1": True}, {"tie_word_embeddings": True}),
    ({"devices": 2, "fsdp": True, "method": "head"}, {}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "fields"), few(LAYOUTS, 2), ids=str)
def test_a_training_in_chunks_is_the_plain_training(
    layout: dict[str, Any], fields: dict[str, Any], tmp_path: Path
) -> None:
    inputs: dict[str, Any] = {"model": scratch(**LLAMA, **fields), "packed": packed_lm(tmp_path / "packed", rows=40)}
    config = TrainConfig(**SETTINGS, **layout)
    found = run_stage(in_small_chunks, config, tmp_path / "chunks", **inputs)
    agree(found, run_stage(traced_and_trained, config, tmp_path / "plain", **inputs), weights=1e-3)


@pytest.mark.nightly
def test_killed_in_chunks_it_resumes_to_the_same_bits(tmp_path: Path) -> None:
    config = TrainConfig(**SETTINGS, checkpoint_every=1, threads=1)
    inputs: dict[str, Any] = {"model": scratch(**LLAMA), "packed": packed_lm(tmp_path / "packed", rows=40)}
    whole = Stage(in_small_chunks, config, tmp_path / "whole", **inputs).result()
    killed = Stage(in_small_chunks, config, tmp_path / "killed", tmp_path / "partial", **inputs)
    kill_after(killed, 2)
    assert killed.process.wait() < 0 and FolderPartial(tmp_path / "partial").steps()
    again = Stage(in_small_chunks, config, tmp_path / "killed", tmp_path / "partial", **inputs).result()
    assert files_of(again.artifact) == files_of(whole.artifact)


@pytest.mark.parametrize("engine", ["native", "xla"])
def test_the_estimate_of_memory_counts_a_chunk(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 4 x 512 positions over a vocabulary of 32,000 the fp32 logits alone take 262 MB."""
    ids = {"pad_id": 0, "bos_id": 1, "eos_id": 2}
    meta = {"task": "causal_lm", "lengths": [512], "labels": None, "vocab_size": 32_000, **ids}
    config, model = TrainConfig(engine=engine, global_batch=4), scratch(**{**LLAMA, "max_position_embeddings": 512})
    chunked = trace_memory(config, model, meta)
    monkeypatch.setattr(Cpu, "logits", 1 << 40)
    assert trace_memory(config, model, meta).activations > 2 * 262e6 and chunked.activations < 262e6
