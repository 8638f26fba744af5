"""10. Explaining a miss names the one field that changed, of any stage of a real recipe, and only in the stages it reaches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trnflow.flows import finetune
from trnflow.flows.recipes import recipe as settings
from trnflow.tasks.artifact import Artifact, Meta, Source
from trnflow.tasks.keys.explain import nearest_record
from trnflow.tasks.keys.hash_cache import Memo
from trnflow.tasks.keys.key_document import key_document, key_of
from trnflow.tasks.sources.model_source import model_source
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.stage import stage_of

SECTIONS = {
    "load_data": "data", "format_prompts": "format", "tokenize_text": "tokenize", "pack_chunks": "pack", "precompile": "train",
    "train": "train", "consolidate": "consolidate", "export_neuron": "export", "evaluate_model": "evaluate",
}  # fmt: skip
TRAINING = ("precompile", "train")
MODEL = "inputs.model.config.overrides"

CHANGES: list[tuple[str, tuple[str, ...], str, Any, Any]] = [
    ("data.text=name", ("load_data",), "params.text", "text", "name"),
    ("data.label=null", ("load_data",), "params.label", "package", None),
    ("data.columns={kept: name}", ("load_data",), "params.columns.kept", None, "name"),
    ("data.split_seed=1", ("load_data",), "params.split_seed", 0, 1),
    ("data.limit=96", ("load_data",), "params.limit", None, 96),
    ("data.shuffle_seed=5", ("load_data",), "params.shuffle_seed", 0, 5),
    ("data.dedupe=true", ("load_data",), "params.dedupe", False, True),
    ("format.task=text", ("format_prompts",), "params.task", "classification", "text"),
    ("format.separator=' '", ("format_prompts",), "params.separator", "\n", " "),
    ("format.prompt_template='{{ text }}'", ("format_prompts",), "params.prompt_template", None, "{{ text }}"),
    ("tokenize.max_length=16", ("tokenize_text",), "params.max_length", 32, 16),
    ("tokenize.overlong=drop", ("tokenize_text",), "params.overlong", "truncate", "drop"),
    ("tokenize.add_eos=false", ("tokenize_text",), "params.add_eos", True, False),
    ("tokenize.train.vocab_size=5000", ("tokenize_text",), "params.train.vocab_size", 4000, 5000),
    ("tokenize.train.lowercase=false", ("tokenize_text",), "params.train.lowercase", True, False),
    ("pack.strategy=bfd", ("pack_chunks",), "params.strategy", "pad", "bfd"),
    ("pack.chunk_length=128", ("pack_chunks",), "params.chunk_length", 32, 128),
    ("train.learning_rate=3e-5", ("train",), "params.learning_rate", 3e-3, 3e-5),
    ("train.epochs=2", ("train",), "params.epochs", 3, 2),
    ("train.max_steps=80", ("train",), "params.max_steps", None, 80),
    ("train.schedule=cosine", ("train",), "params.schedule", "linear", "cosine"),
    ("train.weight_decay=0", ("train",), "params.weight_decay", 0.01, 0.0),
    ("train.seed=1", ("train",), "params.seed", 0, 1),
    ("train.global_batch=64", TRAINING, "params.global_batch", 96, 64),
    ("train.micro_batch=8", TRAINING, "params.micro_batch", None, 8),
    ("train.zero1=true", TRAINING, "params.zero1", False, True),
    ("train.remat=true", TRAINING, "params.remat", False, True),
    ("train.dtype=bfloat16", TRAINING, "params.dtype", "float32", "bfloat16"),
    ("train.threads=63", ("train",), "accel.threads", None, 63),
    ("model.config.hidden_size=256", TRAINING, f"{MODEL}.hidden_size", 128, 256),
    ("model.overrides={hidden_dropout_prob: 0.1}", TRAINING, f"{MODEL}.hidden_dropout_prob", 0.0, 0.1),
    ("consolidate.dtype=bfloat16", ("consolidate",), "params.dtype", "float32", "bfloat16"),
    ("export.batch=4", ("export_neuron",), "params.batch", 8, 4),
    ("export.length=32", ("export_neuron",), "params.length", None, 32),
    ("evaluate.split=validation", ("evaluate_model",), "params.split", "test", "validation"),
    ("evaluate.generation.max_new_tokens=9", ("evaluate_model",), "params.generation.max_new_tokens", ..., 9),
]  # fmt: skip


def documents(memo: Memo, *overrides: str) -> dict[str, Meta]:
    """The key documents of all nine stages of `demo`, on artifacts that are the same each time."""
    recipe = settings.load("demo", overrides)
    model = model_source(recipe.model, Resolver(Path("nowhere"), offline=True, memo=memo))
    meta = {
        "task": "classification",
        "lengths": [64],
        "vocab_size": 4000,
        "labels": ["a", "b"],
        "rows": {},
        "max_length": 64,
    }
    inputs: dict[str, Artifact | Source] = {
        name: Artifact(f"sha256:{name}", name, meta, ()) for name in ("rows", "texts", "tokens", "packed", "shards")
    }
    inputs |= {name: Artifact(f"sha256:{name}", name, meta, ()) for name in ("weights", "exported")}
    inputs |= {"model": model, "source": Source("data", {"digest": "sha256:rows"})}
    found = {}
    for stage, section in SECTIONS.items():
        function = getattr(finetune, stage)
        code = function.__code__
        names = [name for name in code.co_varnames[1 : code.co_argcount] if name in inputs]
        names += ["weights"] if stage == "evaluate_model" else []  # with which its predictions are made
        found[stage] = key_document(
            stage_of(function), getattr(recipe, section), {name: inputs[name] for name in names}, memo
        )
    return found


@pytest.fixture(scope="module")
def memo(tmp_path_factory: pytest.TempPathFactory) -> Memo:
    return Memo(tmp_path_factory.mktemp("memo") / "memo.db")


def record(document: Meta, created: str) -> Meta:
    return {"created": created, "document": document}


def test_there_are_thirty_changes_over_all_stages() -> None:
    assert len(CHANGES) >= 30
    assert {stage for _, stages, *_ in CHANGES for stage in stages} == set(SECTIONS)


@pytest.mark.parametrize(("override", "stages", "name", "before", "after"), CHANGES, ids=[case[0] for case in CHANGES])
def test_the_changed_field_is_named_with_both_values_and_no_other_is(
    memo: Memo, override: str, stages: tuple[str, ...], name: str, before: Any, after: Any
) -> None:
    old, new = documents(memo), documents(memo, override)
    assert {stage for stage in SECTIONS if key_of(old[stage]) != key_of(new[stage])} == set(stages)
    for stage in stages:
        farther = {**old[stage], "env": {}, "params": {}}
        near = nearest_record([record(farther, "2"), record(old[stage], "1")], new[stage])
        assert near is not None
        assert near[0]["created"] == "1"
        (change,) = near[1]
        assert f"{change.part}.{change.name}" == (
            name if stage == "train" else name.replace("model.config", "architecture")
        )
        assert change.after == after and type(change.after) is type(after)
        if name == "accel.threads":
            assert change.before == settings.load("demo").train.resolved_threads
        elif before is not ...:
            assert change.before == before and type(change.before) is type(before)
