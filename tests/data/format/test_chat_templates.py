"""Published chat templates and what rows bring to them: ids and masks are transformers' own."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.data.format.test_chat import FORGETFUL, TALK
from tests.helpers.chats import chat_model, chat_template, openai, openai_tools, rows_of, token_rows, transformers_row
from tests.helpers.data_stages import Bench, table, trained, whole
from trnflow.tasks.artifact import Input
from trnflow.tasks.data.format.chat import templated
from trnflow.tasks.data.format.config import FormatConfig
from trnflow.tasks.data.format.conversation import Conversation
from trnflow.tasks.data.format.spelled_tokens import special_pattern
from trnflow.tasks.data.format.templates import ChatTemplate
from trnflow.tasks.errors import ConfigError, DataError

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather </s>",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
        },
    }
]
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome", "days": 2, "more": 1.50}}}
TOOL_TALK = [
    {"role": "user", "content": "How is Rome?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "20 degrees"},
    {"role": "assistant", "content": "Mild."},
]
THOUGHTS = [
    {"role": "user", "content": "One?"},
    {"role": "assistant", "content": "Yes.", "reasoning_content": "It is the first."},
    {"role": "user", "content": "Two?"},
    {"role": "assistant", "content": "<think>\nIt follows.\n</think>\n\nAlso."},
]
DATED = {"date_string": "26 Jul 2024"}
"""What `strftime_now("%d %b %Y")` of the default `format.date` is, for transformers."""


def tokens_of(bench: Bench, rows: Input, model: dict[str, Any], **format: Any) -> list[tuple[list[int], list[int]]]:
    texts = bench.texts(rows, model, task="chat", **format)
    return token_rows(bench.tokens(texts, model, max_length=100_000))


# What the template is given (finding 6)


@pytest.mark.parametrize("as_text", [False, True], ids=["objects", "json"])
@pytest.mark.parametrize("name", ["qwen3", "llama3_1"])
def test_tools_reach_the_template(bench: Bench, tmp_path: Path, name: str, as_text: bool) -> None:
    model, fast = chat_model(tmp_path / "model", chat_template(name))
    given = [json.dumps(value) if as_text else value for value in (TOOL_TALK, TOOLS)]
    rows = rows_of(tmp_path, "messages", [given[0]], tools=[given[1]])
    wanted = fast.apply_chat_template(TOOL_TALK, tools=TOOLS, tokenize=False, **DATED)
    assert "Tells the weather" in wanted
    texts = bench.texts(rows, model, task="chat", turns="last")
    assert whole(texts) == [wanted]
    assert trained(texts)[0].endswith({"qwen3": "Mild.<|im_end|>\n", "llama3_1": "Mild.<|eot_id|>"}[name])


def test_a_tokenizer_s_own_template_for_tools_is_taken_when_there_are_tools(bench: Bench, tmp_path: Path) -> None:
    plain = "{% for m in messages %}{{ m.role + ':' + m.content + '\n' }}{% endfor %}"
    model, fast = chat_model(tmp_path / "model", None)
    several = [{"name": "default", "template": plain}, {"name": "tool_use", "template": "{{ tools | tojson }}" + plain}]
    config = tmp_path / "model" / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "chat_template": several}))
    fast = type(fast).from_pretrained(tmp_path / "model")
    rows = rows_of(tmp_path, "messages", [TALK, TALK], tools=[json.dumps(TOOLS), None])
    made = whole(bench.texts(rows, model, task="chat"))
    assert made == [fast.apply_chat_template(TALK, tools=tools, tokenize=False) for tools in (TOOLS, None)]
    assert made[0].startswith("[{") and not made[1].startswith("[")


def test_documents_arguments_and_a_row_s_own_arguments_reach_the_template(bench: Bench, tmp_path: Path) -> None:
    template = (
        "{% for document in documents or [] %}{{ document | tojson }}{% endfor %}{{ style }}/{{ mood }}\n"
        "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    model, fast = chat_model(tmp_path / "model", template)
    documents = [{"title": "a", "text": "b </s>", "n": 1}]
    own = [{"mood": "glad"}, {}]
    rows = rows_of(
        tmp_path, "messages", [TALK, TALK],
        documents=[json.dumps(documents), None], chat_template_kwargs=[json.dumps(one) for one in own],
    )  # fmt: skip
    arguments = {"style": "short", "mood": "calm"}
    made = whole(bench.texts(rows, model, task="chat", template_arguments=arguments))
    assert made == [
        fast.apply_chat_template(TALK, documents=given, tokenize=False, **{**arguments, **row})
        for given, row in zip((documents, None), own, strict=True)
    ]
    assert "short/glad" in made[0] and "short/calm" in made[1]


def test_special_tokens_of_tools_are_letters(bench: Bench, tmp_path: Path) -> None:
    model, fast = chat_model(tmp_path / "model", chat_template("qwen3"))
    rows = rows_of(tmp_path, "messages", [TOOL_TALK], tools=[json.dumps(TOOLS)])
    ((ids, _),) = tokens_of(bench, rows, model, turns="last")
    assert fast.convert_tokens_to_ids("</s>") not in ids
    assert ids == fast.apply_chat_template(TOOL_TALK, tools=TOOLS, sanitize_control_tokens=True, return_dict=False)


def test_real_conversations_with_tools_have_transformers_ids_and_masks(
    bench: Bench, tmp_path: Path, shared: Path
) -> None:
    """300 published conversations, in ShareGPT's shape, with JSON text in `tools` and in the calls."""
    bench.limited = True
    source = shared / "data/chat_tools/train.json"
    model, fast = chat_model(tmp_path / "model", chat_template("qwen3_training"))
    made = tokens_of(bench, bench.rows(source=str(source)), model, messages="conversations")
    published = json.loads(source.read_text())
    wanted = [
        transformers_row(fast, openai(row["conversations"]), tools=openai_tools(row["tools"])) for row in published
    ]
    assert len(made) == len(published) == 300
    assert made == wanted


def test_columns_that_the_template_does_not_read_are_told(bench: Bench, tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "messages", [TALK], tools=[json.dumps(TOOLS)])
    for template in (FORGETFUL, "sections"):
        bench.texts(rows, task="chat", chat_template=template)
        assert bench.warnings()[-1] == "the rows have a column tools, and the chat template does not write tools"
    bench.said.clear()
    bench.texts(rows, task="chat", chat_template=FORGETFUL, tools=None)
    assert not bench.warnings()


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("tools", "[{", "the column tools is no JSON"),
        ("tools", '{"a": 1}', "the column tools is no list of objects"),
        ("documents", '["a"]', "the column documents is no list of objects"),
        ("chat_template_kwargs", "[1]", "the column chat_template_kwargs must be an object"),
        (
            "chat_template_kwargs",
            '{"messages": []}',
            "the column chat_template_kwargs must be an object without messages",
        ),
        ("tools", "[" * 100_000, "the column tools is no JSON"),
    ],
)
def test_what_is_not_of_its_shape_names_row_and_column(
    bench: Bench, tmp_path: Path, column: str, value: str, said: str
) -> None:
    rows = rows_of(tmp_path, "messages", [TALK, TALK], **{column: ["", value]})
    with pytest.raises(DataError, match=f"split train row 2: {said}"):
        bench.texts(rows, task="chat", chat_template=FORGETFUL)


def test_arguments_that_the_rows_give_and_those_nobody_reads_are_refused() -> None:
    with pytest.raises(ValueError, match="messages can't be set here"):
        FormatConfig(task="chat", template_arguments={"messages": []})
    with pytest.raises(ValueError, match="`template_arguments` are for chat"):
        FormatConfig(task="text", template_arguments={"a": 1})


# What is trained on (finding 7)


@pytest.mark.parametrize(("name", "arguments"), [("qwen3_training", {}), ("smollm3", {"xml_tools": TOOLS})])
def test_generation_blocks_are_what_is_trained_on(
    bench: Bench, tmp_path: Path, name: str, arguments: dict[str, Any]
) -> None:
    model, fast = chat_model(tmp_path / "model", chat_template(name))
    talks = [TALK, THOUGHTS, [{"role": "system", "content": "Be brief. /no_think"}, *TALK]]
    if name == "smollm3":
        del talks[1]  # it writes what stands in the content alone
    rows = rows_of(tmp_path, "messages", [json.dumps(talk) for talk in talks])
    made = tokens_of(bench, rows, model, template_arguments=arguments)
    told = fast.chat_template.replace("strftime_now('%d %B %Y')", "'26 July 2024'")
    assert made == [transformers_row(fast, talk, chat_template=told, **arguments) for talk in talks]
    assert all(any(mask) for _, mask in made) and not bench.warnings()


def test_blocks_in_macros_and_variables_are_found_from_several_threads(tmp_path: Path) -> None:
    """transformers' mask is wrong here; its text is the reference, and the turns are what was said."""
    _, fast = chat_model(tmp_path / "model", chat_template("chatml_macro"))
    talks = [
        [turn for n in range(row % 5 + 1) for turn in ({"role": "user", "content": f"q{n}"}, said(row, n))]
        for row in range(400)
    ]
    template = ChatTemplate("x", fast.chat_template, fast.special_tokens_map, date="2024-07-26", arguments={})
    special = special_pattern(tuple(fast.all_special_tokens))
    with ThreadPoolExecutor(8) as pool:
        made = pool.map(lambda talk: templated(Conversation(talk), template, "r", last=False, special=special), talks)
        for talk, (examples, notes) in zip(talks, made, strict=True):
            assert "".join(part["text"] for part in examples[0]) == fast.apply_chat_template(talk, tokenize=False)
            answers = [f"{turn['content']}<|im_end|>" for turn in talk if turn["role"] == "assistant"]
            assert "".join(part["text"] for part in examples[0] if part["train"]) == "".join(answers)
            assert not notes


def said(row: int, turn: int) -> dict[str, str]:
    return {"role": "assistant", "content": f"answer {row}.{turn} \U000ffffc"}  # a character that marks blocks, too


def test_turns_outside_of_blocks_are_told(bench: Bench, tmp_path: Path) -> None:
    template = chat_template("chatml_macro").replace("{{- said(message) }}", "{{- message.content }}")
    rows = rows_of(tmp_path, "messages", [TALK[:2], TALK])
    texts = bench.texts(rows, task="chat", chat_template=template)
    assert trained(texts) == ["hello<|im_end|>", "ciao<|im_end|>"]
    assert bench.warnings() == [
        "rows with more assistant turns than {% generation %} blocks, trained on in the blocks alone: 1 "
        "(the first: split train row 2)"
    ]


def test_with_blocks_the_last_turn_is_the_last_one_s_blocks(bench: Bench, tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "messages", [[*TALK, {"role": "user", "content": "still there?"}]])
    texts = bench.texts(rows, task="chat", chat_template=chat_template("chatml_macro"), turns="last")
    assert trained(texts) == ["ciao<|im_end|>"]


def test_a_filter_over_a_block_is_refused(bench: Bench, tmp_path: Path) -> None:
    template = (
        "{% macro said(m) %}{% generation %} {{ m.content }} {% endgeneration %}{% endmacro %}"
        "{% for m in messages %}{{ said(m) | trim if m.role == 'assistant' else m.content }}{% endfor %}"
    )
    with pytest.raises(ConfigError, match=r"split train row 1: a filter works on the text of a {% generation %} block"):
        bench.texts(rows_of(tmp_path, "messages", [TALK]), task="chat", chat_template=template)


def test_a_template_that_rewrites_earlier_turns_makes_an_example_of_each(bench: Bench, tmp_path: Path) -> None:
    """Qwen3 writes the thinking of the last turn alone."""
    model, fast = chat_model(tmp_path / "model", chat_template("qwen3"))
    rows = rows_of(tmp_path, "messages", [json.dumps(THOUGHTS), json.dumps(TALK[:2])])
    texts = bench.texts(rows, model, task="chat")
    made = whole(texts)
    told = [THOUGHTS[:2], THOUGHTS, TALK[:2]]
    assert made == [fast.apply_chat_template(messages, tokenize=False) for messages in told]
    assert trained(texts) == [
        "<think>\nIt is the first.\n</think>\n\nYes.<|im_end|>\n",
        "<think>\nIt follows.\n</think>\n\nAlso.<|im_end|>\n",
        "<think>\n\n</think>\n\nhello<|im_end|>\n",
    ]
    assert texts.meta["splits"] == {"train": 3}
    assert np.load(texts.path / "train.source_row.npy").tolist() == [0, 0, 1]
    assert texts.meta["metrics"] == {"rewritten_rows": 1, "rewritten_examples": 2, "train_rows": 3}
    assert any("the chat template rewrites: 1, made into 2 examples" in event.get("info", "") for event in bench.said)
    prompts = [fast.apply_chat_template(m[:-1], tokenize=False, add_generation_prompt=True) for m in told]
    assert all(text.startswith(prompt) for text, prompt in zip(made, prompts, strict=True))


def test_with_turns_last_a_rewritten_conversation_is_one_example(bench: Bench, tmp_path: Path) -> None:
    """Also one that goes on after the last turn, which Qwen3 then writes without its thinking."""
    model, _ = chat_model(tmp_path / "model", chat_template("qwen3"))
    going_on = [*THOUGHTS, {"role": "user", "content": "Three?"}]
    rows = rows_of(tmp_path, "messages", [json.dumps(THOUGHTS), json.dumps(going_on)])
    texts = bench.texts(rows, model, task="chat", turns="last")
    assert trained(texts) == ["<think>\nIt follows.\n</think>\n\nAlso.<|im_end|>\n"] * 2
    assert texts.meta["splits"] == {"train": 2} and "metrics" not in texts.meta
    assert not (texts.path / "train.source_row.npy").exists()  # the examples are the rows one for one


def test_thinking_that_the_template_leaves_out_is_refused_and_the_fix_works(bench: Bench, tmp_path: Path) -> None:
    """DeepSeek-R1's template cuts thinking, the last turn's too."""
    source = chat_template("deepseek_r1_distill")
    model, _ = chat_model(tmp_path / "model", source)
    thinking = [TALK[0], {"role": "assistant", "content": "<think>\nA greeting.\n</think>\n\nhello"}]
    rows = rows_of(tmp_path, "messages", [TALK, thinking])
    for turns in ("all", "last"):
        with pytest.raises(
            DataError, match="row 2: message 2 has thinking, and the chat .*Fix: set format.chat_template"
        ):
            bench.texts(rows, model, task="chat", turns=turns)
    cut = "{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}"
    assert cut in source
    texts = bench.texts(rows, model, task="chat", chat_template=source.replace(cut, ""))
    assert trained(texts)[1] == "A greeting.\n</think>\n\nhello<｜end▁of▁sentence｜>"
    assert trained(texts)[0] == "hello<｜end▁of▁sentence｜>ciao<｜end▁of▁sentence｜>"
    assert any("lack the words that the chat template's prompt ends in" in warning for warning in bench.warnings())


@pytest.mark.parametrize("template", ["deepseek_r1_distill", "chatml_macro", "sections"])
def test_a_tool_call_that_the_template_leaves_out_is_refused(bench: Bench, tmp_path: Path, template: str) -> None:
    source = template if template == "sections" else chat_template(template)
    rows = rows_of(tmp_path, "messages", [json.dumps(TOOL_TALK)])
    with pytest.raises(
        DataError, match="split train row 1: message 2 has a tool call, and the chat template leaves it out"
    ):
        bench.texts(rows, task="chat", chat_template=source)


def test_a_list_of_tools_is_no_call_of_one(bench: Bench, tmp_path: Path) -> None:
    """As LFM2's template with blocks: it lists the tools, and writes an empty answer in place of a call."""
    rows = rows_of(tmp_path, "messages", [json.dumps(TOOL_TALK)], tools=[json.dumps(TOOLS)])
    with pytest.raises(DataError, match="message 2 has a tool call, and the chat template leaves it out"):
        bench.texts(rows, task="chat", chat_template="{{ tools | tojson }}" + chat_template("chatml_macro"))


def test_the_date_is_the_recipe_s(bench: Bench, tmp_path: Path) -> None:
    model, _ = chat_model(tmp_path / "model", chat_template("llama3_1"))
    rows = rows_of(tmp_path, "messages", [TALK])
    for given, told in (({}, "26 Jul 2024"), ({"date": "2031-02-03"}, "03 Feb 2031")):
        (parts,) = table(bench.texts(rows, model, task="chat", **given), "train")["parts"]
        assert f"Today Date: {told}\n" in parts[0]["text"]
    with pytest.raises(ValueError, match="Invalid isoformat"):
        FormatConfig(date="tomorrow")


@pytest.mark.parametrize(("readers", "through"), [("user assistant", True), ("user", False), ("assistant", False)])
def test_a_template_goes_through_parts_only_if_it_does_for_questions_and_answers(readers: str, through: bool) -> None:
    source = (
        f"{{% for m in messages %}}{{% if m.role in '{readers}' and m.content is not string %}}{{% for part in m.content %}}"
        "{{ part.text }}{% endfor %}{% endif %}{% endfor %}"
    )
    template = ChatTemplate("format.chat_template", source, {}, date="2024-07-26", arguments={})
    assert template.goes_through_parts == through
