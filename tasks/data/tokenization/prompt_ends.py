"""Keep the tokens of prompts as they are without the answers that follow.

A program sends a prompt alone. Where its last token would go on in the answer, the piece of text that holds the prompt's
end is encoded as two. Pieces: see `word_encoder`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from trnflow.tasks.data.tokenization.token_shards import Texts
from trnflow.tasks.data.tokenization.word_encoder import ADDED, TokenPieces, WordEncoder

if TYPE_CHECKING:
    import numpy as np

    Longs = np.ndarray[Any, np.dtype[np.int64]]
    from trnflow.tasks.system.arrays import Int32s

Mark = tuple[int, int]
"""First byte and end of an added token, with its blanks."""


class Joined(NamedTuple):
    """Prompts whose tokens the answer changes. ends: int64 [prompts], bytes; rows: int64 [prompts]; tokens: int32 as bytes,
    of each piece's text up to the prompt's end."""

    ends: Longs
    rows: Longs
    tokens: list[bytes]


class Pieced(NamedTuple):
    """Pieces, their ids (int32 [tokens]) and the tokens of each (int64 [pieces])."""

    pieces: TokenPieces
    ids: Int32s
    sizes: Longs


def added_of(words: WordEncoder, texts: Texts, special: dict[str, int]) -> list[Mark]:
    """Return what `find_added` finds, but for tokens in `plain` parts and those that a prompt and its answer spell together."""
    import numpy as np

    added = words.find_added(texts.data, texts.rows, special)
    if not added or not len(texts.prompts):
        return _outside_plain(texts, added)
    marks = np.array(added)
    at = np.searchsorted(texts.prompts, marks[:, 0], side="right")
    crosses = np.append(texts.prompts, len(texts.data))[at] < marks[:, 1]
    kept = [mark for mark, is_cut in zip(added, crosses, strict=True) if not is_cut]
    for number in np.flatnonzero(crosses).tolist():
        (start, end), cut = added[number], int(texts.prompts[at[number]])
        # a token of the prompt may take the blanks with which the answer begins
        if texts.data[start:cut].decode().strip() == texts.data[start:end].decode().strip():
            kept.append((start, end))
        else:
            kept += words.find_added(texts.data, np.array([start, cut, end]), special)
    return _outside_plain(texts, sorted(kept))


def _outside_plain(texts: Texts, added: list[Mark]) -> list[Mark]:
    import numpy as np

    if not added or not texts.plain.any():
        return added
    starts, ends = (np.array([mark[side] for mark in added]) for side in (0, 1))
    counts = np.concatenate([[0], np.cumsum(texts.plain)])
    first = np.searchsorted(texts.parts[1:], starts, side="right")
    last = np.searchsorted(texts.parts[1:], ends - 1, side="right") + 1
    return [mark for mark, touched in zip(added, counts[last] > counts[first], strict=True) if not touched]


def joined_prompts(words: WordEncoder, texts: Texts, pieced: Pieced) -> Joined:
    """Return the prompts that end within a piece whose ids do not begin with those of the prompt's part of it."""
    import numpy as np

    pieces, ids, sizes = pieced
    at = np.searchsorted(pieces.starts, texts.prompts) - 1
    inside = np.flatnonzero(pieces.starts[at + 1] != texts.prompts)
    inside = inside[pieces.kind[at[inside]] != ADDED]
    begins = np.cumsum(sizes) - sizes
    tokens: dict[int, bytes] = {}
    for kind in np.unique(pieces.kind[at[inside]]).tolist():
        here = inside[pieces.kind[at[inside]] == kind]
        prompts = [texts.data[pieces.starts[at[n]] : texts.prompts[n]].decode() for n in here]
        for number, prompt, alone in zip(here.tolist(), prompts, words.ids_of(kind, prompts), strict=True):
            begin, size = begins[at[number]], sizes[at[number]]
            rest = texts.data[texts.prompts[number] : pieces.starts[at[number] + 1]]
            begins_alike = ids[begin : begin + size].tobytes().startswith(alone)
            if not begins_alike or _is_shared(words, kind, prompt, alone, rest):
                tokens[number] = alone
    which = np.array(sorted(tokens), dtype=np.int64)
    ends = texts.prompts[which]
    return Joined(ends, np.searchsorted(texts.rows, ends) - 1, [tokens[number] for number in which.tolist()])


def _is_shared(words: WordEncoder, kind: int, prompt: str, alone: bytes, rest: bytes) -> bool:
    """Return whether the prompt's last token is one for unknown letters, and stands for those of the rest, too."""
    if not alone or not alone.endswith(words.unknown):
        return False
    ((_, span),) = words.spans(kind, [prompt + rest.decode()])
    return bool(span(len(alone) // 4 - 1)[1] > len(prompt))


def encoded_apart(words: WordEncoder, texts: Texts, pieced: Pieced, joined: Joined) -> Pieced:
    """Cut the pieces at the ends of prompts, at most one in a row, and encode what follows in them anew."""
    import numpy as np

    pieces, ids, sizes = pieced
    at = np.searchsorted(pieces.starts, joined.ends) - 1
    rests = [texts.data[a:b].decode() for a, b in zip(joined.ends, pieces.starts[at + 1], strict=True)]
    after = words.ids_of(words.continued, rests)
    begins = np.cumsum(sizes) - sizes
    blocks = np.split(ids, np.stack([begins[at], begins[at] + sizes[at]], axis=1).ravel())
    blocks[1::2] = [np.frombuffer(a + b, np.int32) for a, b in zip(joined.tokens, after, strict=True)]
    sizes = sizes.copy()
    sizes[at] = [len(block) // 4 for block in joined.tokens]
    cut = TokenPieces(np.insert(pieces.starts, at + 1, joined.ends), np.insert(pieces.kind, at + 1, words.continued))
    return Pieced(cut, np.concatenate(blocks), np.insert(sizes, at + 1, [len(block) // 4 for block in after]))
