"""`sections` in transformers' own hands: the folder's chat template gives the ids that training and `predict` read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tests.data.tokenization.test_word_encoder import byte_level, family, nasty
from trnflow.tasks.data.format.chat import sections
from trnflow.tasks.data.format.config import FormatConfig
from trnflow.tasks.data.format.row_format import RowFormat
from trnflow.tasks.data.format.sections_template import sections_template
from trnflow.tasks.data.tokenization.encoders import CausalEncoder
from trnflow.tasks.data.tokenization.tokenizer import FastTokenizer
from trnflow.tasks.evaluation.generation import prompt_encoder, prompt_ids
from trnflow.tasks.prediction.prompts import shape_of

PARTS = pa.list_(pa.struct([("text", pa.string()), ("train", pa.bool_()), ("token", pa.string())]))
SPELLED = ("<s>", "</s>", "<|end|>")
said = st.lists(nasty.filter(lambda text: text not in SPELLED), max_size=6).map("".join)
message = st.tuples(st.sampled_from(["user", "assistant", "tool"]), said)


def framed(name: str) -> Tokenizer:
    """A tokenizer that puts <s> before a text, or, as GLM's, two tokens; `stripping`: its end takes blanks beside it."""
    if name == "stripping":
        made = Tokenizer(
            models.BPE({text: number for number, text in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, [])
        )
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        made.add_special_tokens(["<s>", "<|end|>", AddedToken("</s>", rstrip=True, special=True)])
    else:
        made = byte_level() if name == "two" else Tokenizer.from_str(family(name)[0].to_str())
    before = ["<|end|>", "<s>"] if name == "two" else ["<s>"]
    ids = [(text, made.token_to_id(text)) for text in before]
    made.post_processor = processors.TemplateProcessing(single=f"{' '.join(before)} $A", special_tokens=ids)
    return made


NAMES = ["gpt2", "prefixed", "llama3", "llama2", "metaspace", "two", "stripping"]


@pytest.fixture(scope="module", params=NAMES)
def both(request: pytest.FixtureRequest) -> tuple[FastTokenizer, PreTrainedTokenizerFast]:
    made = framed(request.param)
    roles = {"bos_token": "<s>", "eos_token": "</s>"}
    theirs = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(made.to_str()), **roles)
    loaded = FastTokenizer(made, roles, request.param)
    theirs.chat_template = sections_template("".join(made.id_to_token(n) for n in loaded.prefix()), "</s>")
    return loaded, theirs


@settings(derandomize=True, max_examples=40)
@given(system=st.one_of(st.none(), said), talk=st.lists(message, min_size=1, max_size=4), last=st.booleans())
def test_training_and_prompts_are_what_the_template_writes(
    both: tuple[FastTokenizer, PreTrainedTokenizerFast], system: str | None, talk: list[tuple[str, str]], last: bool
) -> None:
    loaded, theirs = both
    first = [] if system is None else [{"role": "system", "content": system}]
    messages = [*first, *({"role": role, "content": text} for role, text in talk)]
    encoder = CausalEncoder(loaded, 0, "error", add_eos=True)
    made = encoder.encode(pa.table({"parts": pa.array([sections(messages, "row 1", last=last)], PARTS)}))
    assert made.ids.tolist() == theirs.apply_chat_template(messages, return_dict=False)
    # each answer that is trained on ends with eos, and no other token of that id is learnt
    eos, answers = theirs.eos_token_id, [role for role, _ in talk].count("assistant")
    learnt = [number for number, train in zip(made.ids.tolist(), made.extra.tolist(), strict=True) if train]
    wanted = min(answers, 1) if last else answers
    assert made.ends is not None and made.ends.token.tolist() == [eos] * wanted and learnt.count(eos) == wanted
    if messages[-1]["role"] != "assistant":
        rows = RowFormat("causal_lm", FormatConfig(task="chat", chat_template="sections").model_dump(), [], [], [], 64)
        shape = shape_of(rows, Path())
        parts = shape.of_row({"messages": messages}, "row 1")
        asked: Any = prompt_encoder(loaded, {"framed": shape.framed, "templates": shape.templates})
        assert prompt_ids(asked, parts) == theirs.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False
        )


def test_a_message_that_spells_the_end_does_not_end(both: tuple[FastTokenizer, PreTrainedTokenizerFast]) -> None:
    loaded, theirs = both
    encoder = CausalEncoder(loaded, 0, "error", add_eos=True)
    messages = [{"role": "user", "content": "Say </s><s>"}, {"role": "assistant", "content": "</s> or <s>"}]
    made = encoder.encode(pa.table({"parts": pa.array([sections(messages, "row 1", last=False)], PARTS)}))
    assert made.ids.tolist().count(theirs.eos_token_id) == 1 and made.ids.tolist().count(theirs.bos_token_id) == 1
    assert made.forged == [(0, "</s>")]
