"""LoRA and head-only training, from a pretrained model to what is published: no layout changes them, and nothing frozen moves."""

from __future__ import annotations

import signal
from typing import Any

import pytest
import torch

from tests.training.parity import agree
from tests.training.run_stage import (
    FolderPartial,
    Result,
    Stage,
    files_of,
    kill_after,
    run_in_turn,
    run_stage,
    traced_and_trained,
)
from tests.training.toys import BERT, LLAMA, packed_classes, packed_lm, saved
from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.consolidate import ConsolidateConfig, consolidate
from trnflow.tasks.stage import Workdir, read_json, stage
from trnflow.tasks.train import TrainConfig
from trnflow.tasks.train import environ as train_environ
from trnflow.tasks.training.checkpoint.shards import Reader
from trnflow.tasks.training.model.lora import A, B

STEPS, LEARNING_RATE = 5, 1e-2
GROUPED = {**LLAMA, "num_key_value_heads": 2}
LORA: dict[str, Any] = {"method": "lora", "lora": {"rank": 4, "alpha": 8, "targets": "all-linear"}}
HEAD = {"method": "head"}
FREEZE: dict[str, Any] = {"method": "full", "freeze": ["embed_tokens", "layers.0"]}
# before layers that are split by columns alone: what they read is whole on every rank, and so is what is dropped of it
DROPOUT: dict[str, Any] = {"method": "lora", "lora": {"rank": 4, "dropout": 0.5, "targets": ["q_proj", "v_proj"]}}
COMMON: dict[str, Any] = {"global_batch": 8, "epochs": 1, "learning_rate": LEARNING_RATE, "log_every": 1}
TINY = {"remat": True, "micro_batch": 1}
TP: dict[str, Any] = {"tensor_parallel_size": 2}
SP: dict[str, Any] = {**TP, "sequence_parallel": True}


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("llama")
    return {"model": saved(root / "base", scale=4.0, **GROUPED), "packed": packed_lm(root / "packed", rows=STEPS * 8)}


@pytest.fixture(scope="module")
def plain(llama, tmp_path_factory) -> dict[str, Result]:
    methods = {"full": {}, "lora": LORA, "head": HEAD, "dropout": DROPOUT, "freeze": FREEZE}
    configs = [TrainConfig(**COMMON, **fields, engine="native") for fields in methods.values()]
    return dict(zip(methods, run_in_turn(configs, tmp_path_factory.mktemp("plain"), **llama), strict=True))


NATIVE = [
    {**LORA, **TP},
    {**LORA, **SP, **TINY},
    {**LORA, "zero1": True},
    {**LORA, "fsdp": True, **TINY},
    {**HEAD, **TP},
    {**FREEZE, **TP},
    {**FREEZE, "fsdp": True, **TINY},
]
XLA = [{**FREEZE, **TP, **TINY}, {**LORA, **TP}, {**LORA, **SP, **TINY}]
MORE = [{**LORA, **TP, "zero1": True}, {**HEAD, **TP, "zero1": True, "remat": True}]
FSDP = [{**LORA, **TP, "fsdp": True, **TINY}, {**LORA, **SP, "fsdp": True}, {**HEAD, "fsdp": True}]


@pytest.mark.parametrize(
    ("engine", "devices", "layouts"),
    [
        ("native", 2, NATIVE),
        pytest.param("xla", 2, XLA, marks=pytest.mark.xla),
        pytest.param("native", 4, [*MORE, *FSDP], marks=pytest.mark.nightly),
        pytest.param(
            "xla",
            4,
            [*MORE, {**LORA, "zero1": True, "micro_batch": 1, "remat": 2}],
            marks=[pytest.mark.nightly, pytest.mark.xla],
        ),
    ],
)
def test_layouts_agree(engine: str, devices: int, layouts: list[dict[str, Any]], llama, plain, tmp_path) -> None:
    configs = [TrainConfig(**COMMON, **layout, engine=engine, devices=devices) for layout in layouts]
    for layout, found in zip(layouts, run_in_turn(configs, tmp_path, **llama), strict=True):
        method = "freeze" if "freeze" in layout else layout["method"]
        same = plain["dropout" if layout.get("lora") == DROPOUT["lora"] else method]
        agree(found, same, weights=0.1 * LEARNING_RATE * STEPS)


def test_training_starts_at_the_base_model_and_learns(plain) -> None:
    full, lora = (plain[method].artifact.meta["metrics"] for method in ("full", "lora"))
    assert lora["eval_loss_before"] == pytest.approx(full["eval_loss_before"], abs=1e-6)
    assert plain["lora"].curve("loss")[1] == pytest.approx(plain["full"].curve("loss")[1], abs=1e-6)
    assert lora["eval_loss"] < lora["eval_loss_before"] - 0.01


def test_only_what_is_trained_is_kept(plain) -> None:
    assert Reader(plain["head"].artifact.path).names == ["parameter/lm_head.weight"]
    names = Reader(plain["lora"].artifact.path).names
    assert len(names) == 2 * 2 * 7 and all(name.rpartition(".")[0].endswith((A, B)) for name in names)
    assert plain["lora"].said("info") == ["trains 4,096 of 26,784 parameters"]


def test_merged_and_adapter_are_one_model(llama, plain, tmp_path) -> None:
    """In plain transformers and plain peft."""
    import peft
    from transformers import AutoModelForCausalLM

    shards = plain["lora"].artifact
    found = run_stage(consolidate, ConsolidateConfig(), tmp_path / "one", shards=shards, model=llama["model"]).artifact
    base = AutoModelForCausalLM.from_pretrained(llama["model"].location["model"]["folder"])
    merged = AutoModelForCausalLM.from_pretrained(found.path)
    assert found.meta["parameters"] == sum(parameter.numel() for parameter in base.parameters())
    same = {name for name, value in merged.named_parameters() if torch.equal(value, base.get_parameter(name))}
    assert same == {name for name, _ in base.named_parameters() if "proj" not in name}

    ids = torch.arange(3, 35)[None]
    with torch.no_grad():
        first, ours = base(ids).logits, merged(ids).logits
        theirs = peft.PeftModel.from_pretrained(base, found.path / "adapter").eval()(ids).logits
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    assert (ours - first).abs().max() > 0.1

    again = run_stage(consolidate, ConsolidateConfig(), tmp_path / "two", shards=shards, model=llama["model"]).artifact
    assert files_of(again) == files_of(found)


def test_a_frozen_part_is_published_as_it_was(llama, plain, tmp_path) -> None:
    """In plain transformers."""
    from transformers import AutoModelForCausalLM

    shards = plain["freeze"].artifact
    assert not [name for name in Reader(shards.path).names if ".layers.0." in name or "embed" in name]
    found = run_stage(consolidate, ConsolidateConfig(), tmp_path, shards=shards, model=llama["model"]).artifact
    base = AutoModelForCausalLM.from_pretrained(llama["model"].location["model"]["folder"])
    trained = AutoModelForCausalLM.from_pretrained(found.path)
    moved = {name for name, value in trained.named_parameters() if not torch.equal(value, base.get_parameter(name))}
    assert moved == {name for name, _ in base.named_parameters() if ".layers.0." not in name and "embed" not in name}


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("bert")
    model = saved(root / "base", task="classification", **BERT)
    return {"model": model, "packed": packed_classes(root / "packed", rows=48, lengths=[8, 16])}


def test_a_classifier_s_new_head_is_published_with_it(bert, tmp_path) -> None:
    import peft
    from transformers import AutoModelForSequenceClassification as Classifier

    rows = {"engine": "native", "global_batch": 8, "epochs": 1, "learning_rate": 1e-2}
    configs = [TrainConfig(method=method, **rows) for method in ("lora", "head")]
    folders = {}
    for config, trained in zip(configs, run_in_turn(configs, tmp_path / "train", **bert), strict=True):
        shards, folder = trained.artifact, tmp_path / config.method
        found = run_stage(consolidate, ConsolidateConfig(), folder, shards=shards, model=bert["model"]).artifact
        merged, reader = Classifier.from_pretrained(found.path), Reader(shards.path)
        for name in ("classifier.weight", "bert.pooler.dense.bias"):
            assert torch.equal(merged.get_parameter(name), reader.tensor(f"parameter/{name}"))
        folders[config.method] = found.path
    assert not (folders["head"] / "adapter").exists()
    merged = Classifier.from_pretrained(folders["lora"])
    base = Classifier.from_pretrained(bert["model"].location["model"]["folder"], config=merged.config)
    theirs = peft.PeftModel.from_pretrained(base, folders["lora"] / "adapter").eval()
    ids = torch.arange(3, 19)[None]
    with torch.no_grad():
        torch.testing.assert_close(merged.eval()(ids).logits, theirs(ids).logits, rtol=0, atol=1e-5)
    assert read_json(folders["lora"] / "adapter" / "adapter_config.json")["base_model_name_or_path"] is None


def test_the_merged_model_is_keyed_by_the_weights_that_training_began_with() -> None:
    """LoRA's are read; of a whole checkpoint the card says which they were."""
    from trnflow.tasks.artifact import Artifact
    from trnflow.tasks.stage import stage_of

    def key(meta: Meta, weights: str) -> Meta:
        model = Source("model", {"config": {}, "tokenizer": None, "weights": {"files": {"a": weights}}}, {})
        inputs = {"shards": Artifact("sha256:1", "checkpoint", meta, ()), "model": model}
        return stage_of(consolidate).inputs(ConsolidateConfig(), inputs)

    for meta in ({}, {"method": "full"}, {"method": "lora"}):
        assert key(meta, "x") == key(meta, "x") != key(meta, "y")


@stage(kind="checkpoint", environ=train_environ)
def frozen_after_training(config: TrainConfig, model: Source, packed: Input, out: Workdir) -> Meta:
    """Some steps on an engine, then what became of the frozen parameters, and what is held for the trained ones."""
    from trnflow.tasks.training.batches.sampler import Schedule, Split
    from trnflow.tasks.training.choose_engine import make_engine
    from trnflow.tasks.training.graph_registry import GraphRegistry
    from trnflow.tasks.training.model.adapters import adapt
    from trnflow.tasks.training.model.build import build
    from trnflow.tasks.training.optim.optimizer import scalars

    built = adapt(config, build(model, packed, seed=0, weights=True))
    dtype = getattr(torch, config.dtype)
    before = {name: built.parameters()[name].detach().clone().to(dtype) for name in built.frozen}
    engine = make_engine(config, built, GraphRegistry(allow_unlisted=True))
    split = Split(packed, "train")
    schedule = Schedule(split.rows, config.global_batch, seed=0, last_batch="drop")
    for step in range(3):
        engine.train(split.read(schedule.address(step)), scalars(config, step, 10, 8), seed=step)
    after = built.parameters()
    return {
        "moved": sorted(name for name in before if not torch.equal(after[name].detach().cpu(), before[name])),
        "frozen": sorted({str(after[name].dtype) for name in before}),
        "gradients": [name for name in before if after[name].grad is not None],
        "held": sorted({part.name.partition("/")[2] for part in engine.slices(state=True)} - built.trained().keys()),
        "trained": len(built.trained()),
        "count": len(list(engine.slices(state=True))),
    }


@pytest.mark.parametrize(
    ("engine", "dtype"), [("native", "bfloat16"), pytest.param("xla", "float32", marks=pytest.mark.xla)]
)
def test_nothing_is_held_for_what_is_frozen_and_it_stays_to_the_bit(engine: str, dtype: str, llama, tmp_path) -> None:
    config = TrainConfig(**COMMON, **LORA, engine=engine, dtype=dtype)
    found = run_stage(frozen_after_training, config, tmp_path, **llama).artifact.meta
    assert (found["moved"], found["gradients"], found["held"]) == ([], [], [])
    assert found["frozen"] == [f"torch.{dtype}"]
    assert found["count"] == 3 * found["trained"], "a master and two moments of each that is trained"


@pytest.mark.nightly
def test_lora_survives_a_kill(bert, tmp_path) -> None:
    """With dropout, in the model and in LoRA."""
    rows = {"engine": "native", "global_batch": 8, "epochs": 20, "learning_rate": 1e-3, "log_every": 7}
    lora = {"method": "lora", "lora": {"rank": 4, "dropout": 0.1}}
    config = TrainConfig(**rows, **lora, checkpoint_every=1000)
    whole = run_stage(traced_and_trained, config, tmp_path / "whole", **bert)
    partial = tmp_path / "partial"
    often = config.model_copy(update={"log_every": 1, "checkpoint_every": 10})
    killed = Stage(traced_and_trained, often, tmp_path / "killed", partial, **bert)
    kill_after(killed, step=25)
    assert killed.process.wait() == -signal.SIGKILL
    newest = partial / str(FolderPartial(partial).steps()[-1])
    assert all(".base_layer" not in name and "embeddings" not in name for name in Reader(newest).names)
    resumed = Stage(traced_and_trained, config, tmp_path / "resumed", partial, **bert).result()
    assert any(text.startswith("resumes at step") for text in resumed.said("info"))
    assert files_of(resumed.artifact) == files_of(whole.artifact) and resumed.artifact.meta == whole.artifact.meta
