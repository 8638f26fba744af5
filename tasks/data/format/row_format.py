"""`trnflow.json` in a model's folder: how rows become the model's inputs. It holds settings and column names, no data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NotRequired, TypedDict, cast

from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.texts import PAIR
from trnflow.tasks.errors import ModelError
from trnflow.tasks.kinds.registry import KINDS, kind_of
from trnflow.tasks.system.json_objects import misfit, read_object

if TYPE_CHECKING:
    from trnflow.tasks.metadata import TextsMeta, TokensMeta

ROW_FORMAT_FILE = "trnflow.json"
FORMAT = "trnflow-model"
VERSION = 1


class _Rows(TypedDict):
    settings: dict[str, Any]
    text: list[str]
    columns: list[str]
    nested: list[str]
    own: NotRequired[dict[str, str] | None]


class _Document(TypedDict):
    format: str
    version: int
    task: str
    rows: _Rows
    max_length: int
    decision: NotRequired[dict[str, Any]]


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
    """Return whether the model in a folder reads two texts together. Raises ModelError."""
    document = _read(folder)
    return document is not None and bool(document["rows"]["settings"].get(PAIR)) and not kind_of(document["task"]).apart


def decision_of(folder: Path) -> Meta:
    """Return what the task chose on validation, from `trnflow.json`; {} without one. Raises ModelError."""
    document = _read(folder)
    return document.get("decision", {}) if document is not None else {}


def read_row_format(folder: Path) -> RowFormat:
    """Read `trnflow.json`. Raises ModelError if it is missing, damaged or of another version."""
    document = _read(folder)
    if document is None:
        raise _other_version()
    decision = document.get("decision", {})
    return RowFormat(document["task"], **document["rows"], max_length=document["max_length"], decision=decision)


def _read(folder: Path) -> _Document | None:
    """Return the content of `trnflow.json`; None without one. Raises ModelError."""
    file = folder / ROW_FORMAT_FILE
    if not file.is_file():
        return None
    try:
        document = read_object(file.read_bytes())
    except ValueError as error:
        raise damaged(file, str(error)) from error
    if (document.get("format"), document.get("version")) != (FORMAT, VERSION):
        raise _other_version()
    if wrong := misfit(document, _Document):
        raise damaged(file, wrong)
    if document["task"] not in KINDS:
        raise damaged(file, f"there is no task {document['task']}")
    if unknown := document["rows"].keys() - _Rows.__annotations__:
        raise damaged(file, f"there is no rows.{min(unknown)}")
    return cast(_Document, document)


def damaged(file: Path | str, why: str) -> ModelError:
    """Return the error for a `trnflow.json` that another writer made or changed."""
    return ModelError(f"{file} can't be read: {why}", "get the model anew from where it was published")


def _other_version() -> ModelError:
    return ModelError(
        f"the model has no {ROW_FORMAT_FILE} that this version reads, so how its inputs are shaped is not known",
        "`trnflow run` makes the model anew; training itself is cached",
    )
