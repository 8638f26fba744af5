"""Score a model on frozen rows.

They are formatted and tokenised with the model's own settings. Each step is a cached stage.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from trnflow.flows.champions.contenders import Contender
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.runner.context import RunContext
from trnflow.flows.runner.graph import Graph, Node
from trnflow.flows.runner.run import settle
from trnflow.flows.runner.work_folders import workplace
from trnflow.tasks.artifact import Artifact, Source
from trnflow.tasks.data.format.config import FormatConfig
from trnflow.tasks.data.format.own_rows import HOOK
from trnflow.tasks.data.format.row_format import ROW_FORMAT_FILE
from trnflow.tasks.data.tokenization.config import TokenizeConfig
from trnflow.tasks.errors import BlobLost
from trnflow.tasks.events import EventLog
from trnflow.tasks.format_prompts import format_prompts
from trnflow.tasks.keys.hooks import recorded_code
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.promotion.number_labels import NumberLabelsConfig, number_labels
from trnflow.tasks.promotion.score_rows import ScoreConfig, score_rows
from trnflow.tasks.sources.model_source import TOKENIZER_FILES
from trnflow.tasks.stage import read_json
from trnflow.tasks.store import Store
from trnflow.tasks.tokenize_text import tokenize_text

# no row of a language model is cut: long rows are scored in windows
ALL_ROWS = 1 << 24


class Scored(NamedTuple):
    """A model's scores on the frozen rows: the artifact of `score_rows`, and its key."""

    artifact: Artifact
    key: str


def score(context: RunContext, model: Contender, frozen: Artifact, log: EventLog) -> Scored:
    """Score a model on each of the frozen rows, or find its scores in the store.

    Raises DataError if the frozen rows have other labels than the model or lack a column, BlobLost for a lost file.
    """
    recipe, store = context.recipe, context.store
    check_whole(store, model)
    judging = context.for_run(log, kind="promote")
    with workplace(store.home, f"{judging.run}.scoring") as work:
        tokenizer = _tokenizer(store, model.artifact, work)
        file = Path(tokenizer.location["tokenizer"]["folder"], ROW_FORMAT_FILE)
        own = read_json(file)["rows"].get("own") if file.exists() else None
        _, folder = recipe.hooks.get(HOOK, (None, recipe.own_folder))
        code = recorded_code(own, folder or Path.cwd(), store.home, store.memo) if own else None
        plan = settle(scoring(recipe, model, frozen, tokenizer, code), judging)
    return Scored(plan.artifact("score_rows"), str(plan.steps["score_rows"].key))


def check_whole(store: Store, model: Contender) -> None:
    """Raise BlobLost if the store has lost a file of a model."""
    missing = store.missing(model.artifact)
    if missing is not None:
        raise BlobLost(f"the store has lost {missing.path} of the model {model.artifact.digest[:19]}")


def scoring(recipe: Recipe, model: Contender, frozen: Artifact, tokenizer: Source, code: Source | None = None) -> Graph:
    """Return the graph from frozen rows to a model's scores. code: the user's own that made the model's texts."""
    meta = model.artifact.meta
    longest = max(meta["lengths"])
    kind = kind_of(meta["task"])
    labels = tuple(meta["labels"]) if kind.one_class else None
    shape = {"train": None, "overlong": "truncate", "max_length": longest if kind.per_row else ALL_ROWS}
    if kind.pairs:  # each answer is cut as in training
        del shape["max_length"]
    # frozen rows are no rows of train, whose targets would name the outputs
    formatted = FormatConfig.model_validate(kind.fixed(model.shaping["format"], meta["labels"]))
    tokenized = TokenizeConfig.model_validate(model.shaping["tokenize"] | shape)
    device = recipe.evaluate.on_device_of(recipe.training.device).device or "cpu"
    rows = Node(number_labels, NumberLabelsConfig(labels=labels), {"frozen": frozen})
    texts = Node(format_prompts, formatted, {"rows": rows, "model": tokenizer, "code": code})
    tokens = Node(tokenize_text, tokenized, {"texts": texts, "model": tokenizer})
    config = ScoreConfig(window=longest, device=device)
    scores = Node(score_rows, config, {"texts": texts, "tokens": tokens, "weights": model.artifact})
    return Graph((rows, texts, tokens, scores))


def _tokenizer(store: Store, model: Artifact, work: Path) -> Source:
    """Return a model's tokenizer as a source, laid out in `work`."""
    files = tuple(file for file in model.files if file.path in (*TOKENIZER_FILES, ROW_FORMAT_FILE))
    folder = store.link_files(Artifact(model.digest, "tokenizer", {}, files), work / "tokenizer")
    identity = {
        "config": {"pretrained": None, "overrides": {}},
        "tokenizer": {"files": {file.path: file.digest for file in files if file.path != ROW_FORMAT_FILE}},
        "weights": None,
    }
    return Source("model", identity, {"model": None, "tokenizer": {"folder": str(folder)}})
