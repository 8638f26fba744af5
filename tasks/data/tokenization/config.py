"""The config class of the stage tokenize_text."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from trnflow.tasks.config import NOT_KEYED, WHEN_SET, PositiveCount, StageConfig, Tokens
from trnflow.tasks.data.tokenization.tokenizer_training import TrainTokenizer


class TokenizeConfig(StageConfig):
    """Settings of the stage `tokenize_text`, which turns texts into token ids."""

    max_length: Tokens = 512
    """The largest number of tokens in a row, special tokens included; where a row has texts that are read one at a time
    (`embedding`, preferences), of each text."""
    overlong: Literal["truncate", "split", "drop", "error"] = "truncate"
    """What happens to rows with more than `max_length` tokens: `truncate` keeps the beginning, or the end where the model's
    tokenizer says `truncation_side: left`. `split` is for language models only."""
    add_eos: bool = True
    """Whether an end-of-sequence token follows each text of a language model. A chat template writes its own ends. Answers that
    no special token ends are refused, unless this is false."""
    train: TrainTokenizer | None = None
    """Train a tokenizer on the train split, for models from scratch. Default: the model's own tokenizer."""
    new_tokens: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], WHEN_SET] = ()
    """Tokens that the model's tokenizer lacks, such as ["<tool>", "</tool>"]: each becomes one id, and the model's embeddings
    grow where they have no rows left. With LoRA their rows alone are trained of these. One that ends answers becomes a special
    token of the model's tokenizer."""
    shard_bytes: Annotated[PositiveCount, NOT_KEYED] = 2 << 20
    """The mean size, in bytes of text, of the shards that are cached one by one. With smaller shards, less is done
    again when data changes, but there are more files."""

    @model_validator(mode="after")
    def _check_new_tokens(self) -> TokenizeConfig:
        for at, token in enumerate(self.new_tokens):
            if not token.strip() or token in self.new_tokens[:at]:
                what = "is blank" if not token.strip() else "stands there twice"
                raise ValueError(f"new_tokens: entry {at + 1}, {token!r}, {what}: leave it out")
        if self.new_tokens and self.train:
            raise ValueError(
                "new_tokens are added to a model's own tokenizer, and `train` makes a new one of your texts: leave one out"
            )
        return self
