"""Encode texts as rows of token ids, with a label (classification), labels of tokens, or a loss mask (causal, in parts).

Rows longer than `max_length` are truncated, split or dropped (`overlong`); with "error" they are returned whole.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trnflow.tasks.data.texts import HELD_OUT
from trnflow.tasks.data.tokenization.answer_ends import EndFinder
from trnflow.tasks.data.tokenization.encoded import Encoded as Encoded
from trnflow.tasks.data.tokenization.prompt_ends import Pieced, added_of, encoded_apart, joined_prompts
from trnflow.tasks.data.tokenization.token_shards import Texts, texts_of
from trnflow.tasks.data.tokenization.tokenizer import FastTokenizer
from trnflow.tasks.data.tokenization.turn_rows import rows_of_turns, turns_apart
from trnflow.tasks.data.tokenization.word_encoder import ADDED, TokenPieces, WordEncoder, find_all, gather
from trnflow.tasks.data.tokenization.written_tokens import write_tokens
from trnflow.tasks.kinds.kind import IGNORED

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Longs = np.ndarray[Any, np.dtype[np.int64]]
    Extra = np.ndarray[Any, np.dtype[Any]]
    from trnflow.tasks.system.arrays import Int32s


TRAINED, KEPT_OUT = 1, 2
"""The mask of a token that is learnt, and of one that is held out of an answer."""


class ClassEncoder:
    """Encodes texts of labelled rows, in the tokenizer's special tokens ([CLS] text [SEP]), which truncation keeps."""

    extra = "labels"

    def __init__(self, loaded: FastTokenizer, max_length: int, overlong: str) -> None:
        self._frame = loaded.frame()
        self._words = WordEncoder(loaded.tokenizer)
        self._max_length = max_length
        self._overlong = overlong
        self._side = loaded.truncation_side

    def encode(self, rows: pa.Table) -> Encoded:
        """Encode a table with columns `text` and `label`."""
        import numpy as np

        texts = texts_of(rows)
        ids, bounds, marks = self._tokens(texts, rows)
        frame = sum(map(len, self._frame))
        lengths = np.diff(bounds) + frame
        kept = np.arange(len(lengths))
        sizes = np.diff(bounds)
        if self._overlong == "truncate":
            sizes = np.minimum(sizes, max(self._max_length - frame, 0))
        elif self._overlong == "drop":
            kept = kept[lengths <= self._max_length]
        starts = remaining(bounds, sizes, self._side)[kept]
        framed, total = frame_rows(gather(ids, starts, sizes[kept]), sizes[kept], self._frame)
        if marks is None:
            labels = targets_of(rows)[kept]
        else:
            before, after = ([IGNORED] * len(side) for side in self._frame)
            labels, _ = frame_rows(gather(marks, starts, sizes[kept]), sizes[kept], (before, after))
        return Encoded(framed, total, labels, kept, lengths, self._forged(texts))

    def _tokens(self, texts: Texts, rows: pa.Table) -> tuple[Int32s, Longs, Int32s | None]:
        """Return ids, each row's first token [rows + 1], and labels of tokens, if these have them."""
        return *self._ids(texts), None

    def _ids(self, texts: Texts) -> tuple[Int32s, Longs]:
        """Return the ids of all texts without special tokens, and the index of each row's first: int64 [rows + 1]."""
        pieces = self._words.pieces(texts.array, texts.rows, self._words.find_added(texts.data, texts.rows, {}))
        ids, per_piece = self._words.encode(texts.data, pieces)
        return ids, row_tokens(texts, pieces, per_piece)

    def _forged(self, texts: Texts) -> list[tuple[int, str]]:
        return _forged(texts, self._words, None)


def targets_of(rows: pa.Table) -> Extra:
    """Return the column `label`: classes as int32 [rows], lists of one length as float32 [rows, length]."""
    import numpy as np
    import pyarrow as pa

    column = rows.column("label").combine_chunks()
    if not pa.types.is_list(column.type):
        return np.asarray(column.to_numpy(), np.int32)
    return np.asarray(column.flatten().to_numpy(), np.float32).reshape(len(column), -1)


class CausalEncoder:
    """Encodes texts for a language model: bos if the tokenizer adds it, the parts as one text, eos; not twice. A row begins
    with the tokens of each of its prompts, encoded alone (`prompt_ends`).

    Args:
        framed: A chat template wrote all special tokens.
        templates: A special token's text counts only if it occurs in one, or with `framed`, never in `plain` parts.
        end_tokens: Tokens that can end an answer beside the special ones.
    """

    extra = "loss_mask"

    def __init__(
        self,
        loaded: FastTokenizer,
        max_length: int,
        overlong: str,
        *,
        add_eos: bool,
        framed: bool = False,
        templates: tuple[str, ...] = (),
        end_tokens: tuple[str, ...] = (),
    ) -> None:
        eos, tokenizer = loaded.id_of("eos_token"), loaded.tokenizer
        self._side, self._opening = loaded.truncation_side, loaded.prefix()
        self._prefix = [] if framed else loaded.prefix()
        end = [] if eos is None else [eos]
        self._suffix = end if add_eos and not framed else []
        self._words = WordEncoder(tokenizer)
        self._roles = self._words.roles(self._prefix, end)
        # an unknown word is no mark, unless the tokenizer has one token for all, as GPT-2's
        unknown = {loaded.special.get("unk_token")} - {loaded.special.get("eos_token")}
        self._ends = EndFinder(tokenizer, [mark for mark in (*self._words.special, *end_tokens) if mark not in unknown])
        self._special = {
            text: number
            for text, number in self._words.special.items()
            if framed or any(text in template for template in templates)
        }
        self._max_length = max_length
        self._overlong = overlong

    def encode(self, rows: pa.Table) -> Encoded:
        """Encode a table whose column `parts` is list<struct<text, train[, plain][, ends_prompt][, held_out][, token]>>."""
        import numpy as np

        texts, written = texts_of(rows), None
        whole = "bos_token" in (texts.tokens or ())  # as `sections` writes rows: from bos to the last end
        if texts.tokens is not None:
            texts, written = write_tokens(texts, self._roles, self._words.blanks)
        added = sorted([*added_of(self._words, texts, self._special), *(written or ())])
        pieces = self._words.pieces(texts.array, texts.rows, added)
        pieced = Pieced(pieces, *self._words.encode(texts.data, pieces))
        joined = joined_prompts(self._words, texts, pieced)
        apart = np.unique(joined.rows).tolist()
        if turns := turns_apart(rows, texts, joined):
            table, numbers = turns
            most = self._max_length if self._overlong == "drop" else None
            return rows_of_turns(self.encode(table), numbers, most)._replace(apart=apart)
        pieces, ids, per_piece = encoded_apart(self._words, texts, pieced, joined)
        mask = self._mask(texts, pieces, per_piece)
        bounds = row_tokens(texts, pieces, per_piece)
        ids, mask, sizes = (ids, mask, np.diff(bounds)) if whole else self._whole(texts, ids, mask, bounds)
        is_left = self._overlong == "truncate" and self._side == "left"
        if is_left:
            row, starts, kept = self._tails(ids, sizes)
        else:
            row, starts, kept = (column[:, None] for column in self._cut(sizes, np.cumsum(sizes) - sizes))
        remain = np.bincount(row.ravel(), kept[:, -1], len(sizes))
        ends = self._ends.find(ids, mask, sizes, remain, from_end=is_left)
        mask = (mask == TRAINED).astype(np.uint8)
        uncut = len(row) == len(sizes) and kept.sum() == len(ids)
        ids, mask = (each if uncut else gather(each, starts.ravel(), kept.ravel()) for each in (ids, mask))
        forged = _forged(texts, self._words, added)
        return Encoded(ids, kept.sum(1), mask, row.ravel(), sizes, forged, ends=ends, apart=apart)

    def _mask(self, texts: Texts, pieces: TokenPieces, per_piece: Longs) -> Extra:
        """Compute the loss mask, uint8 [tokens], with KEPT_OUT where a token is held out."""
        import numpy as np

        train = texts.train.astype(np.uint8) + KEPT_OUT * texts.held_out.astype(np.uint8)
        first = np.searchsorted(texts.parts[1:], pieces.starts[:-1], side="right")
        last = np.searchsorted(texts.parts[1:], pieces.starts[1:] - 1, side="right")
        mask = np.repeat(train[first], per_piece)
        changes = np.cumsum(np.concatenate([[0], train[1:] != train[:-1]]))
        ends = np.cumsum(per_piece)
        # a piece within parts of one flag has that flag; the others go token by token
        shared = np.flatnonzero(changes[first] != changes[last])
        for kind in np.unique(pieces.kind[shared]).tolist():
            here = shared[pieces.kind[shared] == kind]
            parts = [_parts_of(texts, pieces, int(piece), int(first[piece]), int(last[piece])) for piece in here]
            if kind == ADDED:
                # blanks beside a token may be of another part
                seen = ([part for part in own if part["text"].strip()] or own for own in parts)
                values = [np.full(1, max(map(_flag_of, own)), np.uint8) for own in seen]
            else:
                spans = self._words.spans(kind, ["".join(part["text"] for part in own) for own in parts])
                values = [trained_tokens(own, count, span) for own, (count, span) in zip(parts, spans, strict=True)]
            for piece, value in zip(here.tolist(), values, strict=True):
                mask[ends[piece] - per_piece[piece] : ends[piece]] = value
        return mask

    def _whole(self, texts: Texts, ids: Int32s, mask: Extra, bounds: Longs) -> tuple[Int32s, Extra, Longs]:
        """Add bos and eos to the rows that lack them; eos is trained on if the row's last part is."""
        import numpy as np

        sizes = np.diff(bounds)
        opens = ~_have(ids, bounds, self._prefix, bounds[:-1])
        closes = ~_have(ids, bounds, self._suffix, bounds[1:] - len(self._suffix))
        whole, total = frame_rows(ids, sizes, (self._prefix, self._suffix), opens, closes)
        last = texts.first[1:] - 1  # every row has a part
        marked, _ = frame_rows(mask, sizes, ([0] * len(self._prefix), [0] * len(self._suffix)), opens, closes)
        for back in range(len(self._suffix)):
            marked[(np.cumsum(total) - 1 - back)[closes]] = texts.train[last[closes]]
        return whole, marked, total

    def _tails(self, ids: Int32s, sizes: Longs) -> tuple[Longs, Longs, Longs]:
        """Return the row, first tokens and sizes of what truncating on the left keeps: a row's bos, and its end."""
        import numpy as np

        bounds = np.concatenate([[0], np.cumsum(sizes)])
        kept = np.minimum(sizes, self._max_length)
        opening = np.minimum(len(self._opening) * _have(ids, bounds, self._opening, bounds[:-1]), kept)
        starts = np.stack([bounds[:-1], bounds[1:] - (kept - opening)], axis=1)
        return np.arange(len(sizes)), starts, np.stack([opening, kept - opening], axis=1)

    def _cut(self, sizes: Longs, starts: Longs) -> tuple[Longs, Longs, Longs]:
        """Truncate, split or drop long rows; return each remaining row's source row, first token and size."""
        import numpy as np

        most, row = self._max_length, np.arange(len(sizes))
        if self._overlong == "truncate":
            return row, starts, np.minimum(sizes, most)
        if self._overlong == "drop":
            row = row[sizes <= most]
            return row, starts[row], sizes[row]
        if self._overlong == "split":
            count = np.maximum(-(-sizes // most), 1)
            row = np.repeat(row, count)
            at = (np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)) * most
            return row, starts[row] + at, np.minimum(sizes[row] - at, most)
        return row, starts, sizes


def teaches(encoded: Encoded) -> Any:
    """Return bool [rows]: a token after the row's first is trained on."""
    import numpy as np

    trained = np.concatenate([[0], np.cumsum(encoded.extra, dtype=np.int64)])
    starts = np.cumsum(encoded.sizes) - encoded.sizes
    # nothing predicts a row's first token
    taught: Any = trained[starts + encoded.sizes] > trained[np.minimum(starts + 1, starts + encoded.sizes)]
    return taught


def without_unsupervised(encoded: Encoded) -> Encoded:
    """Return the rows in which a token after the first is trained on."""
    import numpy as np

    taught = teaches(encoded)
    if taught.all():
        return encoded
    starts = np.cumsum(encoded.sizes) - encoded.sizes
    kept, sizes = starts[taught], encoded.sizes[taught]
    ids, mask = (gather(values, kept, sizes) for values in (encoded.ids, encoded.extra))
    left_out = int((~taught).sum())
    return encoded._replace(ids=ids, sizes=sizes, extra=mask, row=encoded.row[taught], unsupervised=left_out)


def trained_tokens(parts: list[dict[str, Any]], count: int, span_of: Callable[[int], tuple[int, int]]) -> Extra:
    """Compute a text's loss mask, uint8 [count]: TRAINED for a token with a character to train on, KEPT_OUT for one with a
    character that is held out.

    span_of: token -> (first character, end) in the joined text.
    """
    import numpy as np

    # a token without characters (trimmed whitespace) has the flag of the character before it
    def start_of(token: int) -> int:
        start, end = span_of(token)
        return start if start < end else max(end - 1, 0)

    def end_of(token: int) -> int:
        return max(span_of(token)[1], 1)

    mask = np.zeros(count, dtype=np.uint8)
    start = 0
    for part in parts:
        end = start + len(part["text"])
        if (flag := _flag_of(part)) and start < end:
            # spans are asked for by bisection, at edges alone: all of them take as long as tokenising
            first = bisect_right(range(count), start, key=end_of)
            here = slice(first, bisect_left(range(count), end, key=start_of))
            mask[here] = np.maximum(mask[here], flag)
        start = end
    return mask


def _flag_of(part: dict[str, Any]) -> int:
    return TRAINED if part["train"] else KEPT_OUT if part.get(HELD_OUT) else 0


def _parts_of(texts: Texts, pieces: TokenPieces, piece: int, first: int, last: int) -> list[dict[str, Any]]:
    """Return the parts that overlap a piece, each cut to the piece."""
    start, end = int(pieces.starts[piece]), int(pieces.starts[piece + 1])
    parts = []
    for part in range(first, last + 1):
        here = slice(max(start, int(texts.parts[part])), min(end, int(texts.parts[part + 1])))
        parts.append(
            {"text": texts.data[here].decode(), "train": bool(texts.train[part]), HELD_OUT: texts.held_out[part]}
        )
    return parts


def remaining(bounds: Longs, sizes: Longs, side: str) -> Longs:
    """Return the index of each row's first token that is left: int64 [rows]. bounds: of whole rows, int64 [rows + 1]."""
    return bounds[1:] - sizes if side == "left" else bounds[:-1]


def row_tokens(texts: Texts, pieces: TokenPieces, per_piece: Longs) -> Longs:
    """Return the index of each row's first token, int64 [rows + 1]."""
    import numpy as np

    begins = np.concatenate([[0], np.cumsum(per_piece)])
    return np.asarray(begins[np.searchsorted(pieces.starts, texts.rows)])


def frame_rows(
    values: Any, sizes: Longs, frame: tuple[list[int], list[int]], opens: Any = True, closes: Any = True
) -> tuple[Any, Longs]:
    """Put frame[0] before and frame[1] after the rows that the flags name; return values and sizes."""
    import numpy as np

    before, after = (np.broadcast_to(flag, sizes.shape) for flag in (opens, closes))
    total = sizes + before * len(frame[0]) + after * len(frame[1])
    ends = np.cumsum(total)
    framed = np.empty(int(total.sum()), dtype=values.dtype)
    inside = np.ones(len(framed), dtype=bool)
    for number, value in enumerate(frame[0]):
        at = (ends - total)[before] + number
        framed[at], inside[at] = value, False
    for number, value in enumerate(reversed(frame[1]), 1):
        at = ends[after] - number
        framed[at], inside[at] = value, False
    framed[inside] = values
    return framed, total


def _have(ids: Int32s, bounds: Longs, wanted: list[int], at: Longs) -> Any:
    """Return bool [rows]: whether a row has the ids `wanted`, from its token at index `at` (int64 [rows]) on."""
    import numpy as np

    have = np.diff(bounds) >= len(wanted)
    for number, value in enumerate(wanted):
        have[have] = ids[at[have] + number] == value
    return have


def _forged(texts: Texts, words: WordEncoder, added: list[tuple[int, int]] | None) -> list[tuple[int, str]]:
    """Return the rows that spell a special token, each with its first."""
    recognised = set(added or ())
    names: dict[int, str] = {}
    for start, end in find_all(texts.data, texts.rows, words.blanks):
        if (start, end) not in recognised:
            row = bisect_right(texts.rows, start) - 1
            names.setdefault(row, texts.data[start:end].decode().strip())
    return [*names.items()]
