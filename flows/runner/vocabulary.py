"""Check that a model which training starts from has the same vocabulary as the rows of this run.

Each token id must mean the same word in both.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from flows.recipes.recipe import Recipe
from flows.runner.call import Outcome
from tasks.artifact import Artifact, File
from tasks.errors import ConfigError
from tasks.store import Store

FILE = "tokenizer.json"
FIX = (
    "take that model's own tokenizer: copy it with `trnflow get RECIPE tokenize_text DEST`, and set "
    "model.tokenizer=DEST/tokenizer tokenize.train=null"
)


def check_vocabulary(store: Store, start: Artifact, tokens: Artifact) -> None:
    """Raise ConfigError if a token id means one word in the tokenizer of the model `start` and another in that of `tokens`.

    Compares ids that both tokenizers have. Reads neither file if their digests are equal.
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


def refuse_unknown_vocabulary(recipe: Recipe, planned: dict[str, Outcome]) -> None:
    """Raise ConfigError if training starts from an earlier model and this run would first train a new tokenizer.

    The ids of that tokenizer can't be compared with the model's before the run.

    Args:
        planned: What the run would do, by stage name.
    """
    both = recipe.tokenize.train and recipe.train.warm_start_from
    if both and planned["tokenize_text"].artifact is None:
        raise ConfigError(
            "train.warm_start_from: tokenize.train has yet to train this run's tokenizer, and its ids may mean other words than "
            "the model's",
            f"{FIX}; or run `trnflow prepare` with the same settings first, and the two are compared",
        )


def _tokenizer(artifact: Artifact) -> File:
    """The file among those of tokens, a checkpoint or a model."""
    return next(file for file in artifact.files if Path(file.path).name == FILE)


def _words(store: Store, file: File) -> dict[int, str]:
    """id -> token."""
    from tokenizers import Tokenizer

    alone = Artifact(file.digest, "tokenizer", {}, (file._replace(path=FILE),))
    with tempfile.TemporaryDirectory() as folder:
        store.copy_out(alone, Path(folder))
        vocabulary = Tokenizer.from_file(f"{folder}/{FILE}").get_vocab(with_added_tokens=True)
    return {number: token for token, number in vocabulary.items()}
