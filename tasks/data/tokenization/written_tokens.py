"""Write the special tokens that parts name by role, as a chat template of the folder writes them."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

from trnflow.tasks.data.tokenization.token_shards import Texts
from trnflow.tasks.data.tokenization.word_encoder import find_all


def write_tokens(
    texts: Texts, roles: dict[str, list[str]], blanks: dict[str, tuple[bool, bool]]
) -> tuple[Texts, list[tuple[int, int]]]:
    """Give each part that names a role the role's tokens as its text.

    roles: {role: tokens}; blanks: {token: (whether blanks before, after belong to it)}.

    Returns the texts, and (first byte, end) of each token that was written, with its blanks.
    """
    import numpy as np

    assert texts.tokens is not None
    data, parts, places = bytearray(), [0], list[int]()
    for role, (start, end) in zip(texts.tokens, pairwise(texts.parts.tolist()), strict=True):
        for token in () if role is None else roles[role]:
            places.append(len(data))
            data += token.encode()
        data += texts.data[start:end]
        parts.append(len(data))
    bounds, named = np.array(parts, np.int64), np.array([role is not None for role in texts.tokens], dtype=bool)
    whole = Texts(
        bytes(data), np.frombuffer(data, dtype=np.uint8), bounds[texts.first], bounds, texts.first, texts.train,
        texts.plain | named, texts.held_out, texts.ends_prompt,
    )  # fmt: skip
    names = {token: blanks[token] for tokens in roles.values() for token in tokens}
    return whole, [span for span in find_all(whole.data, whole.rows, names) if _holds(span, places)]


def _holds(span: tuple[int, int], places: list[int]) -> bool:
    """Return whether one of the places, ascending, lies in the span. Rows may spell the token, too."""
    at = bisect_left(places, span[0])
    return at < len(places) and places[at] < span[1]
