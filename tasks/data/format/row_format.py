"""`trnflow.json` in a model's folder: how rows become the model's inputs. It holds settings and column names, no data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.texts import PAIR
from trnflow.tasks.errors import ModelError
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.stage import read_json

if TYPE_CHECKING:
    from trnflow.tasks.metadata import TextsMeta, TokensMeta

ROW_FORMAT_FILE = "trnflow.json"
FORMAT = "trnflow-model"
VERSION = 1


class RowFormat(NamedTuple):
    """How a row becomes a model's input.

    Attributes:
        settings: The section `format`.
        text: The text columns.
        columns: All columns in training.
        nested: Those of lists or objects.
        max_length: The most tokens of a row in training.
        own: {module: hash} of the user's code that made the texts, and `format.make`: its function; None without.
        decision: What the task chose on validation, such as a threshold.
    """

    task: str
    settings: dict[str, Any]
    text: list[str]
    columns: list[str]
    nested: list[str]
    max_length: int
    own: dict[str, str] | None = None
    decision: dict[str, Any] = {}


def row_format(texts: TextsMeta, tokens: TokensMeta) -> Meta:
    """Return the content of `trnflow.json` from the metadata of format_prompts and tokenize_text."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "task": texts["task"],
        "rows": texts["rows"],
        "max_length": tokens["max_length"],
    }


def has_pairs(folder: Path) -> bool:
    """Return whether the model in a folder reads two texts together."""
    file = folder / ROW_FORMAT_FILE
    document = read_json(file) if file.is_file() else {}
    has_two = bool(document.get("rows", {}).get("settings", {}).get(PAIR))
    return has_two and not kind_of(document["task"]).apart


def decision_of(folder: Path) -> Meta:
    """Return what the task chose on validation, from `trnflow.json`; {} without one."""
    file = folder / ROW_FORMAT_FILE
    decision: Meta = read_json(file).get("decision", {}) if file.is_file() else {}
    return decision


def read_row_format(folder: Path) -> RowFormat:
    """Read `trnflow.json`. Raises ModelError if it is missing or of another version."""
    file = folder / ROW_FORMAT_FILE
    document = read_json(file) if file.is_file() else {}
    if (document.get("format"), document.get("version")) != (FORMAT, VERSION):
        raise ModelError(
            f"the model has no {ROW_FORMAT_FILE} that this version reads, so how its inputs are shaped is not known",
            "`trnflow run` makes the model anew; training itself is cached",
        )
    kept = {"max_length": int(document["max_length"]), "decision": document.get("decision", {})}
    return RowFormat(document["task"], **document["rows"], **kept)
