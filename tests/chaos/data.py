"""The project's files: a recipe that trains for 40 steps, its tokenizer, and training rows of every kind that a week brings."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import NamedTuple

from tests.flows.champions.conftest import NEUTRAL, RECIPE, WORDS, write_rows


class Names(NamedTuple):
    recipe: str = "week.yaml"
    name: str = "week"


NAMES = Names()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
CHANGES = (
    ("tokenize: {max_length: 16, train: {kind: wordpiece, vocab_size: 200}}", "tokenize: {max_length: 16}"),
    ("model:\n", "model:\n  tokenizer: tokenizer\n"),
    ("max_steps: 1}", "max_steps: 40, engine: native, devices: 1, threads: 1}\npromote: {margin: 0.2}"),
    ("tracking: {enabled: false}\n", 'launch: {memory_gib: 2, environment: {USE_TORCH_XLA: "0"}}\n'),
)
"""What differs from the recipe of the tests of champions: no tokenizer is trained, one thread trains for 40 steps, MLflow
records, no process imports torch_xla, which takes a quarter of a retrain's processor time, and a stage's memory is limited.
The margin keeps a model that is better by luck from being promoted."""


def write_project(folder: Path, recipe: str = "") -> None:
    """Write recipe, tokenizer and rows into a folder. recipe: further sections in YAML."""
    folder.mkdir(parents=True, exist_ok=True)
    text = RECIPE
    for was, now in CHANGES:
        assert was in text
        text = text.replace(was, now)
    (folder / NAMES.recipe).write_text(text + recipe)
    write_tokenizer(folder / "tokenizer")
    write_rows(folder / "rows", {"pos": "pos", "neg": "neg"})


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer that knows the words of the rows."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = [*SPECIAL, *WORDS["pos"], *WORDS["neg"], *NEUTRAL]
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    tokens = {f"{word.strip('[]').lower()}_token": word for word in SPECIAL}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 32, **tokens}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def rows(count: int, wrong: float = 0.05, positive: float = 0.5, seed: int = 7) -> bytes:
    """Return `count` training rows, the first of which are the same for every count.

    Args:
        wrong: Share of the rows whose label is the other one.
        positive: Share of the rows with the words of `pos`.
    """
    lines = []
    for number in range(count):
        draw = random.Random(f"{seed} {number}")
        right = "pos" if draw.random() < positive else "neg"
        words = [*draw.choices(WORDS[right], k=3), *draw.choices(NEUTRAL, k=5)]
        draw.shuffle(words)
        label = right if draw.random() >= wrong else {"pos": "neg", "neg": "pos"}[right]
        lines.append(json.dumps({"text": f"{' '.join(words)} train {number}", "label": label}))
    return "\n".join(lines).encode()


def broken(sound: bytes) -> bytes:
    """Rows whose last line was cut off in the middle."""
    return sound[:-20]


def bomb() -> bytes:
    """One row of 4 GiB in 18 MB: the members of a gzip file are one text."""
    return gzip.compress(b'{"label": "pos", "text": "') + gzip.compress(b"a" * 2**26, 1) * 64


def with_long_cell(sound: bytes) -> bytes:
    """Rows and one more, whose text has 200 MB."""
    return b'%b\n{"label": "pos", "text": "%b"}' % (sound, b"a " * 10**8)


def without_labels(sound: bytes) -> bytes:
    """Rows of which every tenth has no label."""
    lines = [json.loads(line) for line in sound.splitlines()]
    return "\n".join(json.dumps(row | ({"label": None} if n % 10 == 0 else {})) for n, row in enumerate(lines)).encode()
