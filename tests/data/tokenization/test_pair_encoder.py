"""Pairs of texts are encoded as the tokenizers library does by itself: ids, token types, truncation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from trnflow.tasks.data.tokenization.pair_encoder import PairEncoder, longest_first
from trnflow.tasks.data.tokenization.tokenizer import FastTokenizer, bert_pipeline

SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij", "##a", "##b"]
IDS = [("[CLS]", 2), ("[SEP]", 3)]
TEMPLATES: dict[str, Any] = {
    "bert": None,
    "roberta": processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2)),
    "llama": processors.TemplateProcessing(single="[CLS] $A", pair="[CLS] $A [CLS]:1 $B:1", special_tokens=IDS),
    "end": processors.TemplateProcessing(
        single="$A [SEP] [CLS]:2", pair="$A [SEP] $B:1 [SEP]:1 [CLS]:2", special_tokens=IDS
    ),
    "none": False,
}
TEXT = st.text("abcdefghij [CLS]", max_size=24)


def tokenizer(name: str) -> FastTokenizer:
    made = Tokenizer(models.WordPiece({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    bert_pipeline(made, True, SPECIAL)
    if name == "roberta":
        made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if TEMPLATES[name] is not None:
        made.post_processor = TEMPLATES[name] or processors.Sequence([])
    return FastTokenizer(made, SPECIAL, name)


def rows(pairs: list[tuple[str, str]]) -> pa.Table:
    first, second = zip(*pairs, strict=True)
    columns = {"text": pa.array(first, pa.string()), "text_pair": pa.array(second, pa.string())}
    return pa.table({**columns, "label": pa.array([*range(len(pairs))], pa.int64())})


@pytest.mark.parametrize("name", [*TEMPLATES])
@settings(max_examples=40, deadline=None)
@given(pairs=st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=5), most=st.integers(4, 20))
def test_ids_types_and_cuts_are_those_of_the_library(name: str, pairs: list[tuple[str, str]], most: int) -> None:
    loaded = tokenizer(name)
    pairs = [pair for pair in pairs if "[CLS]" not in "".join(pair)] or [("a", "b")]
    theirs = Tokenizer.from_str(loaded.tokenizer.to_str())
    whole = theirs.encode_batch(pairs)
    theirs.enable_truncation(most, strategy="longest_first")
    expected = theirs.encode_batch(pairs)
    ours = PairEncoder(loaded, most, "truncate").encode(rows(pairs))
    assert ours.ids.tolist() == [number for each in expected for number in each.ids]
    assert ours.types is not None and ours.types.tolist() == [kind for each in expected for kind in each.type_ids]
    assert ours.sizes.tolist() == [len(each.ids) for each in expected]
    assert ours.lengths.tolist() == [len(each.ids) for each in whole]
    kept = PairEncoder(loaded, most, "drop").encode(rows(pairs))
    assert kept.row.tolist() == kept.extra.tolist() == [at for at, each in enumerate(whole) if len(each.ids) <= most]


def test_each_cut_of_the_longest_first() -> None:
    sizes = [np.array(each) for each in zip(*[(a, b) for a in range(9) for b in range(9)], strict=True)]
    for most in range(9):
        first, second = longest_first(sizes[0], sizes[1], most)
        assert ((first + second) == np.minimum(sizes[0] + sizes[1], most)).all()
        assert (first <= sizes[0]).all() and (second <= sizes[1]).all()


def test_a_spelled_special_token_is_text_and_named() -> None:
    encoded = PairEncoder(tokenizer("bert"), 32, "truncate").encode(rows([("a", "b [SEP] c"), ("a", "b")]))
    assert encoded.forged == [(0, "[SEP]")] and encoded.ids.tolist().count(3) == 4
