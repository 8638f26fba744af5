"""Predict rows with a consolidated text classifier or reward model, or with its export.

A StableHLO export is for checking what it predicts, not for speed: a graph is compiled at each call, about a second.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.format.row_format import RowFormat, has_pairs
from trnflow.tasks.data.tables import label_type
from trnflow.tasks.data.texts import PAIR, TOKEN
from trnflow.tasks.data.tokenization.encoder_types import Encoder, encoder_type
from trnflow.tasks.data.tokenization.encoders import CausalEncoder, ClassEncoder
from trnflow.tasks.data.tokenization.token_encoder import TokenEncoder
from trnflow.tasks.data.tokenization.tokenizer import FastTokenizer, read_tokenizer
from trnflow.tasks.errors import ModelError
from trnflow.tasks.evaluation.models import input_names, load_model, longest_sequence
from trnflow.tasks.export.targets import open_export
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.prediction.carried import CUT, REMARK
from trnflow.tasks.prediction.prompts import Parts, Shape
from trnflow.tasks.prediction.tokenizing import computing, tokenizing
from trnflow.tasks.stage import read_json

Ints = np.ndarray[Any, np.dtype[np.int32]]
BATCH = 32
TEXTS = ("text", PAIR)


class Program(NamedTuple):
    """A classifier's forward pass.

    Attributes:
        call: `inputs`, int64 [rows, length] each -> float [rows, labels].
        inputs: Their number: with token types 3.
        longest: Most tokens of a row, or None.
        length: Tokens of a batch's longest row -> tokens to pad to.
        batch: Most rows of a call; all calls have it if `fixed`.
    """

    call: Callable[..., Tensor]
    inputs: int
    longest: int | None
    length: Callable[[int], int]
    batch: int
    fixed: bool


class Classifier:
    """A text classifier, loaded from a folder. rows: its `trnflow.json`."""

    def __init__(self, folder: Path, rows: RowFormat, *, exported: bool) -> None:
        self._name, self._kind = folder.name, kind_of(rows.task)
        self._decision, self._settings = rows.decision, rows.settings
        with tokenizing(self._name):
            tokenizer = read_tokenizer(folder)
        self._program = _exported(folder) if exported else _eager(folder, rows.task)
        self.max_length = min(rows.max_length, self._program.longest or rows.max_length)
        with tokenizing(self._name):
            self._encoder = self._encoder_of(tokenizer, encoder_type(rows.task, pair=has_pairs(folder)))
        self._pad = tokenizer.pad_id
        named = read_json(folder / "config.json").get("id2label") or {"": ""}
        names = {number: str(name) for number, name in named.items()}
        if {*names} != {*map(str, range(len(names)))} or len({*names.values()}) < len(names):
            raise ModelError(
                f"{folder / 'config.json'}: id2label must name each class once, by its number from 0",
                "get the model anew",
            )
        self.labels = [names[str(index)] for index in range(len(names))]

    def predict(self, given: list[Parts]) -> list[Meta]:
        """Return {text, the task's answer, cut: tokens left out, if any} of each row; of a pair also text_pair. Raises
        ModelError."""
        if not given:
            return []
        texts = self._texts(given)
        with tokenizing(self._name, sum(map(len, chain(*texts)))):
            rows, cut = self._tokens(given)
        # rows of like length share a batch, which pads least
        order = sorted(range(len(rows)), key=lambda row: len(rows[row][0]))
        predicted: list[Meta] = [{}] * len(rows)
        for start in range(0, len(order), self._program.batch):
            chosen = order[start : start + self._program.batch]
            for row, values in zip(chosen, self._values([rows[row] for row in chosen]), strict=True):
                predicted[row] = {
                    **dict(zip(TEXTS, texts[row], strict=False)),
                    **self._answer(texts[row][0], values, len(rows[row][0])),
                    **({CUT: cut[row]} if cut[row] else {}),
                }
        return predicted

    def no_answer(self, parts: Parts) -> Meta:
        """Return the prediction of an empty text: without an answer, and with a remark."""
        texts = dict(zip(TEXTS, *self._texts([parts]), strict=False))
        return {**dict.fromkeys(self._kind.answers), **texts, REMARK: "the text is empty"}

    def _encoder_of(self, tokenizer: FastTokenizer, encoder: type[Encoder]) -> Encoder:
        assert issubclass(encoder, ClassEncoder)
        return encoder(tokenizer, self.max_length, "truncate")

    def _answer(self, text: str, values: Any, tokens: int) -> Meta:
        if not isinstance(self._encoder, TokenEncoder):
            return self._kind.answer(values, self.labels, self._decision)
        with tokenizing(self._name, len(text)):
            places = self._encoder.places(text, tokens)
        return self._kind.answer_in(text, places, values[:tokens], self.labels, self._settings)

    def _texts(self, rows: list[Parts]) -> list[list[str]]:
        return [[part["text"] for part in parts] for parts in rows]

    def _tokens(self, rows: list[Parts]) -> tuple[list[tuple[Ints, ...]], list[int]]:
        """Return (token ids and types of each row, tokens left out of each)."""
        texts = self._texts(rows)
        columns = {
            name: pa.array(column, pa.string()) for name, column in zip(TEXTS, zip(*texts, strict=True), strict=False)
        }
        nothing: Any = [] if self._kind.per_position else 0  # labels are not read
        labels = pa.array([nothing] * len(texts), label_type(self._kind) if self._kind.per_position else pa.int64())
        encoded = self._encoder.encode(pa.table({**columns, "label": labels}))
        types = np.zeros_like(encoded.ids) if encoded.types is None else encoded.types
        ends = np.cumsum(encoded.sizes)[:-1]
        columns_of_rows = zip(np.split(encoded.ids, ends), np.split(types, ends), strict=True)
        return [*columns_of_rows], (encoded.lengths - encoded.sizes).tolist()

    def _values(self, rows: list[tuple[Ints, ...]]) -> list[Any]:
        """Return [row][label], or [row][position][label], of at most a batch."""
        longest = max(len(ids) for ids, _ in rows)
        if longest > self.max_length:  # a tokenizer's post-processor may add any number
            raise ModelError(
                f"the tokenizer of {self._name} gives {longest:,} tokens where at most {self.max_length:,} were asked for",
                "take another model, or get this one anew from where it was published",
            )
        length = self._program.length(longest)
        count = self._program.batch if self._program.fixed else len(rows)
        input_ids = torch.full((count, length), self._pad, dtype=torch.int64)
        attention_mask, types = torch.zeros_like(input_ids), torch.zeros_like(input_ids)
        for at in range(count):
            # an export takes whole batches: copies of the last row fill it up
            for column, values in zip((input_ids, types), rows[min(at, len(rows) - 1)], strict=True):
                column[at, : len(values)] = torch.from_numpy(values).long()
                attention_mask[at, : len(values)] = 1
        given = (input_ids, attention_mask, types)[: self._program.inputs]
        with torch.inference_mode(), computing(self._name):
            logits = self._program.call(*given)[: len(rows)].float()
        predicted = self._kind.values_of(logits)
        if not predicted.isfinite().all():
            raise ModelError("the model's logits are not finite", "the weights are broken: train again")
        return list(predicted.tolist())


def _eager(folder: Path, task: str) -> Program:
    model = load_model(folder, task)
    names = input_names(model)
    return Program(
        lambda *inputs: model(**dict(zip(names, inputs, strict=True))).logits,
        len(names),
        longest_sequence(model),
        lambda tokens: tokens,
        BATCH,
        fixed=False,
    )


def _exported(folder: Path) -> Program:
    program = open_export(folder)

    def length(tokens: int) -> int:
        return next(length for length in program.lengths if length >= tokens) if program.fixed else tokens

    batch = program.batch if program.fixed else BATCH
    return Program(program, len(program.inputs), program.lengths[-1], length, batch, program.fixed)


class RewardModel(Classifier):
    """A reward model, loaded from a folder. shape: of the rows that it reads."""

    def __init__(self, folder: Path, rows: RowFormat, shape: Shape, *, exported: bool) -> None:
        self._framed = shape.framed
        super().__init__(folder, rows, exported=exported)

    def _encoder_of(self, tokenizer: FastTokenizer, encoder: type[Encoder]) -> CausalEncoder:
        return CausalEncoder(tokenizer, self.max_length, "truncate", add_eos=True, framed=self._framed)

    def _texts(self, rows: list[Parts]) -> list[list[str]]:
        return [["".join(part["text"] for part in parts)] for parts in rows]

    def _tokens(self, rows: list[Parts]) -> tuple[list[tuple[Ints, ...]], list[int]]:
        flags = [(name, pa.bool_()) for name in ("train", "plain", "ends_prompt")]
        # a row's parts are of one schema, of which `sections` alone has tokens
        tokens = [(TOKEN, pa.string())] if any(TOKEN in part for row in rows for part in row) else []
        fields = pa.list_(pa.struct([("text", pa.string()), *flags, *tokens]))
        encoded = self._encoder.encode(pa.table({"parts": pa.array(rows, fields)}))
        ids = np.split(encoded.ids, np.cumsum(encoded.sizes)[:-1])
        return [(row, np.zeros_like(row)) for row in ids], (encoded.lengths - encoded.sizes).tolist()
