"""Generate texts with a consolidated language model, as its `generation_config.json` says, else greedily.

Costs a forward pass a token, on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.tokenization.tokenizer import read_tokenizer
from trnflow.tasks.errors import DataError, ModelError
from trnflow.tasks.evaluation.generation import position_ids, prompt_encoder, prompt_ids, shortened
from trnflow.tasks.evaluation.models import load_model, longest_sequence
from trnflow.tasks.prediction.tokenizing import computing, tokenizing

SEED = 0
PROMPT = 32_768
"""Most tokens of a row where the model's configuration names no positions: memory grows with the square of them."""


class Generator:
    """A language model, loaded from a folder.

    templates: The recipe's prompt templates. framed: Whether a chat template writes special tokens, so that the tokenizer
    adds none. max_new_tokens: At most half of the model's positions, of PROMPT where it names none; more is lowered to that.
    seconds: after which a text ends where it is; None: never.
    """

    def __init__(
        self, folder: Path, templates: tuple[str, ...], framed: bool, max_new_tokens: int, seconds: float | None = None
    ) -> None:
        self._seconds, self._name = seconds, folder.name
        with tokenizing(self._name):
            self._tokenizer = read_tokenizer(folder)
            self._encoder = prompt_encoder(self._tokenizer, {"templates": templates, "framed": framed})
        self._model: Any = load_model(folder, "causal_lm")
        self._positions = longest_sequence(self._model) or PROMPT
        self._new = min(max_new_tokens, max(self._positions // 2, 1))

    def predict(self, parts: list[Meta], where: str) -> Meta:
        """Generate a text for a prompt's parts {text, train}.

        Returns {prompt, generated, tokens, ended: by an end token, cut: tokens left out, if any}. Raises DataError for
        an empty prompt, ModelError for settings that transformers can't follow.
        """
        ids, kept = self._ids(parts, where)
        row, stop = torch.tensor([kept]), self._model.generation_config
        ends = [] if stop.eos_token_id is None else np.atleast_1d(stop.eos_token_id).tolist()
        # one prompt at a time from one seed: a text does not depend on the others of its file
        torch.manual_seed(SEED)
        with torch.inference_mode(), computing(self._name), _foreign_settings(self._name):
            generated = self._model.generate(
                row,
                attention_mask=torch.ones_like(row),
                use_cache=True,
                max_new_tokens=self._new,
                max_time=self._seconds,
                num_return_sequences=1,
                return_dict_in_generate=False,
                pad_token_id=next((end for end in (stop.pad_token_id, *ends) if end is not None), 0),
                **position_ids(self._model, row),
            )[0, len(kept) :].tolist()
        with tokenizing(self._name, len(generated)):
            text = self._tokenizer.tokenizer.decode(generated, skip_special_tokens=True)
        return {
            "prompt": "".join(part["text"] for part in parts),
            "generated": text,
            "tokens": len(generated),
            "ended": bool(generated) and generated[-1] in ends,
            **({"cut": len(ids) - len(kept)} if len(ids) > len(kept) else {}),
        }

    def _ids(self, parts: list[Meta], where: str) -> tuple[list[int], list[int]]:
        """Return a prompt's token ids, and those that the model reads."""
        with tokenizing(self._name, sum(len(part["text"]) for part in parts)):
            ids, prefix = prompt_ids(self._encoder, parts), self._tokenizer.prefix()
        if not ids:
            raise DataError(f"{where}: the prompt is empty", "give it a text")
        opening = len(prefix) if ids[: len(prefix)] == prefix else 0
        return ids, shortened(ids, self._positions - self._new, opening)


@contextmanager
def _foreign_settings(folder: str) -> Iterator[None]:
    """Turn what transformers says of settings that it can't follow, such as `stop_strings`, into a ModelError."""
    try:
        yield
    except (ValueError, TypeError, AttributeError, ImportError) as error:
        why = " ".join(str(error).split())
        raise ModelError(
            f"{folder} can't generate: {why}", "take the setting out of its generation_config.json"
        ) from error
