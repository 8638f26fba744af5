"""The bytes that a language model's supervised tokens spell: what bits per byte are divided by."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models

from tests.training.toys import VOCABULARY, packed_lm
from trnflow.tasks.data.chunks import open_chunks
from trnflow.tasks.data.tokenization.tokenizer import FastTokenizer
from trnflow.tasks.evaluation.row_losses import spelled_bytes


def test_special_tokens_spell_no_bytes(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({f"{number:02}": number for number in range(VOCABULARY)}, "00"))
    tokenizer.decoder = decoders.Fuse()
    special = range(20)
    tokenizer.add_special_tokens([f"{number:02}" for number in special])
    packed = packed_lm(tmp_path, rows=4)
    columns = open_chunks(packed, "train", packed.meta["lengths"][-1])
    plain = (columns["labels"] >= len(special)).astype(int)
    wanted = [
        2 * int(row[segments == number].sum())
        for row, segments in zip(plain, columns["segment_ids"], strict=True)
        for number in (1, 2)
    ]
    assert [*spelled_bytes(packed, "train", FastTokenizer(tokenizer, {}, "toy"))] == wanted
    assert np.sum(wanted) < 2 * np.sum(columns["labels"] >= 0)
