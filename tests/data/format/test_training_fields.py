"""Fields of messages that say what is trained on: the text is transformers' own, and what is trained on follows from the fields
as a reference of few lines reads them."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tests.data.format.test_chat import CHATML, FORGETFUL
from tests.helpers.chats import chat_model, chat_template, rows_of
from tests.helpers.data_stages import Bench, table, trained, whole
from trnflow.tasks.data.format.chat import templated
from trnflow.tasks.data.format.conversation import Conversation, messages_of
from trnflow.tasks.data.format.spelled_tokens import special_pattern
from trnflow.tasks.data.format.templates import ChatTemplate
from trnflow.tasks.data.tokenization.encoders import CausalEncoder
from trnflow.tasks.data.tokenization.tokenizer import read_tokenizer
from trnflow.tasks.errors import DataError
from trnflow.tasks.evaluation.generation import prompts

Row = dict[str, Any]

PARTS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.content is string %}{{ m.content | trim }}{% else %}"
    "{% for part in m.content %}{{ part.text | trim }}{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEMPLATES = {"chatml": CHATML, "parts": PARTS} | {
    name: chat_template(name) for name in ("llama3_1", "qwen3_training", "chatml_macro")
}
ENDS = {"llama3_1": "<|eot_id|>", "chatml_macro": "<|im_end|>"}
"""What ends a trained turn; of the others `<|im_end|>` and a line break."""


class Shelf(NamedTuple):
    template: ChatTemplate
    fast: PreTrainedTokenizerFast


@pytest.fixture(scope="module")
def shelves(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Shelf]:
    folder = tmp_path_factory.mktemp("models")
    opened = {name: chat_model(folder / name, source)[1] for name, source in TEMPLATES.items()}
    return {
        name: Shelf(
            ChatTemplate("here", TEMPLATES[name], fast.special_tokens_map, date="2024-07-26", arguments={}), fast
        )
        for name, fast in opened.items()
    }


# What is drawn: turns whose texts are told apart by their numbers

YES: list[Row] = [{}, {"weight": 1}, {"weight": 1.0}, {"train": True}, {"training": True}, {"loss": True}, {"masked": False},
                  {"loss_weight": 1.0}, {"weight": None}, {"weight": 1, "train": True}]  # fmt: skip
NO: list[Row] = [{"weight": 0}, {"train": False}, {"training": False}, {"loss": False}, {"masked": True}, {"loss_weight": 0.0},
                 {"weight": 0, "train": False}]  # fmt: skip
LETTERS = st.text("ab é</s>", max_size=5)


@st.composite
def answers(draw: st.DrawFn, number: int) -> Row:
    """An assistant's message with its fields."""
    flags = draw(st.sampled_from(YES + NO))
    texts = [f"a{number}.{part}{draw(LETTERS)}x" for part in range(draw(st.integers(1, 3)))]
    text = "".join(texts)
    shape = draw(st.sampled_from(["text", "parts", "details"]))
    if shape == "parts":
        marks = draw(
            st.lists(st.sampled_from([{}, {"train": True}, {"train": False}, {"weight": 0}]), min_size=3, max_size=3)
        )
        parts = [{"type": "text", "text": each, **mark} for each, mark in zip(texts, marks, strict=False)]
        return {"role": "assistant", "content": parts, **flags}
    if shape == "details":
        edges = sorted(draw(st.lists(st.integers(0, len(text) - 1), min_size=2, max_size=4)))
        details = [
            {"begin_offset": begin, "end_offset": end, "train": draw(st.booleans())}
            for begin, end in zip(edges[::2], edges[1::2], strict=False)
        ]
        return {"role": "assistant", "content": text, "train_detail": details, **flags}
    return {"role": "assistant", "content": text, **flags}


@st.composite
def conversations(draw: st.DrawFn) -> list[Row]:
    system = [{"role": "system", "content": "s!", **draw(st.sampled_from([{}, *NO]))}]
    messages: list[Row] = draw(st.sampled_from([[], system]))
    for number in range(draw(st.integers(1, 4))):
        messages = [
            *messages,
            {"role": "user", "content": f"q{number}{draw(LETTERS)}?", **draw(st.sampled_from([{}, *NO]))},
            draw(answers(number)),
        ]
    return messages


# The reference: what the formats define, in few lines


def joined(message: Row) -> str:
    """The text of a message: axolotl puts parts with marks end to end, vLLM a line break between others."""
    content = message["content"]
    if isinstance(content, str):
        return content
    marked = any({"train", "weight"} & part.keys() for part in content)
    return ("" if marked else "\n").join(part["text"] for part in content)


def pieces(message: Row, *, parts: bool) -> Iterator[tuple[str, bool]]:
    """(text, whether it is trained on) of a turn that is trained on at all. parts: of a template that goes through parts."""
    content, details = message["content"], message.get("train_detail")
    if details:
        inside = [
            any(d["train"] and d["begin_offset"] <= at <= d["end_offset"] for d in details)
            for at in range(len(content))
        ]
        for token in re.finditer("</?s>", content):  # special tokens of the tokenizer, which are not cut
            inside[slice(*token.span())] = [all(inside[slice(*token.span())])] * len(token[0])
        yield from zip(content, inside, strict=True)
    elif isinstance(content, list) and any({"train", "weight"} & part.keys() for part in content):
        yield from ((part["text"], part.get("train", part.get("weight", 1)) == 1) for part in content)
    elif parts and isinstance(content, list):
        yield from ((part["text"], True) for part in content)
    else:
        yield joined(message), True


def is_trained(message: Row) -> bool:
    said = [
        message[name] == 1
        for name in ("weight", "loss_weight", "train", "training", "loss")
        if message.get(name) is not None
    ]
    return all(said) and message.get("masked") is not True


def plain(message: Row, *, parts: bool) -> Row:
    """A message for transformers, which knows none of the fields."""
    content = message["content"]
    texts = [{"type": "text", "text": part["text"]} for part in content] if isinstance(content, list) else content
    return {"role": message["role"], "content": texts if parts else joined(message)}


def expected(shelf: Shelf, name: str, messages: list[Row], last: bool) -> str:
    """What is trained on, as one text."""
    turns = [message for message in messages if message["role"] == "assistant"]
    wanted = ""
    for number, turn in enumerate(turns):
        if is_trained(turn) and (not last or number + 1 == len(turns)):
            # qwen3_training writes the thinking that a message lacks
            head = "<think>\n\n</think>\n\n" if name == "qwen3_training" and thinks(shelf, messages, turn) else ""
            wanted += (
                head
                + "".join(text for text, train in pieces(turn, parts=name == "parts") if train)
                + ENDS.get(name, "<|im_end|>\n")
            )
    return wanted


def thinks(shelf: Shelf, messages: list[Row], turn: Row) -> bool:
    text = shelf.fast.apply_chat_template([plain(message, parts=False) for message in messages], tokenize=False)
    return text.partition(joined(turn))[0].endswith("</think>\n\n")


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=60, deadline=None)
@given(messages=conversations(), last=st.booleans())
def test_what_is_trained_on_follows_from_the_fields(
    shelves: dict[str, Shelf], name: str, messages: list[Row], last: bool
) -> None:
    shelf = shelves[name]
    made = templated(
        Conversation(messages_of(messages, "row")),
        shelf.template,
        "row",
        last=last,
        special=special_pattern(tuple(shelf.fast.all_special_tokens)),
    ).examples
    wanted = expected(shelf, name, messages, last)
    assert "".join(part["text"] for example in made for part in example if part["train"]) == wanted
    given = [plain(message, parts=name == "parts") for message in messages]
    told = {"date_string": "26 Jul 2024"}  # as the template's date
    assert len(made) == bool(
        any(map(is_trained, [m for m in messages if m["role"] == "assistant"][-1 if last else 0 :]))
    )
    for example in made:
        assert "".join(part["text"] for part in example) == shelf.fast.apply_chat_template(
            given, tokenize=False, **told
        )


@pytest.mark.parametrize("name", ["qwen3_training", "chatml_macro"])
def test_without_a_turn_of_weight_0_the_mask_is_the_one_of_transformers_and_trl(
    shelves: dict[str, Shelf], name: str
) -> None:
    """TRL's `assistant_only_loss` trains on these tokens; with a weight of 0 one run of them is left out."""
    messages = [{"role": role, "content": f"{role} {number}"} for number in range(3) for role in ("user", "assistant")]
    fast = shelves[name].fast
    made = fast.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    if name == "qwen3_training":  # transformers' mask is wrong for blocks in macros
        masked = "".join(fast.decode([i]) for i, m in zip(made["input_ids"], made["assistant_masks"], strict=True) if m)
        assert spoken(shelves[name], messages) == masked
    for left_out in range(3):
        marked = [
            {**message, "weight": 0} if number == 2 * left_out + 1 else message
            for number, message in enumerate(messages)
        ]
        rest = spoken(shelves[name], messages)
        for end in spoken(shelves[name], messages).split("<|im_end|>"):
            rest = rest.replace(f"{end}<|im_end|>", "", 1) if f"assistant {left_out}" in end else rest
        assert spoken(shelves[name], marked).replace("\n", "") == rest.replace("\n", "")


def spoken(shelf: Shelf, messages: list[Row]) -> str:
    (example,) = templated(Conversation(messages), shelf.template, "row", last=False).examples
    return "".join(part["text"] for part in example if part["train"])


@pytest.fixture(scope="module")
def merging(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE whose tokens are longer than a character, and may take a blank before a word."""
    folder = tmp_path_factory.mktemp("merging")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words = ["".join(letters) for size in (2, 3) for letters in itertools.product("ab x", repeat=size)]
    tokenizer.train_from_iterator(
        [*words, "user assistant system\n", "a0.0 a0.1 a1.0 a1.1 a2.0 a2.1 q0 q1 q2"] * 3, trainer
    )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    return folder


@settings(max_examples=100, deadline=None)
@given(messages=conversations())
def test_no_token_with_a_character_that_is_held_out_is_learnt(merging: Path, messages: list[Row]) -> None:
    """As in axolotl, where a token that lies across the edge of a piece is masked. Offsets are the tokenizers library's."""
    fast = PreTrainedTokenizerFast.from_pretrained(merging)
    template = ChatTemplate("here", CHATML, fast.special_tokens_map, date="2024-07-26", arguments={})
    special = special_pattern(tuple(fast.all_special_tokens))
    made = templated(Conversation(messages_of(messages, "row")), template, "row", last=False, special=special).examples
    fields = [("text", pa.string()), *((name, pa.bool_()) for name in ("train", "held_out", "plain"))]
    table = pa.table({"parts": pa.array(made, pa.list_(pa.struct(fields)))})
    if not made:
        return
    encoded = CausalEncoder(read_tokenizer(merging), 4096, "truncate", add_eos=False, framed=True).encode(table)
    ids = encoded.ids.tolist()
    # each token's characters, by the library: spelled tokens are letters, the template's own are not
    spans, at = [], 0
    text = fast.apply_chat_template([plain(m, parts=False) for m in messages], chat_template=CHATML, tokenize=False)
    data = text.encode()
    for token in fast.convert_ids_to_tokens(ids):
        size = len(token.encode()) if token in fast.all_special_tokens else len(token)
        spans.append(range(at, at + size))
        at += size
    assert at == len(data)
    learnt, held = bytes_of(messages, text)
    wanted = [int(any(b in learnt for b in span) and not any(b in held for b in span)) for span in spans]
    assert encoded.extra.tolist() == wanted


def bytes_of(messages: list[Row], text: str) -> tuple[set[int], set[int]]:
    """The bytes of a rendered conversation that are learnt, and those of answers that are held out."""
    learnt, held, at = set[int](), set[int](), 0
    for message in messages:
        at += len(f"<|im_start|>{message['role']}\n")
        told = message["role"] == "assistant" and is_trained(message)
        for piece, train in [*pieces(message, parts=False), ("<|im_end|>\n", True)]:
            size = len(piece.encode())
            begin = len(text[:at].encode())
            (learnt if train else held).update(range(begin, begin + size) if told else ())
            at += len(piece)
    assert at == len(text)
    return learnt, held


ASKED = {"role": "user", "content": "two?"}
REFUSED: dict[str, tuple[list[Row], str]] = {
    "a weight between": ([ASKED, {"role": "assistant", "content": "2", "weight": 0.5}], "message 2 has weight 0.5"),
    "a loss weight above": ([ASKED, {"role": "assistant", "content": "2", "loss_weight": 2.0}], "message 2 has loss_weight 2.0"),
    "a weight as text": ([ASKED, {"role": "assistant", "content": "2", "weight": "0"}], "message 2 has weight '0'"),
    "a weight of the user": (
        [{**ASKED, "weight": 1}, {"role": "assistant", "content": "2"}],
        "message 1 (user) is marked to be trained on",
    ),
    "a part of the user's": (
        [{"role": "user", "content": [{"type": "text", "text": "two?", "train": True}]}, {"role": "assistant", "content": "2"}],
        "message 1 (user) is marked to be trained on",
    ),
    "fields that contradict": (
        [ASKED, {"role": "assistant", "content": "2", "weight": 0, "train": True}],
        "message 2 has weight 0 and train True, which contradict each other",
    ),
    "a part between": (
        [ASKED, {"role": "assistant", "content": [{"type": "text", "text": "2", "weight": 0.3}]}],
        "message 2 has weight 0.3",
    ),
    "a detail outside": (
        [ASKED, {"role": "assistant", "content": "2", "train_detail": [{"begin_offset": 0, "end_offset": 4, "train": True}]}],
        "train_detail has {'begin_offset': 0, 'end_offset': 4, 'train': True}, for a text of 1 characters",
    ),
    "a mask": ([ASKED, {"role": "assistant", "content": "2", "mask": 1}], "message 2 has the field mask"),
    "a prefix": ([ASKED, {"role": "assistant", "content": "2", "prefix": True}], "message 2 is a prefix"),
    "a part of an answer with thinking": (
        [ASKED, {"role": "assistant", "reasoning_content": "1 + 1", "content": [{"type": "text", "text": "2", "train": False}]}],
        "says of a part of its text alone what is trained on, and nothing of its thinking",
    ),
}  # fmt: skip


@pytest.mark.parametrize("template", [CHATML, "sections"], ids=["chatml", "sections"])
@pytest.mark.parametrize("what", REFUSED)
def test_what_can_not_be_obeyed_is_refused_by_name_and_row(
    bench: Bench, tmp_path: Path, what: str, template: str
) -> None:
    messages, message = REFUSED[what]
    rows = rows_of(
        tmp_path, "messages", [json.dumps([ASKED, {"role": "assistant", "content": "2"}]), json.dumps(messages)]
    )
    with pytest.raises(DataError) as caught:
        bench.texts(rows, task="chat", chat_template=template)
    assert caught.value.message.startswith("split train row 2: message ") and message in caught.value.message
    assert "\n" not in str(caught.value) and caught.value.fix
    kept = bench.texts(rows, task="chat", chat_template=template, bad_rows="drop")
    assert kept.meta["dropped"] == {"bad": 1}


def test_turns_that_no_template_writes_as_given_are_not_cut(shelves: dict[str, Shelf]) -> None:
    """A template that changes a text leaves no place of which its pieces could be told."""
    upper = ChatTemplate(
        "here", CHATML.replace("message.content", "(message.content | upper)"), {}, date="2024-07-26", arguments={}
    )
    parts = [{"type": "text", "text": "AB", "train": False}, {"type": "text", "text": "cd"}]
    with pytest.raises(DataError, match="row: message 2: the chat template rewrites its text"):
        templated(
            Conversation([ASKED | {"content": "2"}, {"role": "assistant", "content": parts}]), upper, "row", last=False
        )


def test_a_row_without_a_trained_turn_is_left_out_and_said(bench: Bench, tmp_path: Path) -> None:
    untaught = [ASKED, {"role": "assistant", "content": "3", "weight": 0}]
    taught = [*untaught, ASKED, {"role": "assistant", "content": "2", "weight": 1}]
    rows = rows_of(tmp_path, "messages", [json.dumps(untaught), json.dumps(taught)])
    for template in (CHATML, FORGETFUL, "sections"):
        bench.said.clear()
        texts = bench.texts(rows, task="chat", chat_template=template)
        assert len(whole(texts)) == 1 and "3" not in trained(texts)[0] and "2" in trained(texts)[0]
        assert texts.meta["dropped"] == {"empty": 1}
        assert {
            "info": "rows of which no turn is trained on, as their fields say: 1 (the first: split train row 1)"
        } in bench.said


def test_rewriting_templates_make_examples_of_the_trained_turns_alone(bench: Bench, tmp_path: Path) -> None:
    model, fast = chat_model(tmp_path / "model", chat_template("qwen3"))
    turns = [
        {"role": "assistant", "content": f"<think>\nso\n</think>\n\nanswer {n}", "weight": n % 2} for n in range(3)
    ]
    messages = [message for turn in turns for message in (ASKED, turn)]
    texts = bench.texts(rows_of(tmp_path, "messages", [json.dumps(messages)]), model, task="chat")
    assert trained(texts) == ["<think>\nso\n</think>\n\nanswer 1<|im_end|>\n"]
    given = [{name: message[name] for name in ("role", "content")} for message in messages[:4]]
    assert whole(texts) == [fast.apply_chat_template(given, tokenize=False)]


def test_an_answer_that_is_expected_of_a_generation_has_its_held_out_pieces(bench: Bench, tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "Well. ", "train": False}, {"type": "text", "text": "2", "train": True}]
    rows = rows_of(tmp_path, "messages", [json.dumps([ASKED, {"role": "assistant", "content": parts}])])
    texts = bench.texts(rows, task="chat", chat_template=CHATML)
    (prompt,) = prompts(texts.path / "train.parquet", 1)
    assert prompt.text == "<|im_start|>user\ntwo?<|im_end|>\n<|im_start|>assistant\n"
    assert prompt.answer is not None and prompt.answer.startswith("Well. 2")


def test_thinking_in_parts_has_marks_of_its_own(bench: Bench, tmp_path: Path) -> None:
    """axolotl's example of a wrong first thought, which is not learnt."""
    model, fast = chat_model(tmp_path / "model", chat_template("qwen3_training"))
    thought = [{"type": "text", "text": "Maybe 5.", "train": False}, {"type": "text", "text": " No, 4.", "train": True}]
    answer = [{"type": "text", "text": "It is 4.", "train": True}]
    messages = [ASKED, {"role": "assistant", "reasoning_content": thought, "content": answer}]
    texts = bench.texts(rows_of(tmp_path, "messages", [json.dumps(messages)]), model, task="chat")
    given = [ASKED, {"role": "assistant", "reasoning_content": "Maybe 5. No, 4.", "content": "It is 4."}]
    assert whole(texts) == [fast.apply_chat_template(given, tokenize=False)]
    assert [part["text"] for part in table(texts, "train")["parts"][0] if not part["train"]][1:] == ["Maybe 5."]
