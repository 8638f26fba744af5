from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.helpers.command_line import Shell
from tests.helpers.data_stages import files, loaded_rows, table
from trnflow.tasks.artifact import Input, Source
from trnflow.tasks.data.format.config import FormatConfig
from trnflow.tasks.data.format.row_format import RowFormat
from trnflow.tasks.data.format.row_makers import MAKERS, context_column, unread_columns
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.format_prompts import needs
from trnflow.tasks.prediction.prompts import shape_of
from trnflow.tasks.stage import Known


def parts(texts: Input) -> list[list[tuple[str, bool]]]:
    return [[(part["text"], part["train"]) for part in row] for row in table(texts, "train")["parts"]]


def test_dolly_sections(bench, shared):
    rows = bench.rows(source=str(shared / "data/dolly15k"), limit=2000)
    texts = bench.texts(rows, task="instruction")
    assert texts.meta["task"] == "causal_lm"
    assert texts.meta["labels"] is None
    source = table(rows, "train")
    made = parts(texts)
    assert len(made) + texts.meta["dropped"].get("empty", 0) == 2000
    wanted = []
    for instruction, context, response in zip(
        *(source[n] for n in ("instruction", "context", "response")), strict=True
    ):
        middle = f"### Context\n{context}\n\n" if context else ""
        prompt = f"### Instruction\n{instruction}\n\n{middle}### Answer\n"
        if response.strip():
            wanted.append([(prompt, False), (response, True)])
    assert made == wanted
    assert any("### Context" in row[0][0] for row in made) and any("### Context" not in row[0][0] for row in made)


def test_classification_joins_columns(bench, tmp_path):
    columns = {"title": ["a", "b"], "body": ["x", ""], "label": [1, 0]}
    rows = loaded_rows(tmp_path, columns, text=["title", "body"], labels=["no", "yes"])
    texts = bench.texts(rows, separator=" | ")
    assert table(texts, "train") == {"text": ["a | x", "b | "], "label": [1, 0]}
    wanted = {"task": "classification", "labels": ["no", "yes"], "splits": {"train": 2}, "dropped": {}, "framed": False}
    shaped = texts.meta["rows"]
    assert texts.meta == {**wanted, "templates": [], "rows": shaped}
    assert (shaped["text"], shaped["columns"]) == (["title", "body"], ["title", "body", "label"])
    assert shaped["settings"]["separator"] == " | "
    templated = bench.texts(rows, prompt_template="{{ body }}/{{ title|upper }}")
    assert table(templated, "train")["text"] == ["x/A", "/B"]


def test_rows_without_an_answer_are_dropped_and_counted(bench, tmp_path):
    columns = {"question": ["a", "b", "c"], "response": ["x", " \n", None]}
    texts = bench.texts(loaded_rows(tmp_path, columns), task="instruction", instruction="question")
    assert texts.meta["dropped"] == {"empty": 2}
    assert texts.meta["splits"] == {"train": 1}
    assert parts(texts) == [[("### Instruction\na\n\n### Answer\n", False), ("x", True)]]


def test_templates_see_the_row_and_nothing_else(bench, tmp_path):
    rows = loaded_rows(tmp_path, {"q": ["2+2"], "a": ["4"]})
    texts = bench.texts(rows, task="instruction", prompt_template="Q: {{ q }}\n", response_template="{{ a }}!")
    assert parts(texts) == [[("Q: 2+2\n", False), ("4!", True)]]
    with pytest.raises(ConfigError, match=r"format\.prompt_template: 'question' is undefined.*columns are q, a"):
        bench.texts(rows, task="instruction", prompt_template="{{ question }}", response="a")
    with pytest.raises(ConfigError, match=r"format\.prompt_template.*access to attribute '__class__'"):
        bench.texts(rows, task="instruction", prompt_template="{{ q.__class__.__mro__ }}", response="a")
    with pytest.raises(ConfigError, match=r"format\.response_template: unexpected"):
        bench.texts(rows, task="instruction", prompt_template="{{ q }}", response_template="{{ a ")


def test_chat_trains_on_the_assistants_turns(bench, tmp_path):
    talk = [("user", "hi"), ("assistant", "hello"), ("user", "bye"), ("assistant", "ciao")]
    messages = [[{"role": role, "content": text} for role, text in talk], [{"role": "user", "content": "alone"}]]
    texts = bench.texts(loaded_rows(tmp_path, {"messages": messages}), task="chat", chat_template="sections")
    assert texts.meta["dropped"] == {"empty": 1} and texts.meta["framed"] is False
    (made,) = parts(texts)
    assert "".join(text for text, _ in made) == (
        "### User\nhi\n\n### Assistant\nhello\n\n### User\nbye\n\n### Assistant\nciao"
    )
    written = [part for part in table(texts, "train")["parts"][0] if part["train"]]
    assert [part["token"] or part["text"] for part in written] == ["hello", "eos_token", "ciao", "eos_token"]


def test_chat_with_an_unknown_role_names_the_row(bench, tmp_path):
    messages = [[{"role": "user", "content": "x"}, {"role": "robot", "content": "y"}]]
    with pytest.raises(DataError, match="split train row 1: message 2 has the role 'robot'"):
        bench.texts(loaded_rows(tmp_path, {"messages": messages}), task="chat", chat_template="sections")


def test_a_row_is_found_by_its_text_where_rows_before_it_were_left_out(trnflow: Shell) -> None:
    rows = [{"q": f"What is {n}?", "a": "" if n == 3 else str(n)} for n in (1, 2, 2, 3, 4, 5)]
    (trnflow.folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = trnflow.error(
        "run", "demo-llm", "data.source=rows.jsonl", "data.name=null", "data.split=null", "data.dedupe=true",
        "format.prompt_template='{{ q }} {{ 1 // (a | int - 5) }}'", "format.response=a", "--until", "format_prompts",
        "--direct", "tracking.enabled=false", code=1,
    )  # fmt: skip
    assert "(the row begins with 'What is 5?')" in said


def test_alpaca_s_words(bench, tmp_path):
    rows = loaded_rows(tmp_path, {"instruction": ["Add.", "Greet."], "input": ["1 2", ""], "output": ["3", "Hi"]})
    texts = bench.texts(rows, task="instruction", style="alpaca", context="input", response="output")
    (first, answer), (second, _) = parts(texts)
    assert answer == ("3", True)
    assert first[0].startswith("Below is an instruction that describes a task, paired with an input that provides")
    assert first[0].endswith("\n\n### Instruction:\nAdd.\n\n### Input:\n1 2\n\n### Response:\n")
    assert second[0].startswith("Below is an instruction that describes a task. Write") and "### Input" not in second[0]


def test_plain_text_is_all_trained_on(bench, tmp_path):
    texts = bench.texts(loaded_rows(tmp_path, {"text": ["one", "", "two"]}), task="text")
    assert parts(texts) == [[("one", True)], [("two", True)]]


def test_texts_of_a_language_model_are_joined_by_the_separator(bench, tmp_path):
    rows = loaded_rows(tmp_path, {"title": ["a", "b"], "body": ["x", ""]}, text=["title", "body"])
    assert parts(bench.texts(rows, task="text", separator=" | ")) == [[("a | x", True)], [("b | ", True)]]


def test_each_text_of_a_triplet_is_a_column_of_its_own_in_training_and_in_use(bench, tmp_path):
    columns = {name: [f"{name} {number}" for number in range(2)] for name in ("title", "asked", "good", "bad")}
    rows = loaded_rows(tmp_path, columns, text=[*columns])
    texts = bench.texts(rows, task="embedding", text_pair="good", negative="bad", separator=" ")
    made = table(texts, "train")
    assert made["text"] == ["title 0 asked 0", "title 1 asked 1"]
    assert (made["text_pair"], made["negative"]) == (columns["good"], columns["bad"])
    shape = shape_of(RowFormat("embedding", **texts.meta["rows"], max_length=64), tmp_path)
    assert shape.columns == ["title", "asked"] and shape.of_row({"title": "a", "asked": "b"}, "")[0]["text"] == "a b"


def test_what_the_rows_lack_is_named(bench, tmp_path):
    rows = loaded_rows(tmp_path, {"instructions": ["a"], "response": ["b"]})
    with pytest.raises(
        ConfigError, match=r"format\.instruction: the rows have no column instruction .*mean instructions"
    ):
        bench.texts(rows, task="instruction")
    with pytest.raises(ConfigError, match=r"set data\.label"):
        bench.texts(rows, task="classification")
    pairs = loaded_rows(tmp_path / "pairs", {"prompt": ["a"], "chosen": ["b"], "rejected": ["c"]})
    with pytest.raises(ConfigError, match=r"no column response .*set format\.task=preference"):
        bench.texts(pairs, task="instruction", prompt_template="{{ prompt }}")
    empty = Input(rows.path, "rows", {**rows.meta}, "sha256:rows")
    pq.write_table(pa.table({"instructions": ["a"], "response": [""]}), rows.path / "train.parquet")
    with pytest.raises(DataError, match="the split train is empty"):
        bench.texts(empty, task="instruction", instruction="instructions")


def test_templates_that_no_task_reads_are_refused():
    with pytest.raises(ValidationError, match="prompt_template"):
        FormatConfig(task="chat", prompt_template="x")
    with pytest.raises(ValidationError, match="response_template"):
        FormatConfig(task="classification", response_template="x")


def test_same_rows_same_bytes_over_many_batches(bench, tmp_path):
    count = 9000
    rows = loaded_rows(tmp_path, {"text": [f"row {n}" for n in range(count)]})
    first, second = (bench.texts(rows, task="text") for _ in range(2))
    assert files(first.path) == files(second.path)
    assert parts(first) == [[(f"row {n}", True)] for n in range(count)]


@settings(derandomize=True, max_examples=50)
@given(st.text(), st.none() | st.text(), st.text())
def test_instruction_sections_keep_every_character(instruction, context, response):
    meta = {"columns": ["instruction", "context", "response"], "text": [], "labels": None}
    make = MAKERS["instruction"](FormatConfig(task="instruction"), meta)
    made = make({"instruction": instruction, "context": context, "response": response}, "row 1")
    if not response.strip():
        assert made is None
        return
    prompt, answer = made["parts"]
    assert (prompt["train"], answer) == (False, {"text": response, "train": True})
    assert prompt["text"].startswith(f"### Instruction\n{instruction}\n\n")
    assert prompt["text"].endswith("### Answer\n")
    assert (f"### Context\n{context}\n\n" in prompt["text"]) or not context


def test_alpaca_s_input_is_its_context_where_no_setting_names_one(bench, tmp_path):
    columns = {"instruction": ["Add."], "input": ["1 2"], "output": ["3"]}
    rows = loaded_rows(tmp_path, columns)
    (first, _), *_ = parts(bench.texts(rows, task="instruction", style="alpaca", response="output"))
    assert first[0].endswith("### Input:\n1 2\n\n### Response:\n")
    named = FormatConfig(task="instruction", style="alpaca", response="output")
    assert context_column(named, columns) == "input" and context_column(named, [*columns, "context"]) == "context"
    assert context_column(named.model_copy(update={"context": None}), columns) is None
    shape = shape_of(RowFormat("causal_lm", named.model_dump(), [], list(columns), [], 512), tmp_path)
    assert shape.optional == ["input"]


@pytest.mark.parametrize(
    ("settings", "unread"),
    [
        ({"task": "instruction", "response": "output"}, ["input", "messages"]),
        ({"task": "instruction", "response": "output", "style": "alpaca"}, ["messages"]),
        ({"task": "instruction", "prompt_template": "{{ instruction }}", "response": "output"}, ["input", "messages"]),
        (
            {"task": "instruction", "prompt_template": "{{ input }}", "response_template": "{{ output }}!"},
            ["instruction", "messages"],
        ),
        ({"task": "chat"}, ["instruction", "input", "output"]),
        ({"task": "text", "text": "output"}, ["instruction", "input", "messages"]),
    ],
)
def test_columns_that_nothing_reads(settings, unread):
    meta = {"columns": ["instruction", "input", "output", "messages"], "text": []}
    assert unread_columns(FormatConfig(**settings), meta) == unread


@pytest.mark.parametrize(
    ("columns", "error"), [(["text"], "no column"), (["question", "response"], None), (None, None)]
)
def test_a_column_that_is_known_to_be_missing_is_told_before_a_run(columns: list[str] | None, error: str | None):
    config = FormatConfig(task="instruction", instruction="question")
    rows = {"labels": None, "nested": []} | ({"columns": columns} if columns else {})
    known = Known({"model": Source("model", {}, {"tokenizer": None})}, {"rows": rows})
    if error:
        with pytest.raises(ConfigError, match=error):
            [*needs(config, known)]
    else:
        assert [*needs(config, known)] == []


def test_progress_counts_the_rows_of_a_split_to_the_last(bench, tmp_path):
    bench.texts(
        loaded_rows(tmp_path, {"text": ["a", "b", "c"], "label": [0, 1, 0]}, text=["text"], labels=["no", "yes"])
    )
    said = [one["progress"] for one in bench.said if "progress" in one and one["progress"]["unit"] == "train rows"]
    assert said[-1] == {"done": 3, "total": 3, "unit": "train rows"}


def test_numbers_of_a_split_are_compared_with_those_of_train(bench, tmp_path):
    for split, scale in (("train", 1), ("validation", 1), ("test", 100)):
        lines = [f"text {number} of {split},{number * scale}" for number in range(40)]
        (tmp_path / f"{split}.csv").write_text("\n".join(["text,score", *lines]))
    rows = bench.rows(source=str(tmp_path), text="text", columns={"score": "score"})
    bench.texts(rows, task="regression", target="score")
    (told,) = [warning for warning in bench.warnings() if "on one scale" in warning]
    assert told.startswith("test: half of its numbers lie from 975 to 2925, those of train from 9.75 to 29.25")
