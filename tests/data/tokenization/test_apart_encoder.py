"""Texts of a row that are read apart are cut, or the row is dropped, by the longest of them."""

from __future__ import annotations

import pytest

from tests.data.tokenization.test_pair_encoder import rows, tokenizer
from trnflow.tasks.data.tokenization.apart_encoder import ApartEncoder

PAIRS = [("a b", "c"), ("a", "a b c d e"), ("a b c d e f", "b"), ("a b c", "a b c")]


@pytest.mark.parametrize(
    ("overlong", "kept", "sizes"), [("drop", [0, 3], [7, 10]), ("truncate", [0, 1, 2, 3], [7, 8, 8, 10])]
)
def test_the_longest_text_of_a_row_decides(overlong: str, kept: list[int], sizes: list[int]) -> None:
    found = ApartEncoder(tokenizer("bert"), 5, overlong).encode(rows(PAIRS))
    assert found.row.tolist() == kept and found.sizes.tolist() == sizes
    assert found.lengths.tolist() == [4, 7, 8, 5]
