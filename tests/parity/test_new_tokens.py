"""Rows of new tokens: the mean at first, trained alone by LoRA as in peft, alike on every layout, opened from outside."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.products import few
from tests.kinds.test_training import started
from tests.parity.test_adapter_forms import consolidated, of_trainer
from tests.training.parity import agree
from tests.training.run_stage import Stage, files_of, kill_after, run_in_turn, run_stage, traced_and_trained
from tests.training.test_chunked_loss import in_small_chunks
from tests.training.toys import LLAMA, VOCABULARY, packed_classes, packed_lm, pretrained, saved
from trnflow.tasks.artifact import Input
from trnflow.tasks.data.chunks import chunk_file, map_columns, shapes
from trnflow.tasks.errors import ModelError
from trnflow.tasks.train import TrainConfig
from trnflow.tasks.training.checkpoint.shards import Reader
from trnflow.tasks.training.shared_types import PARAMETER

NEW, STEPS, RATE = [VOCABULARY, VOCABULARY + 1], 5, 1e-2
COMMON: dict[str, Any] = {"global_batch": 8, "max_steps": STEPS, "learning_rate": RATE, "log_every": 1}


def lora(**fields: Any) -> dict[str, Any]:
    return {"method": "lora", "lora": {"rank": 4, "alpha": 8, "targets": "all-linear", **fields}}


def with_new_tokens(packed: Input) -> Input:
    """Ids 5 and 6 become the new tokens."""
    task = packed.meta["task"]
    for split, lengths in packed.meta["rows"].items():
        for length, count in lengths.items():
            columns = map_columns(
                chunk_file(packed.path, split, int(length)), shapes(task, count, int(length)), mode="r+"
            )
            for name in ("input_ids", "labels") if task == "causal_lm" else ("input_ids",):
                for old, new in zip((5, 6), NEW, strict=True):
                    columns[name][columns[name] == old] = new
            columns["input_ids"].flush()  # type: ignore[attr-defined]
    meta = {**packed.meta, "vocab_size": NEW[-1] + 1, "new_tokens": NEW}
    return replace(packed, meta=meta)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Input:
    return with_new_tokens(packed_lm(tmp_path_factory.mktemp("rows") / "packed", rows=STEPS * 8))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tied", "rows"), [(True, VOCABULARY), (False, VOCABULARY), (False, VOCABULARY + 8)], ids=["tied", "own", "padded"]
)
def test_what_is_published_opens_as_one_model(tied: bool, rows: int, packed: Input, tmp_path: Path) -> None:
    import peft
    import torch
    from transformers import AutoModelForCausalLM

    source = saved(tmp_path / "base", scale=4.0, **LLAMA, tie_word_embeddings=tied, vocab_size=rows)
    llama = {"model": source, "packed": packed}
    config = TrainConfig(**COMMON, **lora(), engine="native")
    (found,) = run_in_turn([config], tmp_path / "run", **llama)
    folder = consolidated(found, llama, tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    before = base.get_input_embeddings().weight.detach().clone()
    table = model.get_input_embeddings().weight.detach()
    assert len(table) == model.config.vocab_size == max(rows, NEW[-1] + 1)
    # the other rows are the base's, bit for bit; a new one began as their mean, or was there
    others = [number for number in range(rows) if number not in NEW]
    assert torch.equal(table[others], before[others])
    first = before[NEW] if rows > NEW[-1] else before.mean(0).expand(2, -1)
    assert 1e-3 < (table[NEW] - first).abs().max() <= 1.1 * RATE * STEPS
    assert (table[NEW[0]] - table[NEW[1]]).abs().max() > 1e-3
    base.resize_token_embeddings(len(table), mean_resizing=False)
    ids = torch.tensor([[3, 7, *NEW, 9, NEW[0]]])
    with torch.no_grad():
        theirs = peft.PeftModel.from_pretrained(base, folder / "adapter").eval()(ids).logits
        torch.testing.assert_close(model(ids).logits, theirs, rtol=0, atol=1e-5)
    again = TrainConfig(**{**COMMON, "max_steps": 1}, **lora(), engine="native")
    (opened,) = run_in_turn([again], tmp_path / "again", model=pretrained(folder), packed=packed)
    assert opened.curve("eval_loss")[0] == pytest.approx(found.curve("eval_loss")[STEPS], abs=1e-5)


LAYOUTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (lora(), {"fsdp": True, "micro_batch": 1, "remat": True}),
    (lora(), {"zero1": True}),
    (lora(use_dora=True), {}),
    ({}, {"tensor_parallel_size": 2}),
    ({}, {"fsdp": True}),
]
XLA: list[tuple[dict[str, Any], dict[str, Any]]] = [(lora(), {"zero1": True, "micro_batch": 1}), ({}, {})]


@pytest.mark.slow
@pytest.mark.parametrize("tied", few([True, False], 1))
@pytest.mark.parametrize(
    ("engine", "layouts"),
    [("native", LAYOUTS), pytest.param("xla", XLA, marks=[pytest.mark.xla, pytest.mark.nightly])],
    ids=["native", "xla"],
)
def test_layouts_agree(engine: str, layouts: list[Any], tied: bool, packed: Input, tmp_path: Path) -> None:
    llama = {"model": saved(tmp_path / "base", scale=4.0, **LLAMA, tie_word_embeddings=tied), "packed": packed}
    alone = [TrainConfig(**COMMON, **form, engine="native") for form, _ in layouts]
    split = [TrainConfig(**COMMON, **form, **layout, engine=engine, devices=2) for form, layout in layouts]
    plain = run_in_turn(alone, tmp_path / "plain", **llama)
    for found, other in zip(run_in_turn(split, tmp_path / "split", **llama), plain, strict=True):
        agree(found, other, weights=0.1 * RATE * STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("tied", few([False, True], 1))
def test_a_loss_in_chunks_is_the_plain_one(tied: bool, packed: Input, tmp_path: Path) -> None:
    llama = {"model": saved(tmp_path / "base", scale=4.0, **LLAMA, tie_word_embeddings=tied), "packed": packed}
    config = TrainConfig(**COMMON, **lora(), engine="native", devices=2, fsdp=True)
    found = run_stage(in_small_chunks, config, tmp_path / "chunks", **llama)
    agree(found, run_stage(traced_and_trained, config, tmp_path / "plain", **llama), weights=1e-3)


@pytest.mark.slow
def test_losses_are_those_of_peft_and_the_trainer(tmp_path: Path) -> None:
    source = started(tmp_path / "model", ["red", "green", "blue"], None, "classification")
    packed = with_new_tokens(packed_classes(tmp_path / "packed", rows=100))
    fields = {"max_steps": 20, "weight_decay": 0.0, "learning_rate": 2e-3}
    config = TrainConfig(**{**COMMON, **lora(), **fields}, engine="native")
    (ours,) = run_in_turn([config], tmp_path / "run", model=source, packed=packed)
    theirs = of_trainer(tmp_path / "model", packed, config, tmp_path / "theirs", NEW)
    apart = max(abs(a - b) for a, b in zip(ours.curve("loss").values(), theirs, strict=True))
    print(f"new tokens: largest difference of 20 losses {apart:.2g}")
    assert min(theirs) < 0.9 * theirs[0] and apart <= 1e-5


@pytest.mark.slow
def test_a_killed_training_resumes_to_the_same_bits(packed: Input, tmp_path: Path) -> None:
    llama = {"model": saved(tmp_path / "base", scale=4.0, **LLAMA), "packed": packed}
    fields = {**COMMON, **lora(base_dtype="int8", dropout=0.1), "engine": "native", "max_steps": 20}
    config = TrainConfig(**fields, checkpoint_every=4)
    whole = run_stage(traced_and_trained, config, tmp_path / "whole", **llama)
    assert whole.curve("loss")[20] < whole.curve("loss")[1]
    killed = Stage(traced_and_trained, config, tmp_path / "killed", tmp_path / "partial", **llama)
    kill_after(killed, step=9)
    assert killed.process.wait() == -signal.SIGKILL
    resumed = Stage(traced_and_trained, config, tmp_path / "resumed", tmp_path / "partial", **llama).result()
    assert files_of(resumed.artifact) == files_of(whole.artifact)
    rows = [name for name in Reader(whole.artifact.path, PARAMETER).names if "trainable_tokens" in name]
    assert len(rows) == 2  # embedding and head


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"method": "full", "freeze": ["embed_tokens"]},
            r"have rows in model.embed_tokens, which train.freeze does not",
        ),
        ({"method": "head"}, r"which train.method=head does not train"),
        ({**lora(), "devices": 2, "tensor_parallel_size": 2}, "which tensor_parallel_size splits"),
        (lora(targets=["q_proj", "lm_head"]), "train.lora.targets names lm_head"),
    ],
    ids=["freeze", "head", "split", "targets"],
)
def test_what_can_not_be_is_refused(fields: Any, message: str, packed: Input, tmp_path: Path) -> None:
    source = saved(tmp_path / "base", **LLAMA, tie_word_embeddings=False)
    with pytest.raises(ModelError, match=message):
        run_in_turn([TrainConfig(**COMMON, **fields, engine="native")], tmp_path / "run", model=source, packed=packed)
