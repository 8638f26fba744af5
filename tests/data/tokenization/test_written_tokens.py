"""Which special tokens of a text a template wrote, and which a row spells."""

from __future__ import annotations

import numpy as np

from trnflow.tasks.data.tokenization.token_shards import Texts
from trnflow.tasks.data.tokenization.written_tokens import write_tokens


def test_a_token_that_a_row_spells_right_before_a_written_one_is_not_written() -> None:
    data, parts = b"hi<u>go<u>", np.array([0, 5, 10])
    none = np.zeros(2, dtype=bool)
    texts = Texts(
        data,
        np.frombuffer(data, np.uint8),
        parts[[0, 2]],
        parts,
        np.array([0, 2]),
        none,
        none,
        none,
        none,
        [None, "user"],
    )
    whole, written = write_tokens(texts, {"user": ["<u>"]}, {"<u>": (False, False)})
    assert whole.data == b"hi<u><u>go<u>" and written == [(5, 8)]
    assert whole.plain.tolist() == [False, True] and whole.parts.tolist() == [0, 5, 13]
