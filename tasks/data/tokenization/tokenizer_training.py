"""Train tokenizers: the same texts give the same bytes on any machine.

`tokenizers` numbers WordPiece's initial characters in a hash map's order and breaks ties by it: four runs gave four
vocabularies. So the sorted characters come first here, and the model is built from the vocabulary alone. Byte-level BPE
starts from 256 sorted bytes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from trnflow.tasks.config import StageConfig
from trnflow.tasks.data.tokenization.tokenizer import BERT_SPECIAL, FastTokenizer, bert_pipeline
from trnflow.tasks.errors import ConfigError, DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MOST_CHARACTERS = 1000
BPE_SPECIAL = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
_FEWEST = 2


class TrainTokenizer(StageConfig):
    """The settings `tokenize.train`: which kind of tokenizer to train on the train split, and of what size."""

    kind: Literal["wordpiece", "bpe"] = "wordpiece"
    """The algorithm: `wordpiece` as BERT's, or `bpe` over bytes as GPT-2's."""
    vocab_size: Annotated[int, Field(gt=0, le=10_000_000)] = 8192
    """The size of the vocabulary, special tokens included."""
    lowercase: bool = False
    """Whether text is lowercased first."""


def train_tokenizer(config: TrainTokenizer, texts: Callable[[], Iterable[str]], causal: bool) -> FastTokenizer:
    """Train a tokenizer as `tokenize.train` asks. texts: returns all texts, called once or twice; causal: for a
    language model.

    Raises ConfigError for a vocabulary too small for the characters, DataError for texts without any.
    """
    trained = (
        _train_wordpiece(config, texts, causal) if config.kind == "wordpiece" else _train_bpe(config, texts, causal)
    )
    if trained.vocab_size > config.vocab_size:
        raise ConfigError(
            f"tokenize.train.vocab_size: {config.vocab_size} entries don't hold the texts' characters",
            f"set at least {trained.vocab_size}",
        )
    return trained


def _train_wordpiece(config: TrainTokenizer, texts: Callable[[], Iterable[str]], causal: bool) -> FastTokenizer:
    from tokenizers import Tokenizer, models, trainers

    special = dict(BERT_SPECIAL)
    learner = Tokenizer(models.WordPiece(unk_token=special["unk_token"]))
    learner.add_special_tokens(list(special.values()))
    bert_pipeline(learner, config.lowercase, special)
    characters = _characters(learner, texts())
    first = [*special.values(), *characters, *(f"##{character}" for character in characters)]
    learner.train_from_iterator(
        texts(),
        trainers.WordPieceTrainer(
            vocab_size=config.vocab_size,
            min_frequency=_FEWEST,
            special_tokens=first,
            initial_alphabet=characters,
            limit_alphabet=len(characters),
            show_progress=False,
        ),
    )
    # a new tokenizer, in which "##a" is an ordinary entry, not a special token
    vocabulary = json.loads(learner.to_str())["model"]["vocab"]
    tokenizer = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token=special["unk_token"]))
    bert_pipeline(tokenizer, config.lowercase, special)
    if causal:
        special |= {"bos_token": special["cls_token"], "eos_token": special["sep_token"]}
    return FastTokenizer(tokenizer, special, "trained by the recipe")


def _characters(tokenizer: Tokenizer, texts: Iterable[str]) -> list[str]:
    """Return the most frequent characters of the normalised texts, sorted. Raises DataError without any."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(tokenizer.normalizer.normalize_str(text))
    ranked = sorted((-count, character) for character, count in counts.items() if not character.isspace())
    if not ranked:
        raise DataError("the train split holds no characters to train a tokenizer on", "check format's columns")
    return sorted(character for _, character in ranked[:MOST_CHARACTERS])


def _train_bpe(config: TrainTokenizer, texts: Callable[[], Iterable[str]], causal: bool) -> FastTokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    special = dict(BPE_SPECIAL)
    tokenizer = Tokenizer(models.BPE())
    if config.lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size,
        min_frequency=_FEWEST,
        special_tokens=list(special.values()),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    bos, eos = special["bos_token"], special["eos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A" if causal else f"{bos} $A {eos}",
        special_tokens=[(text, tokenizer.token_to_id(text)) for text in (bos, eos)],
    )
    return FastTokenizer(tokenizer, special, "trained by the recipe")
