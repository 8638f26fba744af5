"""The rows of a split as the report shows them: their texts, where they stand in the user's files, and their other columns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import ASIDE, Input
from trnflow.tasks.data.format.source_rows import read_source_rows
from trnflow.tasks.data.tables import read_rows
from trnflow.tasks.data.texts import text_of_example

if TYPE_CHECKING:
    import pyarrow as pa

    from trnflow.tasks.evaluation.report_document import NamedRow, WrongRow
    from trnflow.tasks.system.arrays import Ints

WORST, LONGEST = 10, 500
"""Rows that the report shows in full, and characters of their texts."""
COLUMNS, LONGEST_VALUE = 12, 80
"""Other columns that are shown of a row, and characters of their values."""
LEFT_OUT = "column "
"""Begins the names of left-out columns in the files beside the rows of load_data."""


class EvaluatedRows:
    """The rows of a split, by their numbers in format_prompts' file, from 0.

    texts: of format_prompts; rows: of load_data. Without them, or of rows of an earlier version, the user's file is not known.
    """

    def __init__(self, texts: Input, split: str, rows: Input | None) -> None:
        import pyarrow.parquet as pq

        self.texts = texts.path / f"{split}.parquet"
        beside = rows.path / f"{ASIDE}{split}.parquet" if rows else None
        self._files: list[tuple[Path, dict[str, str]]] = []
        self._places: pa.Table | None = None
        if rows is None or beside is None or not beside.exists():
            return
        self._numbers = read_source_rows(texts.path, split, texts.meta["splits"][split]).astype("int64")
        self._places = pq.read_table(beside, columns=["file", "row"], read_dictionary=["file"]).take(self._numbers)
        nested = {*rows.meta.get("nested", ()), "label"}
        unread = [name for name in rows.meta["columns"] if name in texts.meta.get("unread", ()) and name not in nested]
        left_out = [name for name in pq.read_schema(beside).names if name.startswith(LEFT_OUT)]
        self._files = [
            (rows.path / f"{split}.parquet", {name: name for name in unread}),
            (beside, {name.removeprefix(LEFT_OUT): name for name in left_out}),
        ]

    def named(self, row: int) -> NamedRow:
        """Return the numbers of a row, from 1: in format_prompts' file, and in the user's."""
        place = self._place(row)
        return {"row": row + 1, "file": place[0], "file_row": place[1]} if place else {"row": row + 1}

    def wrong(self, row: int, label: str, predicted: str, loss: float) -> WrongRow:
        """Return the entry of a row that was predicted wrongly."""
        text = text_of(self.texts, row)[:LONGEST]
        entry: WrongRow = {"row": row + 1, "label": label, "predicted": predicted, "loss": loss, "text": text}
        if place := self._place(row):
            entry["file"], entry["file_row"] = place
        if columns := self._columns(row):
            entry["columns"] = columns
        return entry

    def _place(self, row: int) -> tuple[str, int] | None:
        """Return (the user's file, the number in it)."""
        if self._places is None:
            return None
        return self._places["file"][row].as_py(), self._places["row"][row].as_py()

    def places(self, rows: Ints) -> dict[str, Any]:
        """Return the columns `file` and `file_row` of these rows; {} where they are not known."""
        if self._places is None:
            return {}
        found = self._places.take(rows)
        return {"file": found["file"].cast("string"), "file_row": found["row"]}

    def _columns(self, row: int) -> dict[str, str]:
        values: dict[str, str] = {}
        for file, names in self._files:
            if names:
                found = read_rows(file, int(self._numbers[row]), 1, [*names.values()]).to_pylist()[0]
                values |= {name: _short(found[theirs]) for name, theirs in names.items() if found[theirs] is not None}
        return dict([*values.items()][:COLUMNS])


def _short(value: Any) -> str:
    """Return a value in one line, at most `LONGEST_VALUE` characters of it."""
    text = " ".join(str(value).split())
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"


def text_of(texts: Path, row: int) -> str:
    """Return the text of one row of a Parquet file of format_prompts."""
    return text_of_example(read_rows(texts, row, 1).to_pylist()[0])


def texts_of(texts: Path, row: int) -> list[str]:
    """Return the texts of one row of a Parquet file of format_prompts, of which each is read apart."""
    return [str(value) for name, value in read_rows(texts, row, 1).to_pylist()[0].items() if name != "label"]
