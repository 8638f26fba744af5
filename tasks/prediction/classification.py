"""Predict rows with a consolidated text classifier, or with its export.

A StableHLO export is for checking what it predicts, not for speed: a graph is compiled at each call, about a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.format.row_format import RowFormat
from trnflow.tasks.data.tokenization.encoders import ClassEncoder, TokenEncoder
from trnflow.tasks.data.tokenization.tokenizer import read_tokenizer
from trnflow.tasks.errors import ModelError
from trnflow.tasks.evaluation.models import load_model, longest_sequence
from trnflow.tasks.export.targets import open_export
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.stage import read_json

Ints = np.ndarray[Any, np.dtype[np.int32]]
BATCH = 32


class Program(NamedTuple):
    """A classifier's forward pass.

    Attributes:
        call: int64 [rows, length] twice -> float [rows, labels].
        longest: Most tokens of a row, or None.
        length: Tokens of a batch's longest row -> tokens to pad to.
        batch: Most rows of a call; all calls have it if `fixed`.
    """

    call: Callable[[Tensor, Tensor], Tensor]
    longest: int | None
    length: Callable[[int], int]
    batch: int
    fixed: bool


class Classifier:
    """A text classifier, loaded from a folder. rows: its `trnflow.json`."""

    def __init__(self, folder: Path, rows: RowFormat, *, exported: bool) -> None:
        tokenizer, self._kind, self._decision = read_tokenizer(folder), kind_of(rows.task), rows.decision
        self._program = _exported(folder) if exported else _eager(folder, rows.task)
        self.max_length = min(rows.max_length, self._program.longest or rows.max_length)
        of_tokens = self._kind.per_position
        self._encoder = (TokenEncoder if of_tokens else ClassEncoder)(tokenizer, self.max_length, "truncate")
        self._pad = tokenizer.pad_id
        named = read_json(folder / "config.json")["id2label"]
        self.labels = [str(named[str(index)]) for index in range(len(named))]

    def predict(self, texts: Sequence[str]) -> list[Meta]:
        """Return {text, the task's answer, cut: tokens left out, if any} of each text. Raises ModelError."""
        rows, cut = self._tokens(texts)
        # rows of like length share a batch, which pads least
        order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
        predicted: list[Meta] = [{}] * len(rows)
        for start in range(0, len(order), self._program.batch):
            chosen = order[start : start + self._program.batch]
            for row, values in zip(chosen, self._values([rows[row] for row in chosen]), strict=True):
                predicted[row] = {
                    "text": texts[row],
                    **self._answer(texts[row], values, len(rows[row])),
                    **({"cut": cut[row]} if cut[row] else {}),
                }
        return predicted

    def _answer(self, text: str, values: Any, tokens: int) -> Meta:
        if not isinstance(self._encoder, TokenEncoder):
            return self._kind.answer(values, self.labels, self._decision)
        places = self._encoder.places(text, tokens)
        return self._kind.answer_in(text, places, values[:tokens], self.labels, self._decision)

    def _tokens(self, texts: Sequence[str]) -> tuple[list[Ints], list[int]]:
        """Return (token ids of each text, tokens left out of each)."""
        nothing = [] if self._kind.per_position else 0  # labels are not read
        labels = pa.array([nothing] * len(texts), self._kind.label_type() if self._kind.per_position else pa.int64())
        encoded = self._encoder.encode(pa.table({"text": pa.array(texts, pa.string()), "label": labels}))
        return np.split(encoded.ids, np.cumsum(encoded.sizes)[:-1]), (encoded.lengths - encoded.sizes).tolist()

    def _values(self, rows: list[Ints]) -> list[Any]:
        """Return [row][label], or [row][position][label], of at most a batch."""
        length = self._program.length(max(len(row) for row in rows))
        count = self._program.batch if self._program.fixed else len(rows)
        input_ids = torch.full((count, length), self._pad, dtype=torch.int64)
        attention_mask = torch.zeros_like(input_ids)
        for at in range(count):
            # an export takes whole batches: copies of the last row fill it up
            row = rows[min(at, len(rows) - 1)]
            input_ids[at, : len(row)] = torch.from_numpy(row).long()
            attention_mask[at, : len(row)] = 1
        with torch.inference_mode():
            logits = self._program.call(input_ids, attention_mask)[: len(rows)].float()
        values = self._kind.values_of(logits)
        if not values.isfinite().all():
            raise ModelError("the model's logits are not finite", "the weights are broken: train again")
        return list(values.tolist())


def _eager(folder: Path, task: str) -> Program:
    model = load_model(folder, task)
    return Program(
        lambda input_ids, attention_mask: model(input_ids=input_ids, attention_mask=attention_mask).logits,
        longest_sequence(model),
        lambda tokens: tokens,
        BATCH,
        fixed=False,
    )


def _exported(folder: Path) -> Program:
    program = open_export(folder)

    def length(tokens: int) -> int:
        return next(length for length in program.lengths if length >= tokens) if program.fixed else tokens

    return Program(program, program.lengths[-1], length, program.batch if program.fixed else BATCH, program.fixed)
