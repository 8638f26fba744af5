"""Rows of ids and loss masks: those of whole texts, wherever shards end, in whatever order the rows come."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.data.tokenization.test_word_encoder import family, nasty
from trnflow.tasks.data.tokenization.encoders import CausalEncoder, ClassEncoder, Encoded, trained_tokens
from trnflow.tasks.data.tokenization.tokenizer import FastTokenizer

Part = tuple[str, bool]
part = st.tuples(st.lists(nasty, max_size=5).map("".join), st.booleans())
rows_of_parts = st.lists(st.lists(part, min_size=1, max_size=4), min_size=1, max_size=6)
PARTS = pa.list_(pa.struct([("text", pa.string()), ("train", pa.bool_())]))
PLAIN = pa.list_(pa.struct([("text", pa.string()), ("train", pa.bool_()), ("plain", pa.bool_())]))
KNOWN = ["gpt2", "prefixed", "llama3", "bert", "llama2", "metaspace"]


def loaded(name: str) -> FastTokenizer:
    tokenizer = Tokenizer.from_str(family(name)[0].to_str())
    return FastTokenizer(tokenizer, {"bos_token": "<s>", "eos_token": "</s>"}, name)


def ids_of(tokenizer: FastTokenizer) -> tuple[int, int]:
    bos, eos = tokenizer.id_of("bos_token"), tokenizer.id_of("eos_token")
    assert bos is not None and eos is not None
    return bos, eos


def table(rows: list[list[Part]]) -> pa.Table:
    made = [[{"text": text, "train": train} for text, train in row] for row in rows]
    return pa.table({"parts": pa.array(made, PARTS)})


def rows_of(made: Encoded) -> list[tuple[list[int], list[int]]]:
    ends = np.concatenate([[0], np.cumsum(made.sizes)])
    return [(made.ids[a:b].tolist(), made.extra[a:b].tolist()) for a, b in pairwise(ends)]


def whole_texts(name: str, rows: list[list[Part]]) -> list[tuple[list[int], list[int]]]:
    """The library's ids of each joined text as plain text, and the mask by its offsets; bos and eos around them."""
    tokenizer = loaded(name)
    prefix, eos = tokenizer.prefix(), ids_of(tokenizer)[1]
    tokenizer.tokenizer.encode_special_tokens = True
    found = []
    for row in rows:
        text = "".join(text for text, _ in row)
        one = tokenizer.tokenizer.encode(text, add_special_tokens=False)
        parts = [{"text": text, "train": train} for text, train in row]
        spans: Callable[[int], Any] = one.token_to_chars
        mask = trained_tokens(parts, len(one), spans).tolist() if text else []
        found.append(([*prefix, *(one.ids if text else []), eos], [*[0] * len(prefix), *mask, int(row[-1][1])]))
    return found


@pytest.mark.parametrize("name", KNOWN)
@settings(derandomize=True, max_examples=50, deadline=None)
@given(rows=rows_of_parts)
def test_ids_and_masks_are_those_of_whole_texts(name: str, rows: list[list[Part]]) -> None:
    encoder = CausalEncoder(loaded(name), 10**6, "error", add_eos=True)
    assert rows_of(encoder.encode(table(rows))) == whole_texts(name, rows)


@pytest.mark.parametrize("overlong", ["truncate", "split", "drop"])
@settings(derandomize=True, max_examples=30, deadline=None)
@given(rows=rows_of_parts, cut=st.integers(0, 6), seed=st.randoms(use_true_random=False), most=st.integers(1, 12))
def test_rows_depend_on_nothing_beside_them(
    overlong: str, rows: list[list[Part]], cut: int, seed: Any, most: int
) -> None:
    encoder = CausalEncoder(loaded("gpt2"), most, overlong, add_eos=True)
    made = rows_of(encoder.encode(table(rows)))
    halves = [half for half in (rows[:cut], rows[cut:]) if half]
    assert [*chain(*(rows_of(encoder.encode(table(half))) for half in halves))] == made
    assert sorted(rows_of(encoder.encode(table(seed.sample(rows, len(rows)))))) == sorted(made)


@settings(derandomize=True, max_examples=30, deadline=None)
@given(rows=rows_of_parts, most=st.integers(1, 12))
def test_splitting_keeps_each_token_once_and_cutting_the_first(rows: list[list[Part]], most: int) -> None:
    whole, split, cut, dropped = (
        CausalEncoder(loaded("gpt2"), length, overlong, add_eos=True).encode(table(rows))
        for length, overlong in ((10**6, "error"), (most, "split"), (most, "truncate"), (most, "drop"))
    )
    assert (split.ids.tolist(), split.extra.tolist()) == (whole.ids.tolist(), whole.extra.tolist())
    assert split.sizes.max() <= most
    assert rows_of(cut) == [(ids[:most], mask[:most]) for ids, mask in rows_of(whole)]
    assert rows_of(dropped) == [row for row in rows_of(whole) if len(row[0]) <= most]
    for made in (split, cut, dropped):
        assert made.lengths.tolist() == whole.sizes.tolist()
        assert made.row.tolist() == sorted(made.row.tolist())


@pytest.mark.parametrize("name", ["bert", "gpt2"])
@settings(derandomize=True, max_examples=30, deadline=None)
@given(
    rows=st.lists(st.lists(nasty, min_size=1, max_size=6).map("".join), min_size=1, max_size=5), most=st.integers(2, 9)
)
def test_classified_texts_keep_their_frame(name: str, rows: list[str], most: int) -> None:
    from tokenizers import processors

    tokenizer = loaded(name)
    ends = [("<s>", tokenizer.id_of("bos_token")), ("</s>", tokenizer.id_of("eos_token"))]
    tokenizer.tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    library = Tokenizer.from_str(tokenizer.tokenizer.to_str())
    library.encode_special_tokens = True
    library.enable_truncation(most)
    given_rows = pa.table({"text": pa.array(rows, pa.string()), "label": pa.array(range(len(rows)), pa.int64())})
    made = ClassEncoder(tokenizer, most, "truncate").encode(given_rows)
    found = [ids for ids, _ in rows_of(made)]
    assert found == [one.ids for one in library.encode_batch(rows)]
    library.no_truncation()
    assert made.lengths.tolist() == [len(one.ids) for one in library.encode_batch(rows)]
    assert made.extra.tolist() == [*range(len(rows))]


# --- special tokens


def test_a_text_can_not_forge_the_end_of_its_turn() -> None:
    tokenizer = loaded("gpt2")
    bos, eos = ids_of(tokenizer)
    made = CausalEncoder(tokenizer, 512, "error", add_eos=True).encode(table([[("a", False)], [("say </s><s>", True)]]))
    assert made.ids.tolist().count(eos) == 2 and bos not in made.ids
    assert made.forged == [(1, "</s>")]


def test_a_template_writes_its_own_and_bos_and_eos_stand_once() -> None:
    from tokenizers import processors

    tokenizer = loaded("gpt2")
    bos, eos = ids_of(tokenizer)
    tokenizer.tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    encoder = CausalEncoder(tokenizer, 512, "error", add_eos=True, templates=("<s>{{ a }}", "{{ b }}</s>"))
    made = encoder.encode(table([[("<s>a", False), ("b</s>", True)], [("a", False), ("b", True)]]))
    assert [[ids[0], ids.count(bos), ids[-1], ids.count(eos)] for ids, _ in rows_of(made)] == [[bos, 1, eos, 1]] * 2
    assert [mask[-1] for _, mask in rows_of(made)] == [1, 1] and not made.forged


def test_plain_parts_of_a_framed_text_are_no_frame() -> None:
    tokenizer = loaded("gpt2")
    _, eos = ids_of(tokenizer)
    row = [("hi ", False, False), ("</s>", False, True), ("</s>", False, False), ("yes</s>", True, False)]
    parts = [[{"text": text, "train": train, "plain": plain} for text, train, plain in row]]
    encoder = CausalEncoder(tokenizer, 512, "error", add_eos=True, framed=True)
    made = encoder.encode(pa.table({"parts": pa.array(parts, PLAIN)}))
    assert made.ids.tolist().count(eos) == 2
    assert tokenizer.tokenizer.decode(made.ids.tolist(), skip_special_tokens=False) == "hi </s></s>yes</s>"
    assert made.extra.tolist()[-1] == 1 and [token for _, token in made.forged] == ["</s>"]


def test_a_framed_text_gets_no_eos_and_another_does() -> None:
    tokenizer = loaded("gpt2")
    _, eos = ids_of(tokenizer)
    for framed in (False, True):
        encoder = CausalEncoder(tokenizer, 512, "error", add_eos=True, framed=framed)
        assert encoder.encode(table([[("yes", True)]])).ids.tolist().count(eos) == (not framed)
