"""Check that the model of `train.warm_start_from` has the vocabulary of this run's rows."""

from __future__ import annotations

import tempfile
from pathlib import Path

from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.runner.plan import Plan
from trnflow.tasks.artifact import Artifact, File
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.store import Store

TOKENIZER_FILE = "tokenizer.json"
FIX = (
    "take that model's own tokenizer: copy it with `trnflow get RECIPE tokenize_text DEST`, and set "
    "model.tokenizer=DEST/tokenizer tokenize.train=null"
)


def check_vocabulary(store: Store, start: Artifact, tokens: Artifact) -> None:
    """Raise ConfigError if an id that both tokenizers have stands for different tokens.

    start: an artifact of consolidate or train; tokens: this run's artifact of tokenize_text.
    """
    ours, theirs = _tokenizer(tokens), _tokenizer(start)
    if ours.digest == theirs.digest:
        return  # the usual case: nothing is read
    known, now = _words(store, theirs), _words(store, ours)
    changed = [number for number in known.keys() & now.keys() if known[number] != now[number]]
    if changed:
        first = min(changed)
        raise ConfigError(
            f"train.warm_start_from: {start.digest[:19]} has another vocabulary than this run's rows: {len(changed)} ids differ, "
            f"such as {first}, {known[first]!r} there and {now[first]!r} here",
            FIX,
        )


def refuse_unknown_vocabulary(recipe: Recipe, plan: Plan) -> None:
    """Raise ConfigError if training starts from an earlier model, and the run's tokenizer is yet to be trained."""
    both = recipe.tokenize.train and recipe.train.warm_start_from
    if both and plan.roles["tokens"].artifact is None:
        raise ConfigError(
            "train.warm_start_from: tokenize.train has yet to train this run's tokenizer, and its ids may mean other words than "
            "the model's",
            f"{FIX}; or run `trnflow prepare` with the same settings first, and the two are compared",
        )


def _tokenizer(artifact: Artifact) -> File:
    """Return the file tokenizer.json of an artifact: tokens, a checkpoint or a model."""
    return next(file for file in artifact.files if Path(file.path).name == TOKENIZER_FILE)


def _words(store: Store, file: File) -> dict[int, str]:
    """Read a tokenizer.json from the store and return {id: token}, added tokens included."""
    from tokenizers import Tokenizer

    alone = Artifact(file.digest, "tokenizer", {}, (file._replace(path=TOKENIZER_FILE),))
    with tempfile.TemporaryDirectory() as folder:
        store.copy_files(alone, Path(folder))
        vocabulary = Tokenizer.from_file(f"{folder}/{TOKENIZER_FILE}").get_vocab(with_added_tokens=True)
    return {number: token for token, number in vocabulary.items()}
