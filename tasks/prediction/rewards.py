"""Reward answers with a consolidated reward model, or with its export."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from trnflow.tasks.data.format.row_format import RowFormat
from trnflow.tasks.data.tokenization.encoder_types import Encoder
from trnflow.tasks.data.tokenization.encoders import CausalEncoder
from trnflow.tasks.data.tokenization.tokenizer import FastTokenizer
from trnflow.tasks.prediction.classification import Classifier, Ints
from trnflow.tasks.prediction.prompts import Parts, Shape


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
        fields = [("text", pa.string()), ("train", pa.bool_()), ("plain", pa.bool_())]
        parts = [[{"plain": False, **part} for part in row] for row in rows]
        encoded = self._encoder.encode(pa.table({"parts": pa.array(parts, pa.list_(pa.struct(fields)))}))
        ids = np.split(encoded.ids, np.cumsum(encoded.sizes)[:-1])
        return [(row, np.zeros_like(row)) for row in ids], (encoded.lengths - encoded.sizes).tolist()
