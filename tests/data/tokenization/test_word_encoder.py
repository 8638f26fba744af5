"""Ids put together from distinct words are those of the whole text, by the library's own word, for every known family."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.conftest import PROJECT, shared_folder
from trnflow.tasks.data.tokenization import word_encoder
from trnflow.tasks.data.tokenization.word_encoder import ADDED, CutRules, WordEncoder, cut_rules, find_all

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEXTS = [path.read_text(encoding="utf-8") for path in sorted((PROJECT / "tasks").glob("*.py"))]
TEXTS += [
    "Ünïcode naïve café, Straße ΣΑΣ 中文字 日本 1234567 don't DON'T we're !!! ... --- (a) [b] {c}\n\n\t x\r\n" * 9
]
SPECIAL = ["<s>", "</s>", "<|end|>"]
ORDINARY = "<think>"

nasty = st.sampled_from(
    [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\u200b", "\u0301", "'s", "'", "’", ".", ",", "!", "/",
     "//", "<", "<s>", "</s>", "<|end|>", "<think>", "▁", "▁▁", "\ue0f0\ue0f1", "\x00", "\x7f", "1234", "a", "I", "ﬁ", "Σ", "é",
     "é", "中文", "🙂", "👩‍👩‍👧", "def ", "word", " word", "Word", " the", "the ", "=", "≠", "\u0338", "-", "_", '"', "``", ")."]
)  # fmt: skip
texts = st.lists(st.lists(st.one_of(nasty, st.text(max_size=3)), max_size=12).map("".join), max_size=5)


def byte_level(prefixed: bool = False, split: str | None = None, normalizer: Any = None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    bytewise = pre_tokenizers.ByteLevel(add_prefix_space=prefixed, use_regex=split is None)
    words = [pre_tokenizers.Split(Regex(split), "isolated"), bytewise] if split else [bytewise]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(words) if split else bytewise
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    return trained(tokenizer, trainers.BpeTrainer, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def trained(tokenizer: Tokenizer, trainer: Any, **options: Any) -> Tokenizer:
    made = trainer(vocab_size=1200, special_tokens=["<unk>", *SPECIAL], show_progress=False, **options)
    tokenizer.train_from_iterator(TEXTS, made)
    tokenizer.add_tokens([AddedToken(ORDINARY, special=False, normalized=False)])
    return tokenizer


def word_piece() -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return trained(tokenizer, trainers.WordPieceTrainer)


def stripping() -> Tokenizer:
    """As Phi 3's: special tokens that take the blanks beside them."""
    tokenizer = byte_level()
    tokenizer.add_special_tokens([AddedToken("<|end|>", rstrip=True), AddedToken("</s>", lstrip=True)])
    return tokenizer


def llama2() -> Tokenizer:
    return Tokenizer.from_file(str(shared_folder() / "assets/stories260K-hf/tokenizer.json"))


def metaspace() -> Tokenizer:
    """A family that is not known, and reads a text's first word in its own way."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    return trained(tokenizer, trainers.BpeTrainer)


FAMILIES = {
    "gpt2": byte_level,
    "prefixed": lambda: byte_level(prefixed=True),
    "lowercase": lambda: byte_level(normalizer=normalizers.Lowercase()),
    "nfkc": lambda: byte_level(normalizer=normalizers.Sequence([normalizers.NFKC()])),
    "llama3": lambda: byte_level(split=LLAMA3),
    "qwen2": lambda: byte_level(split=LLAMA3.replace("{1,3}", ""), normalizer=normalizers.NFC()),
    "stripping": stripping,
    "bert": word_piece,
    "llama2": llama2,
    "metaspace": metaspace,
}


@cache
def family(name: str) -> tuple[Tokenizer, WordEncoder]:
    made = FAMILIES[name]()
    return made, WordEncoder(Tokenizer.from_str(made.to_str()))


def encoded(words: WordEncoder, rows: list[str], special: dict[str, int]) -> list[list[int]]:
    data = [row.encode() for row in rows]
    bounds, joined = np.cumsum([0, *map(len, data)]), b"".join(data)
    pieces = words.pieces(np.frombuffer(joined, np.uint8), bounds, words.find_added(joined, bounds, special))
    ids, sizes = words.encode(joined, pieces)
    ends = np.concatenate([[0], np.cumsum(sizes)])[np.searchsorted(pieces.starts, bounds)]
    return [ids[start:end].tolist() for start, end in pairwise(ends)]


@pytest.mark.parametrize("name", FAMILIES)
@settings(derandomize=True, max_examples=50, deadline=None)
@given(rows=texts, recognised=st.booleans())
@example(rows=TEXTS, recognised=False)
@example(rows=["<s> a</s>  b <think>c\nd.\n\n</s>", "", "  ", "a\nb", " a"], recognised=True)
def test_as_the_library_reads_a_text(name: str, rows: list[str], recognised: bool) -> None:
    library, words = family(name)
    library.encode_special_tokens = not recognised
    wanted = [
        one.ids if text else []
        for text, one in zip(rows, library.encode_batch(rows, add_special_tokens=False), strict=True)
    ]
    assert encoded(words, rows, words.special if recognised else {}) == wanted


@pytest.mark.parametrize("name", FAMILIES)
def test_which_families_are_cut(name: str) -> None:
    cuts = family(name)[1].cuts
    assert cuts.space is (name != "metaspace")
    assert cuts.letter is (name not in ("prefixed", "llama2", "metaspace"))


def test_what_is_not_known_is_not_cut() -> None:
    assert cut_rules(byte_level(split=r"\w+|\W+")) == CutRules()
    stripped = byte_level()
    stripped.add_tokens([AddedToken("<pad>", special=False, lstrip=True)])
    assert cut_rules(stripped) == CutRules()
    assert not cut_rules(Tokenizer(models.Unigram())).space


def test_merges_that_cross_words_forbid_cutting() -> None:
    tokenizer = Tokenizer(
        models.BPE({"▁": 0, "a": 1, "▁a": 2, "a▁a": 3, "<0x0A>": 4}, [("▁", "a")], byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    assert cut_rules(tokenizer) == CutRules()


def test_distinct_words_are_tokenised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    words = WordEncoder(byte_level())
    asked: list[str] = []
    tokenized = words._tokenized

    def heard(kind: int, texts: list[str]) -> list[bytes]:
        asked.extend(texts)
        return tokenized(kind, texts)

    monkeypatch.setattr(words, "_tokenized", heard)
    first = encoded(words, ["one two, one two,", "two one two"], {})
    assert encoded(words, ["two one two"], {}) == first[1:]
    assert sorted(asked) == sorted({"one", " two", ",", " one", "two"})


@settings(derandomize=True, max_examples=30)
@given(st.lists(st.lists(st.sampled_from(["<", "s", ">", "<s>", "<s>>", "x"]), max_size=6).map("".join), max_size=4))
def test_names_are_found_within_their_text(rows: list[str]) -> None:
    data = [row.encode() for row in rows]
    bounds, joined = np.cumsum([0, *map(len, data)]), b"".join(data)
    found = find_all(joined, bounds, {"<s>": (False, False), "<s>>": (False, False)})
    assert sum(row.count("<s>") for row in rows) == len(found)
    assert {joined[start:end] for start, end in found} <= {b"<s>", b"<s>>"}


def test_a_mark_is_a_piece_of_its_own() -> None:
    words = family("gpt2")[1]
    text = b"a <think> b"
    bounds = np.array([0, len(text)])
    pieces = words.pieces(np.frombuffer(text, np.uint8), bounds, words.find_added(text, bounds, {}))
    assert [text[a:b] for a, b in pairwise(pieces.starts)] == [b"a", b" ", b"<think>", b" b"]
    assert pieces.kind.tolist().count(ADDED) == 1


def test_no_more_words_are_kept_than_the_memo_may_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_encoder, "MEMO_SIZE", 6)
    encoder = WordEncoder(byte_level())
    long = "x" * (word_encoder.MEMO_LENGTH + 1)
    for number in range(20):
        words = [f"w{number}", f"v{number}", long]
        assert encoder.ids_of(word_encoder.LATER, words) == encoder.ids_of(word_encoder.LATER, words)
        assert len(encoder._memo[word_encoder.LATER]) <= 6 and long not in encoder._memo[word_encoder.LATER]
