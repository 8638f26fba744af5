"""What `apply_chat_template(add_generation_prompt=True)` gives for the messages before an answer is what the answer follows
in training, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from tests.data.format.test_chat import CHATML
from tests.data.tokenization.test_prompt_ends import boundary, text
from tests.data.tokenization.test_word_encoder import family
from tests.helpers.chats import chat_template
from trnflow.tasks.data.format.chat import UNLIKE_PROMPT, sections, templated
from trnflow.tasks.data.format.chat_prompts import prompt_writer
from trnflow.tasks.data.format.config import FormatConfig
from trnflow.tasks.data.format.conversation import Conversation
from trnflow.tasks.data.format.spelled_tokens import special_pattern
from trnflow.tasks.data.format.templates import ChatTemplate
from trnflow.tasks.data.texts import TOKEN
from trnflow.tasks.data.tokenization.encoders import CausalEncoder
from trnflow.tasks.data.tokenization.tokenizer import FastTokenizer
from trnflow.tasks.evaluation.generation import prompt_encoder, prompt_ids

BRACKETS = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST] ' }}"
    "{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}"
)
HEADED = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ 'Q: ' + m.content + '\n' }}"
    "{% else %}{% generation %}{{ 'A: ' + m.content + '\n' }}{% endgeneration %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'A: ' }}{% endif %}"
)
"""The block holds the heading, with which a prompt ends."""
TEMPLATES = {"chatml": CHATML, "brackets": BRACKETS, "headed": HEADED} | {
    name: chat_template(name).replace("strftime_now", "'the day {}'.format")  # transformers takes today
    for name in ("chatml_macro", "llama3_1", "qwen3", "smollm3")
}
FLAGS = [(name, pa.bool_()) for name in ("train", "plain", "ends_prompt")]


@cache
def tokenizers(name: str) -> tuple[PreTrainedTokenizerFast, ChatTemplate, CausalEncoder, Any]:
    """(transformers' tokenizer, our template, our encoder, what a message must not spell)."""
    tokenizer = Tokenizer.from_str(family("llama3")[0].to_str())
    tokenizer.add_special_tokens(
        ["<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    )
    given = {"bos_token": "<s>", "eos_token": "</s>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=TEMPLATES[name], **given)
    template = ChatTemplate("here", TEMPLATES[name], given, date="2024-07-26", arguments={})
    encoder = CausalEncoder(FastTokenizer(Tokenizer.from_str(tokenizer.to_str()), given, name), 10**6, "error", add_eos=True,
                            framed=True)  # fmt: skip
    return fast, template, encoder, special_pattern(tuple(fast.all_special_tokens))


def rows_of(
    encoder: CausalEncoder, examples: list[Any], more: Sequence[tuple[str, Any]] = ()
) -> list[tuple[list[int], list[int]]]:
    """(ids, loss mask) of each row. more: fields of parts."""
    parts = pa.list_(pa.struct([("text", pa.string()), *FLAGS, *more]))
    tokens = encoder.encode(pa.table({"parts": pa.array(examples, parts)}))
    ends = np.cumsum(tokens.sizes)[:-1]
    return [
        (a.tolist(), b.tolist()) for a, b in zip(np.split(tokens.ids, ends), np.split(tokens.extra, ends), strict=True)
    ]


talks = st.lists(st.tuples(text, st.tuples(boundary, text).map("".join)), min_size=1, max_size=3)


@pytest.mark.parametrize("name", TEMPLATES)
@settings(derandomize=True, max_examples=40, deadline=None)
@given(talk=talks)
def test_each_trained_turn_follows_the_prompt_of_transformers(name: str, talk: list[tuple[str, str]]) -> None:
    fast, template, encoder, special = tokenizers(name)
    messages = [
        {"role": role, "content": special.sub("", words)}
        for turn in talk
        for role, words in zip(("user", "assistant"), turn, strict=True)
    ]
    made = templated(Conversation(messages), template, "row", last=False, special=special)
    assert UNLIKE_PROMPT not in made.notes
    rows = rows_of(encoder, made.examples)
    for turn in range(1, len(messages), 2):
        prompt = fast.apply_chat_template(messages[:turn], add_generation_prompt=True, return_dict=False)
        size = len(prompt)
        taught = [bool(mask[size]) for ids, mask in rows if ids[:size] == prompt and len(mask) > size]
        assert sum(taught) == 1 or not messages[turn]["content"].strip()


@settings(derandomize=True, max_examples=40, deadline=None)
@given(talk=talks)
def test_headings_ask_predict_with_the_tokens_of_training(talk: list[tuple[str, str]]) -> None:
    library = Tokenizer.from_str(family("llama3")[0].to_str())
    library.encode_special_tokens = True
    own = FastTokenizer(Tokenizer.from_str(library.to_str()), {"eos_token": "</s>"}, "llama3")
    encoder = CausalEncoder(own, 10**6, "error", add_eos=True)
    messages = [
        {"role": role, "content": words}
        for turn in talk
        for role, words in zip(("user", "assistant"), turn, strict=True)
    ]
    ask = prompt_writer(FormatConfig(task="chat", chat_template="sections"), Path())
    rows = rows_of(encoder, [sections(messages, "row", last=False)], [(TOKEN, pa.string())])
    for turn in range(1, len(messages), 2):
        (parts,) = ask([(Conversation(messages[:turn]), "row")])
        prompt = prompt_ids(prompt_encoder(own, {}), parts)
        assert prompt == _of_library(library, parts)
        taught = [
            bool(mask[len(prompt)]) for ids, mask in rows if ids[: len(prompt)] == prompt and len(mask) > len(prompt)
        ]
        assert sum(taught) == 1 or not messages[turn]["content"]


def _of_library(library: Tokenizer, parts: list[dict[str, Any]]) -> list[int]:
    """The ids of texts, and of </s> between them; the tokenizer has no bos."""
    texts = [""]
    for part in parts:
        if part.get(TOKEN) == "eos_token":
            texts.append("")
        texts[-1] += part["text"]
    first, *others = (library.encode(each, add_special_tokens=False).ids for each in texts)
    return [*first, *(number for ids in others for number in (library.token_to_id("</s>"), *ids))]


def test_each_heading_before_a_trained_answer_ends_a_prompt() -> None:
    messages = [{"role": role, "content": "x"} for role in ("user", "assistant", "user", "assistant")]
    for last, wanted in ((False, [False, True, False, True]), (True, [False, False, False, True])):
        parts = sections(messages, "row", last=last)
        assert [part["ends_prompt"] for part in parts if part["text"].startswith(("#", "\n\n#"))] == wanted
