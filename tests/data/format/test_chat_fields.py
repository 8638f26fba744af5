"""What rows bring beside texts: parts, calls, a system prompt, earlier rounds; used as the programs that define them do, or
refused with the row; and what a template adds or leaves out by itself, which is said."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from tests.data.format.test_chat import CHATML, FORGETFUL, TALK
from tests.data.format.test_chat_templates import CALL, THOUGHTS, TOOL_TALK, TOOLS
from tests.helpers.chats import chat_model, chat_template, rows_of, token_rows
from tests.helpers.data_stages import Bench, loaded_rows, table, trained, whole
from trnflow.tasks.data.format.chat import teaches_nothing, templated
from trnflow.tasks.data.format.conversation import Conversation
from trnflow.tasks.data.format.read_fields import UNREAD, recorded
from trnflow.tasks.data.format.row_format import RowFormat
from trnflow.tasks.data.format.templates import ChatTemplate
from trnflow.tasks.data.tokenization.tokenizer import read_tokenizer
from trnflow.tasks.errors import DataError
from trnflow.tasks.evaluation.generation import prompt_encoder, prompt_ids
from trnflow.tasks.prediction.prompts import shape_of
from trnflow.tasks.training.needs import refuse_endless

Row = dict[str, Any]
CALL_TURN = {"role": "assistant", "content": "", "tool_calls": [CALL]}


def infos(bench: Bench) -> list[str]:
    return [event["info"] for event in bench.said if "info" in event]


def chat(
    bench: Bench, folder: Path, messages: list[Row], template: str = CHATML, model: Row | None = None, **columns: Any
) -> str:
    """The last text that is made of one conversation."""
    folder.mkdir(exist_ok=True)
    rows = rows_of(
        folder / str(bench.count), "messages", [json.dumps(messages)], **{k: [v] for k, v in columns.items()}
    )
    return whole(bench.texts(rows, model, task="chat", chat_template=template))[-1]


@pytest.mark.parametrize("template", [CHATML, "sections"], ids=["chatml", "sections"])
def test_an_empty_answer_that_is_trained_on_is_a_warning(bench: Bench, tmp_path: Path, template: str) -> None:
    empty = {"role": "assistant", "content": " "}
    chat(bench, tmp_path, [TALK[0], empty, *TALK], template)
    assert "rows with an empty answer of the assistant, which teaches the model to say nothing" in bench.warnings()[-1]
    assert "1 (the first: split train row 1)" in bench.warnings()[-1]
    bench.said.clear()
    chat(bench, tmp_path, [TALK[0], {**empty, "weight": 0}, *TALK], template)
    chat(bench, tmp_path, [TALK[0], {**CALL_TURN, "content": ""}, *TALK], chat_template("qwen3"))
    assert not teaches_nothing(
        [TALK[0], {"role": "assistant", "content": "", "thinking": [{"text": "so"}]}], "row 1", False
    )
    assert not [told for told in bench.warnings() if "empty answer" in told]


# Parts


def test_two_parts_are_joined_as_vllm_does(bench: Bench, tmp_path: Path, shared: Path) -> None:
    messages = json.loads((shared / "cases/c05_parts/two_parts.jsonl").read_text().splitlines()[0])["messages"]
    text = chat(bench, tmp_path, messages)
    assert text == "<|im_start|>user\nAdd 1\n and 2.<|im_end|>\n<|im_start|>assistant\n3<|im_end|>\n"
    assert (
        "joined by line breaks, since the chat template takes texts: 1 (the first: split train row 1)"
        in infos(bench)[-1]
    )
    assert chat(bench, tmp_path, messages, "sections") == "### User\nAdd 1\n and 2.\n\n### Assistant\n3"


@pytest.mark.parametrize("template", [CHATML, "sections"], ids=["chatml", "sections"])
def test_a_part_that_is_no_text_is_refused_by_name_and_row(bench: Bench, tmp_path: Path, template: str) -> None:
    image = {
        "role": "user",
        "content": [{"type": "text", "text": "who?"}, {"type": "image_url", "image_url": {"url": "a.jpg"}}],
    }
    rows = rows_of(tmp_path, "messages", [json.dumps(TALK), json.dumps([image, *TALK[1:]])])
    with pytest.raises(
        DataError, match=r"split train row 2: message 1: part 2 of the content is no text \(image_url\)"
    ):
        bench.texts(rows, task="chat", chat_template=template)
    assert len(whole(bench.texts(rows, task="chat", chat_template=template, bad_rows="drop"))) == 1


def test_an_answer_that_is_an_object_is_not_taught_as_python_writes_it(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="row 1: message 2: the content is an object"):
        chat(bench, tmp_path, [TALK[0], {"role": "assistant", "content": {"answer": 1}}])
    tool = [*TOOL_TALK[:2], {"role": "tool", "content": {"degrees": 20}}, TOOL_TALK[3]]
    with pytest.raises(DataError, match="row 1: message 3: the chat template writes its object as Python does"):
        chat(bench, tmp_path, tool, chat_template("qwen3").replace("message.content is string", "true"))
    assert '{"degrees": 20}' in chat(bench, tmp_path, tool, chat_template("llama3_1"))


# Calls


@pytest.mark.parametrize("name", ["qwen3", "llama3_1"])
def test_calls_of_every_shape_are_the_call_that_transformers_is_given(bench: Bench, tmp_path: Path, name: str) -> None:
    """OpenAI's arguments as text, its older `function_call`, ShareGPT's role and LLaMA-Factory's part."""
    model, fast = chat_model(tmp_path / "model", chat_template(name))
    function = CALL["function"]
    text = json.dumps(function)
    as_text = {**CALL, "function": {**function, "arguments": json.dumps(function["arguments"])}}
    shapes: list[Row] = [
        {"role": "assistant", "content": "", "tool_calls": [as_text]},
        {"role": "assistant", "content": None, "function_call": function},
        {"from": "function_call", "value": text},
        {"role": "assistant", "content": [{"type": "tool_call", "value": text}]},
    ]  # fmt: skip
    told = {"date_string": "26 Jul 2024"}
    for shape in shapes:
        given = [TOOL_TALK[0], shape, *TOOL_TALK[2:]]
        wanted = fast.apply_chat_template(TOOL_TALK, tools=TOOLS, tokenize=False, **told)
        assert chat(bench, tmp_path / "rows", given, "tokenizer", model, tools=json.dumps(TOOLS)) == wanted


def test_a_template_that_takes_arguments_as_text_gets_text(bench: Bench, tmp_path: Path) -> None:
    """DeepSeek-V3's puts them between other texts."""
    source = (
        "{% for m in messages %}{{ '<' + m.role + '>' }}{% if m.tool_calls %}{% for call in m.tool_calls %}"
        "{{ call.function.name + '(' + call.function.arguments + ')' }}{% endfor %}{% else %}{{ m.content }}{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    as_text = {**CALL, "function": {"name": "weather", "arguments": '{"city":  "Rome"}'}}
    for call, wanted in ((as_text, '{"city":  "Rome"}'), (CALL, '{"city": "Rome", "days": 2, "more": 1.5}')):
        given = [TOOL_TALK[0], {"role": "assistant", "content": "", "tool_calls": [call]}, *TOOL_TALK[2:]]
        assert f"<assistant>weather({wanted})<tool>" in chat(bench, tmp_path, given, source)


def test_calls_that_are_none_name_the_row(bench: Bench, tmp_path: Path) -> None:
    for call, message in (
        ({"tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}, "calls '{', which is no JSON"),
        ({"tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}, r"the arguments of a call are \[1\]"),
        ({"tool_calls": "f()"}, "is no JSON"),
        ({"function_call": {"arguments": "{}"}}, "which is no call of a tool"),
    ):
        with pytest.raises(DataError, match=f"split train row 1: message 2.*{message}"):
            chat(bench, tmp_path, [TALK[0], {"role": "assistant", **call}], chat_template("qwen3"))


def test_a_call_stays_text_where_the_template_has_no_calls_and_that_is_said(bench: Bench, tmp_path: Path) -> None:
    text = json.dumps(CALL["function"])
    messages = [{"from": "human", "value": "How?"}, {"from": "function_call", "value": text}]
    assert chat(bench, tmp_path, messages).endswith(f"assistant\n{text}<|im_end|>\n")
    assert any("function_call turns are written as text" in info for info in infos(bench))


def test_a_refusal_is_the_answer_and_a_developer_is_the_system(bench: Bench, tmp_path: Path) -> None:
    """vLLM gives templates that do not know the developer's role a system message."""
    messages = [
        {"role": "developer", "content": "brief"},
        TALK[0],
        {"role": "assistant", "content": None, "refusal": "I can't."},
    ]
    assert chat(bench, tmp_path, messages) == (
        "<|im_start|>system\nbrief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nI can't.<|im_end|>\n"
    )
    knows = CHATML.replace("message.role +", "('dev' if message.role == 'developer' else message.role) +")
    assert chat(bench, tmp_path, messages, knows).startswith("<|im_start|>dev\nbrief")
    with pytest.raises(DataError, match="message 2 has a content and a refusal"):
        chat(bench, tmp_path, [TALK[0], {**messages[2], "content": "Well."}])


# The system prompt and earlier rounds


def test_a_system_column_is_the_first_message(bench: Bench, tmp_path: Path) -> None:
    begun = chat(bench, tmp_path, TALK, system="Be brief.")
    assert begun == chat(bench, tmp_path, [{"role": "system", "content": "Be brief."}, *TALK])
    assert chat(bench, tmp_path, TALK, system_prompt="Be brief.") == begun
    own = [{"role": "system", "content": "Be brief."}, *TALK]
    assert chat(bench, tmp_path, own, system="Be brief.") == begun and chat(bench, tmp_path, TALK, system=" ") != begun
    with pytest.raises(DataError, match="row 1: the column system and the first message are different system prompts"):
        chat(bench, tmp_path, own, system="Be long.")


def test_a_template_that_can_not_write_the_system_prompt_is_refused_with_the_row(bench: Bench, tmp_path: Path) -> None:
    silent = "{% for m in messages if m.role != 'system' %}{{ '<' + m.role + '>' + m.content }}{% endfor %}"
    loud = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + silent
    ending = "{% if add_generation_prompt %}<assistant>{% endif %}"
    for template, message in ((silent, r"message 1 \(system\), 'Be brief.', is missing"), (loud, "no system role")):
        with pytest.raises(DataError, match=f"split train row 1: .*{message}"):
            chat(bench, tmp_path, TALK, template + ending, system="Be brief.")


ROUNDS = [["One?", "Yes."], ["Two?", "Also."]]


def alpaca(**columns: Any) -> dict[str, list[Any]]:
    return {name: [value] for name, value in {"instruction": "Three?", "input": "", "output": "No.", **columns}.items()}


def test_alpaca_s_system_prompt_and_history_are_written_as_axolotl_and_llama_factory_do(
    bench: Bench, tmp_path: Path
) -> None:
    """The system prompt in the place of the opening (both), each round as an instruction with its response, which is learnt
    (LLaMA-Factory)."""
    rows = loaded_rows(tmp_path, alpaca(system="Be brief.", history=json.dumps(ROUNDS)), nested=["history"])
    form = {"task": "instruction", "style": "alpaca", "response": "output"}
    texts = bench.texts(rows, **form)
    assert whole(texts) == [
        "Be brief.\n\n### Instruction:\nOne?\n\n### Response:\nYes.\n\n### Instruction:\nTwo?\n\n### Response:\nAlso.\n\n"
        "### Instruction:\nThree?\n\n### Response:\nNo."
    ]
    learnt = [part["text"] for part in table(texts, "train")["parts"][0] if part["train"]]
    assert learnt == ["Yes.", "", "Also.", "", "No."]  # "" is an end token
    assert trained(bench.texts(rows, **form, turns="last")) == ["No."]
    plain = loaded_rows(tmp_path / "plain", alpaca(system=None, history="[]"), nested=["history"])
    assert whole(bench.texts(plain, **form)) == whole(bench.texts(loaded_rows(tmp_path / "bare", alpaca()), **form))
    assert "unread" not in texts.meta
    asked = RowFormat("causal_lm", form, [], rows.meta["columns"], ["history"], 512)
    shape = shape_of(asked, tmp_path)
    parts = shape.of_row({"instruction": "Three?", "system": "Be brief.", "history": ROUNDS}, "row 1")
    assert shape.optional == ["input", "system", "history"] and not any(part["train"] for part in parts)
    assert "".join(part["text"] for part in parts) + "No." == whole(texts)[0]


@pytest.mark.parametrize("turns", ["all", "last"])
def test_each_round_of_alpaca_ends_as_in_llama_factory(bench: Bench, shared: Path, turns: str) -> None:
    """Its template alpaca writes eos and a blank line after each answer, and trains on eos. Rows without history have theirs."""
    folder = shared / "assets/stories260K-hf"
    columns = {name: values * 2 for name, values in alpaca().items()}
    rows = loaded_rows(bench.root, {**columns, "history": [json.dumps(ROUNDS), "[]"]}, nested=["history"])
    form = {"task": "instruction", "style": "alpaca", "response": "output"}
    texts = bench.texts(rows, {"source": str(folder)}, **form, turns=turns)
    tokens = bench.tokens(texts, {"source": str(folder)})
    refuse_endless(tokens.meta)
    theirs = AutoTokenizer.from_pretrained(folder)
    (ids, mask), (plain, _) = token_rows(tokens)
    written, _ = (text.replace("Yes.", "Yes.</s>").replace("Also.", "Also.</s>") + "</s>" for text in whole(texts))
    assert ids == theirs(written).input_ids and plain[0] == theirs.bos_token_id and plain[-1] == theirs.eos_token_id
    answers = ["Yes.", "Also.", "No."] if turns == "all" else ["No."]
    taught = [list(span) for train, span in groupby(zip(ids, mask, strict=True), lambda pair: pair[1]) if train]
    assert [theirs.decode([number for number, _ in span]).strip() for span in taught] == [
        f"{each}</s>" for each in answers
    ]
    # a prompt has the same tokens
    format = RowFormat("causal_lm", form, [], rows.meta["columns"], ["history"], 512)
    parts = shape_of(format, folder).of_row({"instruction": "Three?", "history": ROUNDS}, "row 1")
    assert prompt_ids(prompt_encoder(read_tokenizer(folder), {}), parts) == ids[: len(ids) - len(taught[-1])]
    assert not (tokens.path / "tokenizer/chat_template.jinja").exists()


@pytest.mark.parametrize(
    ("columns", "settings", "message"),
    [
        ({"system": "Be brief."}, {}, "the column system is 'Be brief.', which nothing here reads"),
        ({"history": json.dumps(ROUNDS)}, {}, "the column history is"),
        ({"system_prompt": "Be brief."}, {}, "the column system_prompt is 'Be brief.'"),
        ({"tools": json.dumps(TOOLS)}, {"style": "alpaca"}, "the column tools is"),
        ({"system": "Be brief."}, {"prompt_template": "{{ instruction }}"}, "the column system is 'Be brief.'"),
        ({"history": '["One?"]'}, {"style": "alpaca"}, r"the column history is \"\['One\?'\]\""),
        ({"weight": 0.5}, {}, "the column weight is 0.5"),
        ({"images": '["a.jpg"]'}, {}, "the column images is"),
    ],
)  # fmt: skip
def test_what_no_template_writes_is_refused_with_the_row(
    bench: Bench, tmp_path: Path, columns: Row, settings: Row, message: str
) -> None:
    rows = loaded_rows(tmp_path, alpaca(**columns))
    with pytest.raises(DataError, match=f"^split train row 1: {message}"):
        bench.texts(rows, task="instruction", response="output", **settings)


def test_what_says_nothing_and_what_a_setting_leaves_alone_is_not_refused(bench: Bench, tmp_path: Path) -> None:
    form = {"task": "instruction", "response": "output"}
    for number, columns in enumerate(
        ({"system": ""}, {"history": "[]"}, {"weight": 1.0}, {"tools": None}, {"mask": False})
    ):
        bench.texts(loaded_rows(tmp_path / str(number), alpaca(**columns)), **form)
    rows = loaded_rows(tmp_path / "told", alpaca(system="Be brief."))
    assert bench.texts(rows, **form, system=None).meta["unread"] == ["input", "system"]
    assert "Be brief." in whole(bench.texts(rows, **form, prompt_template="{{ system }} {{ instruction }}"))[0]


# Pairs


def test_pairs_have_tools_and_a_system_prompt(bench: Bench, tmp_path: Path) -> None:
    model, fast = chat_model(tmp_path / "model", chat_template("qwen3"))
    said = {name: [TALK[0], {"role": "assistant", "content": name}] for name in ("chosen", "rejected")}
    columns = {name: [json.dumps(value)] for name, value in {**said, "tools": TOOLS}.items()} | {
        "system": ["Be brief."]
    }
    rows = loaded_rows(tmp_path, columns, nested=["chosen", "rejected", "tools"])
    texts = bench.texts(rows, model, task="preference")
    system = {"role": "system", "content": "Be brief."}
    for name, column in (("chosen", "parts"), ("rejected", "rejected")):
        text = "".join(part["text"] for part in table(texts, "train")[column][0])
        assert text == fast.apply_chat_template([system, *said[name]], tools=TOOLS, tokenize=False)


def test_marks_of_a_pair_s_prompt_change_nothing_and_an_unlearnt_answer_is_refused(
    bench: Bench, tmp_path: Path
) -> None:
    """LLaMA-Factory's demo marks each message of both conversations."""

    def pair(weight: float) -> dict[str, list[str]]:
        asked = [{**TALK[0], "loss_weight": 0.0}]
        answers = {
            name: {"role": "assistant", "content": name, "loss_weight": weight} for name in ("chosen", "rejected")
        }
        return {name: [json.dumps([*asked, answer])] for name, answer in answers.items()}

    form: Row = {"task": "preference", "chat_template": CHATML}
    rows = loaded_rows(tmp_path, pair(1.0), nested=["chosen", "rejected"])
    assert trained(bench.texts(rows, **form)) == ["chosen<|im_end|>\n"]
    with pytest.raises(DataError, match="row 1: an answer is marked as not to be trained on"):
        bench.texts(loaded_rows(tmp_path / "no", pair(0.0), nested=["chosen", "rejected"]), **form)
    with pytest.raises(DataError, match=r"row 1: message 2 has loss_weight 0\.5"):
        bench.texts(loaded_rows(tmp_path / "half", pair(0.5), nested=["chosen", "rejected"]), **form)


# What a template adds and leaves out


def test_a_default_system_prompt_and_empty_thinking_are_said_with_the_text(bench: Bench, tmp_path: Path) -> None:
    """Qwen2.5 begins conversations, Qwen3 begins answers with words of its own."""
    default = "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\nYou are Q.<|im_end|>\n' }}{% endif %}"
    chat(bench, tmp_path, TALK, default + CHATML)
    assert infos(bench) == [
        "rows that the chat template begins with words of its own: 1 (the first: split train row 1: "
        + repr("<|im_start|>system\nYou are Q.<|im_end|>\n<|im_start|>user\n")
        + ")"
    ]
    bench.said.clear()
    chat(bench, tmp_path, [{"role": "system", "content": "Be."}, *TALK], default + CHATML)
    chat(bench, tmp_path, TALK, CHATML)
    assert not infos(bench)
    chat(bench, tmp_path, TALK[:2], chat_template("qwen3"))
    assert infos(bench)[-1].endswith(
        "which are trained on: 1 (the first: split train row 1: '<think>\\n\\n</think>\\n\\n')"
    )
    bench.said.clear()
    chat(bench, tmp_path, THOUGHTS[:2], chat_template("qwen3"))
    assert not infos(bench)


def test_thinking_that_is_left_out_is_said(bench: Bench, tmp_path: Path) -> None:
    text = chat(bench, tmp_path, [*THOUGHTS[:2], *TALK[:2]], chat_template("qwen3"))
    assert "It is the first." not in text
    assert any("leaves out the thinking of earlier turns" in info for info in infos(bench))


def test_tools_that_a_row_s_text_lacks_are_said_with_the_row(bench: Bench, tmp_path: Path) -> None:
    """A template that knows tools, and does not write them where there is no system message."""
    source = "{% if tools and messages[0].role == 'system' %}{{ tools | tojson }}{% endif %}" + CHATML
    chat(bench, tmp_path, [{"role": "system", "content": "x"}, *TALK], source, tools=json.dumps(TOOLS))
    assert not bench.warnings()
    chat(bench, tmp_path, TALK, source, tools=json.dumps(TOOLS))
    assert bench.warnings() == ["rows whose tools the chat template does not write: 1 (the first: split train row 1)"]


def test_the_date_of_training_is_said(bench: Bench, tmp_path: Path) -> None:
    chat(bench, tmp_path, TALK, chat_template("llama3_1"))
    assert (
        infos(bench)[0]
        == "the chat template writes a date: 2024-07-26 in training (format.date), in use that of the day"
    )


# Which fields a template reads


READS = (
    "{% for m in messages %}{{ m.role }}{% if m.name %}{{ m.name }}{% endif %}{{ m.get('tone') }}{{ m['content'] }}"
    "{% for call in m.tool_calls or [] %}{{ call.function | tojson }}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}assistant{% endif %}"
)


def test_fields_that_a_rendering_reads_are_found(bench: Bench, tmp_path: Path) -> None:
    first = [
        {"role": "user", "content": "hi", "name": "ann", "id": 1},
        {"role": "assistant", "content": "ho", "tone": "x"},
    ]
    second = [first[0], {"role": "assistant", "content": "", "tool_calls": [{"id": "7", **CALL}], "meta": {"a": 1}}]
    rows = rows_of(tmp_path, "messages", [json.dumps(first), json.dumps(second)], source=["web", "web"])
    assert bench.texts(rows, task="chat", chat_template=READS).meta["unread"] == [
        "source", "messages.id", "messages.meta", "messages.meta.a", "messages.tool_calls.id", "messages.tool_calls.type",
    ]  # fmt: skip
    with pytest.raises(DataError, match="a tool call"):
        bench.texts(rows, task="chat", chat_template=FORGETFUL)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
)


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=4))
def test_a_recorded_message_is_rendered_as_the_message(fields: Row) -> None:
    """By the ways in which published templates read: names, JSON, loops over pairs, text."""
    source = (
        "{{ messages | tojson }}{{ messages[0] }}{% for k, v in messages[0].items() %}{{ k }}={{ v }}{% endfor %}"
        "{{ messages[0].get('a') }}"
    )
    template = ChatTemplate("here", source, {}, date="2024-07-26", arguments={})
    assert template.render({"messages": recorded([fields], set())}, "row") == template.render(
        {"messages": [fields]}, "row"
    )


def test_a_template_that_writes_messages_whole_reads_all_fields(bench: Bench, tmp_path: Path) -> None:
    source = "{% for m in messages %}{{ m | tojson }}\n{% endfor %}{% if add_generation_prompt %}{% endif %}"
    template = ChatTemplate("here", source, {}, date="2024-07-26", arguments={})
    messages = [{**TALK[0], "id": 1}, {**TALK[1], "meta": {"a": [1]}}]
    notes = templated(Conversation(messages), template, "row", last=True).notes
    assert not [note for note in notes if note.startswith(UNREAD)]


@pytest.mark.parametrize(
    ("ask", "read"),
    [
        (lambda message: "name" in message, {"name"}),
        (lambda message: message.get("name"), {"name"}),
        (lambda message: message["tool"]["id"], {"tool", "tool.id"}),
        (lambda message: [*message.values()], {"role", "content", "name", "tool"}),
    ],
)
def test_a_field_that_is_asked_for_in_any_way_counts_as_read(ask: Any, read: set[str]) -> None:
    noted: set[str] = set()
    ask(recorded({"role": "user", "content": "", "name": "x", "tool": {"id": 1}}, noted))
    assert noted == read
