"""A base in 8 or 4 bits: its weights are bitsandbytes' to the bit, and LoRA learns on it as on bf16."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest
import torch
from pydantic import ValidationError

from tests.training.memory.test_memory import row_meta
from tests.training.run_stage import (
    FolderPartial,
    ManyConfig,
    Stage,
    files_of,
    kill_after,
    run_in_turn,
    run_stage,
    traced_and_trained,
    trained_in_turn,
)
from tests.training.test_refusals import known, refuse
from tests.training.toys import BERT, LLAMA, packed_classes, packed_lm, pretrained, saved, scratch, write_packed
from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.consolidate import ConsolidateConfig, consolidate
from trnflow.tasks.errors import MissingDependency, ModelError
from trnflow.tasks.stage import Workdir, stage
from trnflow.tasks.train import TrainConfig
from trnflow.tasks.train import environ as train_environ
from trnflow.tasks.training.batches.sampler import IGNORED, Split
from trnflow.tasks.training.memory.estimate import check_memory
from trnflow.tasks.training.memory.traced_memory import trace_memory
from trnflow.tasks.training.model.adapters import adapt
from trnflow.tasks.training.model.build import build
from trnflow.tasks.training.model.quantised import FORMATS, QuantisedLinear, rounded

KINDS = [*FORMATS]


def lora(kind: str | None, **more: Any) -> dict[str, Any]:
    fields = {"rank": 8, "alpha": 16, "targets": "all-linear", **({"base_dtype": kind} if kind else {})}
    return {"engine": "native", "method": "lora", "lora": fields, **more}


def test_an_nf4_layer_is_bitsandbytes_layer() -> None:
    """Output and input's gradient, in both dtypes that train."""
    import bitsandbytes

    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(3)
        linear = torch.nn.Linear(172, 64).to(dtype).requires_grad_(False)
        theirs = bitsandbytes.nn.Linear4bit(172, 64, compute_dtype=dtype, quant_type="nf4", compress_statistics=False)
        theirs.load_state_dict(linear.state_dict())
        theirs = theirs.to(dtype).to("cpu").train().requires_grad_(False)
        mine = QuantisedLinear(linear, "nf4", dtype)
        assert torch.equal(mine.weight, theirs.weight.data)
        outputs = []
        for layer in (mine, theirs):
            hidden = torch.arange(344.0).view(2, 172).sin().to(dtype).requires_grad_()
            layer(hidden).square().sum().backward()
            outputs.append((layer(hidden), hidden.grad))
        torch.testing.assert_close(*map(list, outputs), rtol=0, atol=0)


def test_int8_weights_are_those_of_bitsandbytes() -> None:
    import bitsandbytes

    torch.manual_seed(3)
    weight = torch.randn(64, 172, dtype=torch.float16)
    codes, scales = FORMATS["int8"].quantise(weight)
    theirs, stats, _ = bitsandbytes.functional.int8_vectorwise_quant(weight)
    assert torch.equal(codes, theirs) and torch.equal(scales[:, 0], stats)
    assert (rounded(weight, "int8", torch.float32) - weight).abs().max() < 0.51 * weight.abs().max() / 127
    assert not rounded(torch.zeros(2, 4), "int8", torch.bfloat16).any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_is_compiled_as_part_of_one_graph(kind: str) -> None:
    torch.manual_seed(3)
    layer = QuantisedLinear(torch.nn.Linear(64, 32), kind, torch.float32)
    gradients = []
    for function in (layer.forward, torch.compile(layer.forward, fullgraph=True, backend="aot_eager")):
        hidden = torch.arange(128.0).view(2, 64).sin().requires_grad_()
        function(hidden).square().sum().backward()
        gradients.append(hidden.grad)
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_estimate_and_the_model_agree_on_the_bytes_of_the_base(kind: str) -> None:
    """A number of a layer takes 1 byte in int8 and 0.5625 in nf4; the rest, and LoRA, are as without."""
    wide = {**LLAMA, "hidden_size": 256, "intermediate_size": 1024}
    numbers = 2 * (4 * 256 * 256 + 3 * 256 * 1024)
    rows = row_meta(32)
    base, mine = (trace_memory(TrainConfig(**lora(k, dtype="bfloat16")), scratch(**wide), rows) for k in (None, kind))
    outputs = 2 * (4 * 256 + 2 * 1024 + 256)
    saved_bytes = 2 * numbers - (numbers + 4 * outputs if kind == "int8" else numbers // 2 + numbers // 64 * 4)
    assert base.parameters - mine.parameters == saved_bytes
    with pytest.raises(ModelError) as caught:
        check_memory(TrainConfig(**lora(None, dtype="bfloat16")), base, limit=1)
    assert "train.lora.base_dtype=nf4" in caught.value.fix
    assert (base.optimizer, base.gradients) == (mine.optimizer, mine.gradients)
    meta = Input(Path(), "packed", rows, "")
    built = adapt(TrainConfig(**lora(kind)), build(scratch(**wide), meta, seed=0, weights=True))
    assert built.numbers == adapt(TrainConfig(**lora(None)), build(scratch(**wide), meta, seed=0, weights=True)).numbers
    assert not any("base_layer.weight" in name for name in built.parameters())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"engine": "xla"}, "lora.base_dtype=nf4 is for engine native"),
        ({"devices": 2, "fsdp": True}, "fsdp splits the layers that lora.base_dtype=nf4 quantises"),
        ({"devices": 2, "tensor_parallel_size": 2}, "tensor_parallel_size splits the layers"),
        ({"method": "full"}, "lora is set, and method is full"),
    ],
)
def test_what_a_quantised_base_can_t_be_trained_with_is_refused(fields: Meta, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainConfig(**{**lora("nf4"), **fields})


def test_families_of_other_layers_are_refused_at_plan_and_when_built(monkeypatch: pytest.MonkeyPatch) -> None:
    for family, what in (("gpt2", "Conv1D"), ("mixtral", "experts")):
        with pytest.raises(ModelError, match=f"train.lora.base_dtype=int8 quantises linear layers, and .* {what}"):
            refuse(known("causal_lm", model_type=family), **lora("int8"))
    refuse(known("causal_lm", model_type="qwen3"), **lora("int8"))
    with pytest.raises(
        ModelError, match="most weights of GPT2LMHeadModel would stay as they are, such as transformer.h.0"
    ):
        trace_memory(
            TrainConfig(**lora("int8")), scratch(model_type="gpt2", n_embd=32, n_layer=2, n_head=2), row_meta(16)
        )
    monkeypatch.setattr("trnflow.tasks.system.optional_packages.find_spec", lambda name: None)
    with pytest.raises(
        MissingDependency, match=r"base_dtype is nf4, and bitsandbytes .* Fix: pip install 'trnflow\[quantised\]'"
    ):
        rounded(torch.ones(2, 2), "nf4", torch.float32)


def packed_text(folder: Path, shared: Path, train: int = 480, validation: int = 64) -> Input:
    """Instructions in rows of 128 tokens of stories260K."""
    from tokenizers import Tokenizer

    table = parquet.read_table(shared / "data" / "dolly15k" / "train.parquet").slice(0, 400)
    texts = ["\n".join(map(str, row.values())) for row in table.to_pylist()]
    tokenizer = Tokenizer.from_file(str(shared / "assets" / "stories260K-hf" / "tokenizer.json"))
    ids = np.concatenate([text.ids for text in tokenizer.encode_batch(texts)])
    ids = ids[: len(ids) // 128 * 128].reshape(-1, 128)
    assert len(ids) >= train + validation
    positions, ones = np.broadcast_to(np.arange(128), ids.shape), np.ones_like(ids)
    columns = {"input_ids": ids, "labels": ids, "segment_ids": ones, "position_ids": positions}
    parts = {"train": slice(0, train), "validation": slice(train, train + validation)}
    splits = {name: {128: {n: column[part] for n, column in columns.items()}} for name, part in parts.items()}
    return write_packed(folder, "causal_lm", None, splits, vocabulary=512)


@pytest.fixture(scope="module")
def stories(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    packed = packed_text(tmp_path_factory.mktemp("packed"), shared)
    return {"model": pretrained(shared / "assets" / "stories260K-hf"), "packed": packed}


TEXT: dict[str, Any] = {
    "dtype": "bfloat16",
    "global_batch": 8,
    "epochs": 1,
    "learning_rate": 5e-3,
    "schedule": "cosine",
}
SEEDS = (0, 1, 2)


@stage(kind="checkpoint", environ=lambda config: train_environ(config.configs[0]))
def trained_on_shuffled_scales(config: ManyConfig, model: Source, packed: Input, out: Workdir) -> Meta:
    """Training on a base whose scales were mixed up within each layer."""
    from trnflow.tasks.training.model import quantised

    for kind, whole in quantised.FORMATS.items():

        def shuffled(weight: torch.Tensor, whole: Any = whole) -> tuple[torch.Tensor, torch.Tensor]:
            codes, scales = whole.quantise(weight)
            order = torch.randperm(len(scales), generator=torch.Generator().manual_seed(5))
            return codes, scales[order]

        quantised.FORMATS[kind] = whole._replace(quantise=shuffled)
    return trained_in_turn(config, model, packed, out)


def losses(runs: list[Meta]) -> tuple[np.ndarray, np.ndarray]:
    """(fall of the held-out loss, held-out loss at the end), each [seeds]."""
    before, after = (np.array([run["metrics"][name] for run in runs]) for name in ("eval_loss_before", "eval_loss"))
    return before - after, after


NEAR = {"int8": 0.002, "nf4": 0.015}
"""How much worse than on bf16 the held-out loss may be; measured: at most 0.0001 and 0.012, with 64 numbers a row."""


def is_near(kind: str, mine: tuple[np.ndarray, np.ndarray], bf16: tuple[np.ndarray, np.ndarray]) -> bool:
    """Whether the loss falls as far from step 0, and ends as low."""
    return bool((mine[0] > 0.99 * bf16[0]).all() and (mine[1] < (1 + NEAR[kind]) * bf16[1]).all())


@pytest.mark.nightly
@pytest.mark.parametrize("kind", KINDS)
def test_lora_learns_on_a_quantised_base_as_on_bf16(kind: str, stories, tmp_path: Path) -> None:
    """Three seeds; a base of wrong scales fails."""
    configs = [TrainConfig(**lora(base, **TEXT, seed=seed)) for base in (None, kind) for seed in SEEDS]
    runs = [result.artifact.meta for result in run_in_turn(configs, tmp_path / "runs", **stories)]
    bf16, mine = losses(runs[:3]), losses(runs[3:])
    assert is_near(kind, mine, bf16), (mine, bf16)
    shuffled = run_stage(
        trained_on_shuffled_scales, ManyConfig(configs=tuple(configs[3:])), tmp_path / "bad", **stories
    )
    assert not is_near(kind, losses(shuffled.artifact.meta["runs"]), bf16)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_published_is_what_was_trained_and_peft_opens_the_adapter(kind: str, stories, tmp_path: Path) -> None:
    """The base as transformers quantises it; that of int8 quantises the inputs of layers, too."""
    import peft
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    config = TrainConfig(**lora(kind, **{**TEXT, "dtype": "float32", "max_steps": 6}))
    trained = run_stage(traced_and_trained, config, tmp_path / "train", **stories).artifact
    folder = run_stage(
        consolidate, ConsolidateConfig(), tmp_path / "model", shards=trained, model=stories["model"]
    ).artifact.path
    rows = Split(stories["packed"], "validation")
    ids = torch.from_numpy(rows.read(next(rows.in_order(64))).input_ids).long()
    base = stories["model"].location["model"]["folder"]
    how = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    how = how if kind == "nf4" else BitsAndBytesConfig(load_in_8bit=True)
    opened = AutoModelForCausalLM.from_pretrained(base, quantization_config=how, dtype=torch.float32, device_map="cpu")
    # in training mode, since bitsandbytes computes in bf16 on the CPU otherwise
    theirs = peft.PeftModel.from_pretrained(opened, folder / "adapter").train()
    merged = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        ours, others = merged(ids).logits, theirs(ids).logits
        plain = AutoModelForCausalLM.from_pretrained(base)(ids).logits
        loss = merged(ids, labels=ids).loss
    assert (ours - others).abs().max() < {"nf4": 1e-4, "int8": 0.5}[kind]
    assert (ours - plain).abs().max() > 5.0, "training moved them"
    assert float(loss) == pytest.approx(trained.meta["metrics"]["eval_loss"], abs=1e-5)


@pytest.mark.nightly  # tests/training/native/test_adamw_8bit.py has the moments alone
def test_a_killed_training_resumes_to_the_same_bits(tmp_path: Path) -> None:
    """On nf4, with moments in 8 bits: those of LoRA's matrices of 4,096 numbers."""
    model = saved(tmp_path / "base", **{**LLAMA, "hidden_size": 64, "intermediate_size": 128})
    inputs = {"model": model, "packed": packed_lm(tmp_path / "packed", rows=96)}
    steps = {
        "dtype": "bfloat16",
        "optimizer": "adamw_8bit",
        "global_batch": 8,
        "learning_rate": 1e-3,
        "checkpoint_every": 4,
    }
    config = TrainConfig(**{**lora("nf4", **steps, epochs=2), "lora": {"rank": 64, "base_dtype": "nf4"}})
    whole = run_stage(traced_and_trained, config, tmp_path / "whole", **inputs)
    often = config.model_copy(update={"log_every": 1})
    killed = Stage(traced_and_trained, often, tmp_path / "killed", tmp_path / "partial", **inputs)
    kill_after(killed, step=9)
    assert killed.process.wait() == -signal.SIGKILL
    assert FolderPartial(tmp_path / "partial").steps()
    resumed = Stage(traced_and_trained, config, tmp_path / "resumed", tmp_path / "partial", **inputs).result()
    assert any(text.startswith("resumes at step") for text in resumed.said("info"))
    assert files_of(resumed.artifact) == files_of(whole.artifact)
    assert resumed.artifact.meta["metrics"] == whole.artifact.meta["metrics"]


@pytest.mark.slow
def test_two_ranks_train_as_one(tmp_path: Path) -> None:
    inputs = {"model": saved(tmp_path / "base", **LLAMA), "packed": packed_lm(tmp_path / "packed", rows=24)}
    steps = {"global_batch": 8, "epochs": 1, "learning_rate": 1e-2, "log_every": 1}
    alone, two = (
        run_stage(traced_and_trained, TrainConfig(**lora("nf4", **steps, **layout)), tmp_path / name, **inputs)
        for name, layout in (("alone", {}), ("two", {"devices": 2, "zero1": True, "remat": True}))
    )
    assert [*alone.curve("loss").values()] == pytest.approx([*two.curve("loss").values()], abs=1e-5)


def test_keys_name_the_version_of_bitsandbytes_where_it_computes() -> None:
    from trnflow.tasks.artifact import Artifact
    from trnflow.tasks.stage import stage_of
    from trnflow.tasks.training.environment import compiler

    def keyed(**fields: Any) -> set[str]:
        return {*compiler(TrainConfig(**fields))["versions"]}

    model = Source("model", {"config": {}, "tokenizer": None, "weights": None}, {})
    for kind in (None, *KINDS):
        assert ("bitsandbytes" in keyed(**lora(kind))) == (kind == "nf4")
        meta = {"settings": {"lora": {"base_dtype": kind}}}
        inputs = {"shards": Artifact("sha256:1", "checkpoint", meta, ()), "model": model}
        assert ("bitsandbytes" in stage_of(consolidate).inputs(ConsolidateConfig(), inputs)) == (kind == "nf4")
    assert "bitsandbytes" in keyed(engine="native", optimizer="adamw_8bit")


@pytest.mark.slow
def test_a_classifier_is_published_as_it_was_trained(tmp_path: Path) -> None:
    """Its head is trained beside the quantised layers of a model that sees both ways."""
    from transformers import AutoModelForSequenceClassification

    inputs = {
        "model": saved(tmp_path / "base", task="classification", **BERT),
        "packed": packed_classes(tmp_path / "packed"),
    }
    config = TrainConfig(**lora("nf4", global_batch=8, epochs=1, learning_rate=1e-2))
    shards = run_stage(traced_and_trained, config, tmp_path / "train", **inputs).artifact
    folder = run_stage(
        consolidate, ConsolidateConfig(), tmp_path / "out", shards=shards, model=inputs["model"]
    ).artifact.path
    model, rows, total = (
        AutoModelForSequenceClassification.from_pretrained(folder),
        Split(inputs["packed"], "validation"),
        0.0,
    )
    for batch in map(rows.read, rows.in_order(10)):
        ids, segments = torch.from_numpy(batch.input_ids).long(), torch.from_numpy(batch.segment_ids)
        with torch.no_grad():
            logits = model(ids, attention_mask=segments).logits
        targets = torch.from_numpy(batch.targets).long()
        total += float(torch.nn.functional.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum"))
    assert total / sum(rows.rows.values()) == pytest.approx(shards.meta["metrics"]["eval_loss"], abs=1e-5)
