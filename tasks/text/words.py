"""Token ids of many texts, each distinct word tokenised once.

A tokenizer first cuts a text into words and then treats each alone. Where every tokenizer of a known family is sure to cut
(before a space, between a letter and a comma, between a line's end and the next line), a text may be cut beforehand; the
pieces repeat, 15 to 1 on Dolly, so that only the distinct ones are tokenised, and the ids put together again are those of the
whole text (`tests/test_words.py` holds it to the library's own). Where a family is not known, texts stay whole.

Added tokens are recognised here: ordinary ones (`<think>`) everywhere, special ones (`</s>`) only where the caller says
so; elsewhere their letters are text, so that no row can forge the end of a turn.
"""

from __future__ import annotations

import json
import re
from array import array
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from tokenizers import AddedToken, Tokenizer

    Ints = np.ndarray[Any, np.dtype[np.int32]]
    Longs = np.ndarray[Any, np.dtype[np.int64]]
    Bytes = np.ndarray[Any, np.dtype[np.uint8]]
    Mask = np.ndarray[Any, np.dtype[np.bool_]]

START, INNER, AFTER, MARK = range(4)
"""Where a piece stands: at its text's start, after a cut, after an added token; or it is one."""

REMEMBERED = 1 << 17
"""Words whose ids are kept, 200 bytes each; beyond that, memory starts afresh."""

LONGEST = 64
"""Letters of a word worth remembering."""

BATCH = 1 << 18
"""Letters that are tokenised at once."""

_BLANKS = rb"(?:[\t-\r ]|\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80)*"
"""Unicode's white space, in UTF-8."""

_SENTINEL = "\ue0f0\ue0f1"
_TAIL = r"[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_HEAD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_PATTERNS = {rf"{_HEAD}\p{{N}}{{1,3}}| ?{_TAIL}", rf"{_HEAD}\p{{N}}| ?{_TAIL}"}
"""Llama 3's words, and Qwen 2's."""


class Cuts(NamedTuple):
    """Where a tokenizer is known to cut: before a space that follows a visible ASCII character; before a visible one that
    begins a line; between an ASCII letter and punctuation. inner: reads a piece that does not begin its text, when the
    tokenizer itself would put something before it; apart: the place of a piece matters."""

    space: bool = False
    line: bool = False
    letter: bool = False
    inner: Tokenizer | None = None
    apart: bool = True


class Pieces(NamedTuple):
    """starts: int64 [pieces + 1], where each begins in the bytes; kind: uint8 [pieces]."""

    starts: Longs
    kind: Bytes


class Words:
    """A tokenizer for the bytes of many texts; it becomes this object's own. Any number of threads may share one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        added = tokenizer.get_added_tokens_decoder()
        self.special = {token.content: number for number, token in added.items() if token.special}
        self._ordinary = {
            token.content: number for number, token in added.items() if not token.special and _literal(token, tokenizer)
        }
        self.takes = {token.content: (token.lstrip, token.rstrip) for token in added.values() if token.special}
        self.cuts = known_cuts(tokenizer)
        self._whole = tokenizer
        self._whole.encode_special_tokens = True
        self._inner = self.cuts.inner or tokenizer
        self._behind: dict[str, Tokenizer] = {}
        self._memos: dict[int, dict[str, bytes]] = {START: {}, INNER: {}, AFTER: {}}

    def _after(self, texts: list[str]) -> tuple[Tokenizer, str]:
        """The tokenizer with one more token, and that token, which is in none of the texts: what it precedes stands after
        a token."""
        from tokenizers import AddedToken

        sentinel = _SENTINEL
        while any(sentinel in text for text in texts):
            sentinel += _SENTINEL
        if sentinel not in self._behind:
            added = sorted(self._whole.get_added_tokens_decoder().items())
            tokens = [token for _, token in added] + [AddedToken(sentinel, special=False, normalized=False)]
            self._behind[sentinel] = _like(self._whole, self._whole.normalizer, tokens)
        return self._behind[sentinel], sentinel

    def marks(self, data: bytes, rows: Longs, special: dict[str, int]) -> list[tuple[int, int]]:
        """(start, end) of each added token in the texts that lie between `rows`, with the blanks that it takes beside it; of
        the special ones only these."""
        return find_all(
            data, rows, {name: self.takes.get(name, (False, False)) for name in (*self._ordinary, *special)}
        )

    def pieces(self, data: Bytes, rows: Longs, marks: list[tuple[int, int]]) -> Pieces:
        """Cut texts that lie between `rows` in `data`."""
        import numpy as np

        begins = np.zeros(len(data) + 1, dtype=bool)
        _cut(data, self.cuts, begins)
        begins[rows] = True
        for start, end in marks:
            begins[start + 1 : end] = False
            begins[[start, end]] = True
        starts = np.flatnonzero(begins)
        kind = np.full(len(starts) - 1, INNER, dtype=np.uint8)
        if self.cuts.apart:
            kind[np.searchsorted(starts, np.unique(rows[rows < len(data)]))] = START
        if marks:
            first, last = (np.searchsorted(starts, [edge[side] for edge in marks]) for side in (0, 1))
            follows = last[last < len(kind)]
            if self.cuts.apart:
                kind[follows[kind[follows] == INNER]] = AFTER
            kind[first] = MARK
        return Pieces(starts, kind)

    def encode(self, data: bytes, pieces: Pieces) -> tuple[Ints, Longs]:
        """(ids of all tokens, tokens of each piece)."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        offsets = pieces.starts.astype(np.int64)
        texts = pa.Array.from_buffers(
            pa.large_string(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        )
        which, blocks, sizes, known = np.empty(len(texts), dtype=np.int64), [], [], 0
        for kind in np.unique(pieces.kind).tolist():
            here = np.flatnonzero(pieces.kind == kind)
            distinct = pc.dictionary_encode(texts if len(here) == len(texts) else texts.take(pa.array(here)))
            which[here] = distinct.indices.to_numpy() + known
            found = self._ids(kind, distinct.dictionary.to_pylist())
            blocks += found
            sizes.append(np.fromiter(map(len, found), dtype=np.int64, count=len(found)) // 4)
            known += len(found)
        flat = np.frombuffer(bytearray().join(blocks), dtype=np.int32)
        size = np.concatenate([*sizes, np.empty(0, dtype=np.int64)])
        return gather(flat, (np.cumsum(size) - size)[which], size[which]), size[which]

    def spans(self, kind: int, texts: list[str]) -> list[tuple[int, Any]]:
        """Of each piece: its tokens, and token -> (first character, end)."""
        if kind == AFTER:
            after, sentinel = self._after(texts)
            found = after.encode_batch([sentinel + text for text in texts], add_special_tokens=False)
            return [(len(one) - 1, _without_first(one, len(sentinel))) for one in found]
        tokenizer = self._whole if kind == START else self._inner
        found = tokenizer.encode_batch(texts, add_special_tokens=False)
        return [(len(one), one.token_to_chars) for one in found]

    def _ids(self, kind: int, texts: list[str]) -> list[bytes]:
        """The ids of each text, int32 in bytes; texts are distinct."""
        if kind == MARK:
            known = {**self._ordinary, **self.special}
            return [array("i", [known[text if text in known else text.strip()]]).tobytes() for text in texts]
        memo = self._memos[kind]
        found = [memo.get(text) for text in texts]
        missing = [text for text, ids in zip(texts, found, strict=True) if ids is None]
        made = dict(zip(missing, self._tokenized(kind, missing), strict=True))
        if len(memo) + len(made) > REMEMBERED:
            memo.clear()
        memo.update((text, ids) for text, ids in made.items() if len(text) <= LONGEST)
        return [made[text] if ids is None else ids for text, ids in zip(texts, found, strict=True)]

    def _tokenized(self, kind: int, texts: list[str]) -> list[bytes]:
        tokenizer, before = self._whole if kind == START else self._inner, ""
        if kind == AFTER:
            tokenizer, before = self._after(texts)
        found = []
        for batch in _batches(texts):
            encoded = tokenizer.encode_batch_fast([before + text for text in batch], add_special_tokens=False)
            found += [array("i", one.ids[1:] if before else one.ids).tobytes() for one in encoded]
        return found


def gather(values: Any, starts: Longs, sizes: Longs) -> Any:
    """The runs values[start : start + size], one after another."""
    import numpy as np

    ends = np.cumsum(sizes)
    return values[np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + sizes, sizes)]


def find_all(data: bytes, rows: Longs, names: dict[str, tuple[bool, bool]]) -> list[tuple[int, int]]:
    """(start, end) of the names in the texts that lie between `rows`, the leftmost first and of those the longest. names:
    whether each takes the blanks before it, and after it."""
    if not names:
        return []
    ordered = sorted(((name.encode(), *sides) for name, sides in names.items()), key=lambda name: -len(name[0]))
    found = [b"%s%s%s" % (_BLANKS * left, re.escape(name), _BLANKS * right) for name, left, right in ordered]
    pattern = re.compile(b"|".join(found))
    if pattern.search(data) is None:
        return []
    bounds = rows.tolist()
    return [match.span() for start, end in pairwise(bounds) for match in pattern.finditer(data, start, end)]


def known_cuts(tokenizer: Tokenizer) -> Cuts:
    """Where this tokenizer is sure to cut; nowhere, if its family is not known."""
    normalizer, words = _state(tokenizer.normalizer), _state(tokenizer.pre_tokenizer)
    model, none = type(tokenizer.model).__name__, Cuts()
    added = tokenizer.get_added_tokens_decoder().values()
    if not all(token.special or _literal(token, tokenizer) for token in added):
        return none
    if model == "WordPiece" and words.get("type") == "BertPreTokenizer" and _each_character(normalizer):
        return Cuts(space=True, line=True, letter=True, apart=False)
    if model != "BPE" or tokenizer.model.dropout:
        return none
    if _byte_level(words) and _each_character(normalizer):
        prefixed = bool((words if words["type"] == "ByteLevel" else words["pretokenizers"][-1])["add_prefix_space"])
        return Cuts(space=True, line=not prefixed, letter=not prefixed, apart=prefixed)
    return _sentence_piece(tokenizer, normalizer) if not words else none


def _literal(token: AddedToken, tokenizer: Tokenizer) -> bool:
    """Whether it is found where its letters stand, and takes nothing beside them."""
    stripped = token.lstrip or token.rstrip or token.single_word
    return not stripped and not (token.normalized and tokenizer.normalizer)


def _like(tokenizer: Tokenizer, normalizer: Any, added: list[AddedToken]) -> Tokenizer:
    """The same model (not a copy) behind another normalizer, with these added tokens."""
    from tokenizers import Tokenizer

    made = Tokenizer(tokenizer.model)
    made.normalizer = normalizer
    for name in ("pre_tokenizer", "post_processor"):
        if (part := getattr(tokenizer, name)) is not None:
            setattr(made, name, part)
    made.add_tokens(added)
    made.encode_special_tokens = True
    return made


def _state(part: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(part.__getstate__()) if part is not None else {}
    return found


def _each_character(normalizer: dict[str, Any]) -> bool:
    """Whether it changes characters one by one, ASCII ones never by their neighbours."""
    if normalizer.get("type") == "Sequence":
        return all(_each_character(part) for part in normalizer["normalizers"])
    return normalizer.get("type") in (None, "Lowercase", "NFC", "NFKC", "BertNormalizer")


def _byte_level(words: dict[str, Any]) -> bool:
    """GPT-2's words, or a known pattern's."""
    if words.get("type") == "ByteLevel":
        return bool(words["use_regex"])
    if words.get("type") != "Sequence" or [part["type"] for part in words["pretokenizers"]] != ["Split", "ByteLevel"]:
        return False
    split, bytewise = words["pretokenizers"]
    known = split["pattern"].get("Regex") in _PATTERNS and split["behavior"] == "Isolated" and not split["invert"]
    return known and not bytewise["use_regex"]


def _sentence_piece(tokenizer: Tokenizer, normalizer: dict[str, Any]) -> Cuts:
    """Llama 2's: no words at all, a text is `▁` and its letters with `▁` for spaces. Merges cross what some entry spans, so
    a place that no entry spans is a cut."""
    from tokenizers import normalizers

    space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prepend = {"type": "Prepend", "prepend": "▁"}
    model, entries = tokenizer.model, tokenizer.get_vocab(with_added_tokens=False)
    plain = not (model.ignore_merges or model.continuing_subword_prefix or model.end_of_word_suffix)
    if normalizer != {"type": "Sequence", "normalizers": [prepend, space]} or not plain or "▁" not in entries:
        return Cuts()
    spaced = any("▁" in entry.lstrip("▁") for entry in entries)
    lined = any(re.search(r"\n.|<0x0A>.", entry, re.DOTALL) for entry in entries)
    known = "\n" in entries or "<0x0A>" in entries
    if spaced:
        return Cuts()
    return Cuts(space=True, line=known and not lined, inner=_like(tokenizer, normalizers.Replace(" ", "▁"), []))


def _cut(data: Bytes, cuts: Cuts, begins: Mask) -> None:
    """Mark where pieces begin."""
    visible = (data > 0x20) & (data < 0x7F)
    if cuts.space:
        begins[1:-1] |= (data[1:] == 0x20) & visible[:-1]
    if cuts.line and len(data) > 2:
        begins[2:-1] |= (data[1:-1] == 0x0A) & visible[:-2] & visible[2:] & (data[2:] != 0x2F)
    if cuts.letter:
        lower = data | 0x20
        letter, digit = (lower >= 0x61) & (lower <= 0x7A), (data >= 0x30) & (data <= 0x39)
        begins[1:-1] |= letter[:-1] & (visible & ~letter & ~digit & (data != 0x27))[1:]


def _without_first(encoding: Any, letters: int) -> Any:
    """token -> span, as if the first token, of so many letters, were not there."""

    def span(token: int) -> tuple[int, int]:
        start, end = encoding.token_to_chars(token + 1)
        return start - letters, end - letters

    return span


def _batches(texts: list[str]) -> list[list[str]]:
    """Of BATCH letters, or one text."""
    batches: list[list[str]] = []
    room = 0
    for text in texts:
        if not batches or room < len(text):
            batches.append([])
            room = BATCH
        batches[-1].append(text)
        room -= len(text)
    return batches
