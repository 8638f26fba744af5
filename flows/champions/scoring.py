"""Score a model on frozen rows: format and tokenise them as the model's own recipe does, then run `score_rows`.

Each step is a stage with a key, so a model that was scored on these rows before is not scored again.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from flows.champions.contenders import Contender
from flows.recipes.recipe import Recipe
from flows.runner.devices import devices_of_stages
from flows.runner.executor import Listener, filled_environment
from flows.runner.run import heal, new_run_id
from flows.runner.runner import Runner
from flows.runner.work_folders import workplace
from tasks.artifact import Artifact, Source
from tasks.data.format.config import FormatConfig
from tasks.errors import BlobLost
from tasks.format_prompts import format_prompts
from tasks.promotion.number_labels import NumberLabelsConfig, number_labels
from tasks.promotion.score_rows import ScoreConfig, score_rows
from tasks.sources.model_source import TOKENIZER_FILES
from tasks.sources.resolver import Resolver
from tasks.store import Store
from tasks.tokenize_text import TokenizeConfig, tokenize_text

WHOLE = 1 << 24
"""The most tokens of a row of a language model, which is scored in windows and never cut."""


class Scored(NamedTuple):
    """The scores of a model. artifact: made by `score_rows`; key: its stage key."""

    artifact: Artifact
    key: str


def new_runner(recipe: Recipe, store: Store, listeners: tuple[Listener, ...], *, offline: bool = False) -> Runner:
    """Return a runner for a few stages with the recipe's settings of store and processes. No run record is written."""
    resolver = Resolver(store.home, offline=offline, memo=store.memo, folders=recipe.folders)
    return Runner(
        store, resolver, run=new_run_id(), recipe=recipe.name, listeners=listeners, launch=recipe.launch,
        min_free_gb=recipe.store.min_free_gb, lease_ttl=recipe.store.lease_ttl_seconds, threads=recipe.task_runner.count,
        devices=devices_of_stages(recipe, filled_environment(recipe.launch)),
    )  # fmt: skip


def score(recipe: Recipe, store: Store, model: Contender, frozen: Artifact, listeners: tuple[Listener, ...]) -> Scored:
    """Score a model on frozen rows.

    Args:
        recipe: Its settings of store, processes and device are used; how rows become tokens is the model's own.
        frozen: The artifact of `freeze_rows`.

    Raises:
        DataError: The frozen rows have other labels than the model, or a column that the model needs is missing.
        BlobLost: The store has lost a file of the model.
    """
    missing = store.missing(model.artifact)
    if missing is not None:
        raise BlobLost(f"the store has lost {missing.path} of the model {model.artifact.digest[:19]}")
    runner = new_runner(recipe, store, listeners)
    with workplace(store.home, f"{runner.executor.run}.scoring") as work:
        tokenizer = _tokenizer(store, model.artifact, work)
        heal(runner, lambda: _call_stages(runner, recipe, model, frozen, tokenizer))
    store.memo.save()
    made = runner.outcomes["score_rows"]
    assert made.artifact is not None and made.key is not None
    return Scored(made.artifact, made.key)


def _call_stages(runner: Runner, recipe: Recipe, model: Contender, frozen: Artifact, tokenizer: Source) -> None:
    meta = model.artifact.meta
    longest = max(meta["lengths"])
    labels = tuple(meta["labels"]) if meta["task"] == "classification" else None
    shape = {"train": None, "overlong": "truncate", "max_length": WHOLE if labels is None else longest}
    rows = runner(number_labels, NumberLabelsConfig(labels=labels), frozen)
    texts = runner(format_prompts, FormatConfig.model_validate(model.shaping["format"]), rows, tokenizer)
    tokens = runner(tokenize_text, TokenizeConfig.model_validate(model.shaping["tokenize"] | shape), texts, tokenizer)
    device = recipe.evaluate.on_device_of(recipe.training.device).device or "cpu"
    runner(score_rows, ScoreConfig(window=longest, device=device), texts, tokens, model.artifact)


def _tokenizer(store: Store, model: Artifact, work: Path) -> Source:
    """The tokenizer in a model's folder, as a source; its files are laid out in `work`."""
    files = tuple(file for file in model.files if file.path in TOKENIZER_FILES)
    folder = store.checkout(Artifact(model.digest, "tokenizer", {}, files), work / "tokenizer")
    identity = {
        "config": {"pretrained": None, "overrides": {}},
        "tokenizer": {"files": {file.path: file.digest for file in files}},
        "weights": None,
    }
    return Source("model", identity, {"model": None, "tokenizer": {"folder": str(folder)}})
