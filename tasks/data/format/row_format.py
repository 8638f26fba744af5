"""Describe, in the file `trnflow.json` of a model's folder, how rows of data become the model's inputs, so that rows
are formatted in the same way for predictions after training.

The file depends on settings and on the names of columns alone; it holds no row of the data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ModelError
from trnflow.tasks.stage import read_json

FILE = "trnflow.json"
FORMAT = "trnflow-model"
VERSION = 1


class RowFormat(NamedTuple):
    """How a row of data becomes the input of a model, so that rows are formatted in the same way for predictions after
    training. Read from the file `trnflow.json` in the model's folder.

    Attributes:
        task: `classification` or `causal_lm`.
        settings: the recipe's section `format`.
        text: names of the columns that hold the text, as `data.text` sets them.
        columns: names of all columns that the rows had in training.
        nested: names of the columns that hold lists or objects.
        max_length: the most tokens of a row in training.
    """

    task: str
    settings: dict[str, Any]
    text: list[str]
    columns: list[str]
    nested: list[str]
    max_length: int


def row_format(texts: Meta, tokens: Meta) -> Meta:
    """Return the content of `trnflow.json`, the file in a model's folder that says how rows of data become its inputs;
    the caller writes the file. texts, tokens: the metadata of the artifacts of `format_prompts` and `tokenize_text`
    that the model was trained on.

    Keys of the result: `format` and `version` of the file; `task`; `rows`, a dict with `settings`, `text`, `columns`
    and `nested`; `max_length`. See `RowFormat` for their meaning."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "task": texts["task"],
        "rows": texts["rows"],
        "max_length": tokens["max_length"],
    }


def read_row_format(folder: Path) -> RowFormat:
    """Read `trnflow.json` in a model's folder, which says how rows of data become the model's inputs. Raises ModelError
    if the file is missing or of another version."""
    file = folder / FILE
    document = read_json(file) if file.is_file() else {}
    if (document.get("format"), document.get("version")) != (FORMAT, VERSION):
        raise ModelError(
            f"the model has no {FILE} that this version reads, so how its inputs are shaped is not known",
            "`trnflow run` makes the model anew; training itself is cached",
        )
    return RowFormat(document["task"], **document["rows"], max_length=int(document["max_length"]))
