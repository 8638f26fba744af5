"""A model from elsewhere brings its templates: `predict` renders them with the limits of a run."""

from __future__ import annotations

import json
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.sources.test_model_sizes import shapes_of, write_weights
from trnflow.tasks.data.format.config import FormatConfig
from trnflow.tasks.data.format.row_format import FORMAT, ROW_FORMAT_FILE, VERSION, RowFormat
from trnflow.tasks.errors import ConfigError, DataError, ModelError
from trnflow.tasks.prediction.predict import open_model
from trnflow.tasks.prediction.prompts import Shape, columns_of, shape_of
from trnflow.tasks.stage import write_json

GIB = "{% set held = 'x'.ljust(10 ** 9) %}{{ held | length }}"
ENDLESS = "{{ 7 ** (10 ** 9) % 2 }}"
LATER = "{{ (7 ** (10 ** (messages | length + 8))) % 2 }}"


def shape(folder: Path, task: str, columns: list[str], **settings: Any) -> Shape:
    named = FormatConfig(task=settings.pop("kind", "instruction"), response="b", **settings).model_dump()
    return shape_of(RowFormat(task, named, ["text"], columns, [], 64), folder)


def chat_folder(shared: Path, folder: Path, template: str) -> Path:
    shutil.copytree(shared / "assets/stories260K-hf", folder)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder


def asked(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize(("template", "error"), [(GIB, "takes too much memory"), (ENDLESS, "more than 5 s")])
def test_a_prompt_template_that_takes_all_is_ended(tmp_path: Path, template: str, error: str) -> None:
    hostile = shape(tmp_path, "causal_lm", ["text"], prompt_template=template + "{{ text }}")
    with pytest.raises(ConfigError, match=f"row 2: .*{error}|row 1: .*{error}"):
        hostile.of_rows([("row 1", {"text": "a"}), ("row 2", {"text": "b"})])


@pytest.mark.parametrize(("template", "error"), [(GIB, "takes too much memory"), (LATER, "more than 5 s")])
def test_a_chat_template_that_takes_all_in_predict_alone_is_ended(
    tmp_path: Path, shared: Path, template: str, error: str
) -> None:
    plain = "{% for message in messages %}{{ message.content }}{% endfor %}"
    acts = "{% if messages[0].content == 'now' %}" + template + "{% endif %}" + plain
    folder = chat_folder(shared, tmp_path / "model", acts)
    hostile = shape(folder, "causal_lm", ["messages"], kind="chat")
    (parts,) = hostile.of_rows([("row 1", {"messages": asked("later")})])
    assert "".join(part["text"] for part in parts) == "later"
    with pytest.raises(ConfigError, match=f"row 7: .*{error}"):
        hostile.of_row({"messages": asked("now")}, "row 7")


def test_a_template_counts_with_decimals_as_it_does_in_training(tmp_path: Path) -> None:
    """Of a Parquet file they are such: as texts, `price * 2` would be 1.101.10."""
    priced = shape(tmp_path, "causal_lm", ["price"], prompt_template="{{ price * 2 }} {{ inner[0].price + 1 }}")
    row = {"price": Decimal("1.10"), "inner": [{"price": Decimal("0.5")}]}
    assert priced.of_row(row, "row 1")[0]["text"] == "2.20 1.5"


def test_rows_are_named_and_written_in_order(tmp_path: Path, shared: Path) -> None:
    folder = chat_folder(shared, tmp_path / "model", "{{ messages[0].content | upper }}")
    rows = shape(folder, "causal_lm", ["messages"], kind="chat")
    written = rows.of_rows([(f"row {number}", {"messages": asked(f"é{number}")}) for number in range(300)])
    assert ["".join(part["text"] for part in parts) for parts in written] == [f"É{number}" for number in range(300)]
    with pytest.raises(DataError, match="row 2: the column messages is missing"):
        rows.of_rows([("row 1", {"messages": asked("a")}), ("row 2", {})])


def test_a_folder_shaped_as_7b_is_opened_and_one_with_a_billion_labels_is_not(tmp_path: Path) -> None:
    """The weights are a hole in a file of 13 GB."""
    config = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "vocab_size": 32000}
    write_weights(tmp_path / "model.safetensors", shapes_of(config))
    rows = {"settings": FormatConfig(task="text").model_dump(), "text": ["text"], "columns": ["text"], "nested": []}
    write_json(tmp_path / ROW_FORMAT_FILE, {"format": FORMAT, "version": VERSION, "task": "causal_lm", "rows": rows,
                                            "max_length": 64})  # fmt: skip
    write_json(tmp_path / "config.json", {"model_type": "llama", **config})
    assert open_model(tmp_path, "model", {"task": "causal_lm"}).shape.columns == ["text"]
    write_json(tmp_path / "config.json", {"model_type": "llama", **config, "num_labels": 10**9})
    with pytest.raises(ModelError, match="num_labels is 1,000,000,000"):
        open_model(tmp_path, "model", {"task": "causal_lm"})


def test_what_a_model_reads_is_known_without_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trnflow.tasks.prediction.prompts.call_limited", None)
    settings = FormatConfig(task="instruction", prompt_template="{{ title }}: {{ body }}").model_dump()
    rows = RowFormat("causal_lm", json.loads(json.dumps(settings)), ["text"], ["title", "body"], [], 64)
    assert columns_of(rows) == (["title", "body"], [])
    assert shape_of(rows, tmp_path).columns == ["title", "body"]


def test_a_template_that_can_t_be_parsed_is_refused_when_the_model_is_opened(tmp_path: Path, shared: Path) -> None:
    folder = chat_folder(shared, tmp_path / "model", "{% if %}")
    with pytest.raises(ConfigError, match="the tokenizer's chat template: "):
        shape(folder, "causal_lm", ["messages"], kind="chat")
