"""Rows that can't be rendered, and templates that don't end: dropped when asked, or the run stops."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trnflow.tasks.data.format.chat
from tests.helpers.chats import rows_of
from tests.helpers.command_line import InProcessShell
from tests.helpers.data_stages import Bench, table, whole
from trnflow.tasks.artifact import Input
from trnflow.tasks.data.format.config import FormatConfig
from trnflow.tasks.errors import CodeError, ConfigError, DataError
from trnflow.tasks.format_prompts import format_rows, split_rows
from trnflow.tasks.keys.file_audit import Permit, watch_process

LLAMA = {"config": {"model_type": "llama"}}
CHATML = (
    "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def talk(question: str) -> str:
    return json.dumps([{"role": "user", "content": question}, {"role": "assistant", "content": "Yes."}])


def talks(root: Path, *questions: str) -> Input:
    return rows_of(root, "messages", [talk(question) for question in questions])


def when(content: str, does: str) -> str:
    return f"{{% if messages[0].content == '{content}' %}}{does}{{% endif %}}{CHATML}"


BAD = {
    "steps": ("{% for a in range(1000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}", "more than 250000 steps"),
    "calls": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
        "more than 250000 steps",
    ),
    "depth": ("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", "maximum recursion depth"),
    "output": ("{% for a in range(1000) %}{{ 'x' * 100000 }}{% endfor %}", "more than 16777216 characters"),
    "refused": ("{{ raise_exception('not this one') }}", "not this one"),
    "numbers": ("{{ 1 // 0 }}", "integer division or modulo by zero"),
    "internals": ("{{ messages.__class__.__mro__ }}", "access to attribute '__class__'"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_row_that_can_not_be_rendered_is_an_error_or_dropped(bench: Bench, tmp_path: Path, what: str) -> None:
    does, said = BAD[what]
    bench.limited = what in ("steps", "calls")  # without the limit under test they would go on for ever
    rows = talks(tmp_path, "One?", "bad", "Two?", "bad")
    format = {"task": "chat", "chat_template": when("bad", does)}
    with pytest.raises(DataError) as failed:
        bench.texts(rows, **format)
    assert failed.value.message.startswith("split train row 2: ") and said in failed.value.message
    assert failed.value.fix.endswith("format.bad_rows=drop leaves such rows out")
    texts = bench.texts(rows, **format, bad_rows="drop")
    assert whole(texts) == ["<user>One?<assistant>Yes.", "<user>Two?<assistant>Yes."]
    assert texts.meta["dropped"] == {"bad": 2}
    assert texts.meta["metrics"] == {"bad_rows_dropped": 2, "train_rows": 2}
    assert np.load(texts.path / "train.source_row.npy").tolist() == [0, 2]
    (warning,) = bench.warnings()
    assert warning.startswith("rows that can't be rendered, dropped: 2 (the first: split train row 2: ")
    assert said in warning


@pytest.mark.parametrize("template", [when("bad", "{{ raise_exception('not this one') }}"), "sections"])
def test_an_error_text_is_in_no_part_and_no_artifact(bench: Bench, tmp_path: Path, template: str) -> None:
    """A key does not hold the texts of `raise`, so they must not reach what is stored under it."""
    messages = [talk("One?"), talk("bad") if template != "sections" else "[{", talk("Two?")]
    rows = rows_of(tmp_path, "messages", messages)
    config, model = FormatConfig(task="chat", chat_template=template, bad_rows="drop"), LLAMA
    (part,) = split_rows(config, rows, bench.model(model), bench.workdir())
    counts = format_rows(config, rows, part.arguments, bench.workdir())
    assert json.loads(json.dumps(counts["noted"])) == {"bad": [1, "1"]}
    texts = bench.texts(rows, model, task="chat", chat_template=template, bad_rows="drop")
    assert "row 2" not in json.dumps(texts.meta) and "row 2: " in bench.warnings()[0]


def test_the_first_bad_row_is_named_where_a_later_part_has_it(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trnflow.tasks.format_prompts.PART", 2)
    rows = rows_of(tmp_path, "messages", [talk("One?"), talk("Two?"), talk("Three?"), "[{", "[", talk("Four?")])
    texts = bench.texts(rows, task="chat", chat_template="sections", bad_rows="drop")
    assert texts.meta["dropped"] == {"bad": 2}
    (warning,) = bench.warnings()
    assert "dropped: 2 (the first: split train row 4: the column messages is no JSON" in warning
    assert not list(texts.path.rglob("*.arrow"))


def test_rows_of_other_shapes_are_bad_rows_too(bench: Bench, tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "messages", [talk("One?"), "[{", '[{"role": "robot"}]', "[1]", '"hi"', None])
    texts = bench.texts(rows, task="chat", chat_template="sections", bad_rows="drop")
    assert texts.meta["splits"] == {"train": 1} and texts.meta["dropped"] == {"empty": 1, "bad": 4}


def test_templates_of_rows_name_the_row(bench: Bench, tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "q", ["a", "b"], n=[1, 0], response=["x", "y"])
    format = {"task": "instruction", "prompt_template": "{{ q }}: {{ 4 // n }}"}
    with pytest.raises(
        DataError, match=r"split train row 2: format.prompt_template: integer division or modulo by zero"
    ):
        bench.texts(rows, **format)
    texts = bench.texts(rows, **format, bad_rows="drop")
    assert table(texts, "train")["parts"][0][0]["text"] == "a: 4" and texts.meta["dropped"] == {"bad": 1}
    with pytest.raises(ConfigError, match=r"format\.prompt_template: 'm' is undefined"):
        bench.texts(rows, task="instruction", prompt_template="{{ m }}", bad_rows="drop")


@pytest.mark.parametrize("what", ["{{ messages | random }}", "{{ lipsum() }}", "{{ messages | no_such }}"])
def test_templates_draw_no_random_numbers(bench: Bench, tmp_path: Path, what: str) -> None:
    with pytest.raises((ConfigError, DataError), match=r"No filter named '(random|no_such)'|'lipsum' is undefined"):
        bench.texts(talks(tmp_path, "One?"), task="chat", chat_template=what)


def test_a_split_of_which_nothing_is_left_is_an_error(bench: Bench, tmp_path: Path) -> None:
    rows = talks(tmp_path, "bad", "bad")
    with pytest.raises(
        DataError, match=r"the split train is empty: .* \(2 can't be rendered; the first: split train row 1"
    ):
        bench.texts(rows, task="chat", chat_template=when("bad", "{{ 1 // 0 }}"), bad_rows="drop")


ENDLESS = {
    "time": ("{{ (7 ** (10 ** (messages | length + 7))) % 2 }}", "takes more than 5 s of processor time"),
    "memory": ("{{ 'x'.ljust(10 ** 12) }}", "takes too much memory"),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_time_and_memory_stop_the_run_and_never_drop_a_row(bench: Bench, tmp_path: Path, what: str) -> None:
    """A computation that Python does not interrupt."""
    bench.limited = True
    does, said = ENDLESS[what]
    rows = talks(tmp_path, "One?", "bad", "Two?")
    with pytest.raises(ConfigError, match=f"split train row 2: .*{said}"):
        bench.texts(rows, task="chat", chat_template=when("bad", does), bad_rows="drop")


def test_a_template_of_rows_can_not_take_all_memory(bench: Bench, tmp_path: Path) -> None:
    bench.limited = True
    rows = rows_of(tmp_path, "q", ["a"], response=["x"])
    with pytest.raises(ConfigError, match="split train row 1: .*takes too much memory"):
        bench.texts(rows, task="instruction", prompt_template="{{ q.ljust(5 * 10 ** 9) }}")


def test_constants_that_are_computed_as_a_template_is_read_stop_the_run(bench: Bench, tmp_path: Path) -> None:
    bench.limited = True
    rows = rows_of(tmp_path, "q", ["a"], response=["x"])
    with pytest.raises(ConfigError, match="takes more than 5 s of processor time"):
        bench.texts(rows, task="instruction", prompt_template="{{ 7 ** (10 ** 9) % 2 }}")


def test_the_code_of_the_process_that_renders_is_held_to_the_key(bench: Bench, tmp_path: Path) -> None:
    bench.limited = True
    rows, file = talks(tmp_path, "One?"), str(trnflow.tasks.data.format.chat.__file__)
    permit = Permit("format_prompts", (), frozenset(), (), {file: ("another", "sha256:another")})
    with pytest.raises(CodeError, match=r"chat\.py was edited while this run was going"), watch_process(permit):
        bench.texts(rows, task="chat", chat_template=CHATML)


def test_the_setting_has_two_values() -> None:
    assert FormatConfig().bad_rows == "error"
    with pytest.raises(ValueError, match="bad_rows"):
        FormatConfig(**{"bad_rows": "skip"})


def test_the_closing_table_counts_them(tmp_path: Path) -> None:
    with (tmp_path / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["messages"])
        writer.writerows([talk("bad" if n % 8 == 0 else f"{n}?")] for n in range(40))
    (tmp_path / "mine.yaml").write_text(recipe(when("bad", "{{ raise_exception('no') }}")))
    shell = InProcessShell(tmp_path)
    stopped = shell.error("run", "mine.yaml", "--until", "format_prompts", "--direct", code=1)
    assert "the chat template refuses the messages: no" in stopped and "format.bad_rows=drop" in stopped
    done = shell("run", "mine.yaml", "--until", "format_prompts", "--direct", "format.bad_rows=drop")
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("format_prompts"))
    assert "bad_rows_dropped 5" in line
    assert "rows that can't be rendered, dropped: 5 (the first: split train row " in done.stderr


def recipe(template: str) -> str:
    settings: dict[str, Any] = {
        "extends": "demo-llm",
        "name": "mine",
        "tracking": {"enabled": False},
        "data": {"source": "rows.csv", "name": None, "split": {"validation": 0.2}},
        "format": {"task": "chat", "chat_template": template},
    }
    return json.dumps(settings)
