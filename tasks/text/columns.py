"""Which columns of a source are read, under which names, and what each must hold.

Kept columns come out as plain strings where they are text. A row without its text or its label is an error that names the
row, or is dropped and counted, as `data.nulls` says; so is one whose text or label is nothing but whitespace.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tasks.errors import ConfigError, DataError
from tasks.text.labels import Rule, Seen, declared_classes, is_blank, label_texts, parse_rule
from tasks.text.readers import Rows

if TYPE_CHECKING:
    import pyarrow as pa

Nulls = Literal["error", "drop"]


class Columns(NamedTuple):
    """kept: (ours, theirs) in order; text: those of ours that hold the text; label: theirs; rule: over `label`;
    sibling: the column with the labels' names; classes: names the source declares."""

    kept: tuple[tuple[str, str], ...]
    text: tuple[str, ...]
    label: str | None
    rule: Rule | None
    sibling: str | None
    classes: list[str] | None

    @property
    def theirs(self) -> list[str]:
        """What is read from the source, each once."""
        names = [theirs for _, theirs in self.kept] + [name for name in (self.label, self.sibling) if name]
        return list(dict.fromkeys(names))


def choose_columns(rows: Rows, text: tuple[str, ...], label: str | None, columns: Mapping[str, str]) -> Columns:
    """The settings `data.text`, `data.label` and `data.columns` against what there is; without any, all is kept.

    ConfigError, with the nearest name, for a column the source lacks, and for one that is to be two."""
    names = rows.schema.names
    theirs = dict(columns)
    rule = parse_rule(label) if label and label not in names else None
    source_label = (rule.column if rule else label) if label else None
    source_label = theirs.pop(source_label, source_label) if source_label else None
    kept = {name: theirs.get(name, name) for name in (*text, *theirs)}
    kept = kept or {name: name for name in names if name != source_label}
    plain = source_label if not rule else None
    _each_once(kept, plain, bool(source_label))
    for setting, wanted in (("data.text", [kept[name] for name in text]), ("data.columns", list(kept.values()))):
        _present(setting, wanted, rows)
    _present("data.label", [source_label] if source_label else [], rows)
    sibling = f"{plain}_name" if plain and f"{plain}_name" in names else None
    classes = declared_classes(rows.schema, plain) if plain else None
    return Columns(tuple(kept.items()), text, source_label, rule, sibling, classes)


def text_columns(text: str | tuple[str, ...] | None, label: str | None, columns: Mapping[str, str]) -> tuple[str, ...]:
    """Our names of the columns that hold the text: `data.text`, else `text` where there is a label."""
    if text is None:
        return ("text",) if label and (not columns or "text" in columns) else ()
    return (text,) if isinstance(text, str) else tuple(text)


def _each_once(kept: Mapping[str, str], label: str | None, labelled: bool) -> None:
    """ConfigError where a column of the source would stand under two of our names, or one of ours twice."""
    if "label" in kept and labelled:
        raise ConfigError("data.columns: `label` is the name of the label column", "give the kept column another name")
    taken = {label: "the label"} if label else {}
    for ours, theirs in kept.items():
        if theirs in taken:
            raise ConfigError(
                f"data.columns: the column {theirs} is to be both {taken[theirs]} and {ours}", "keep one of them"
            )
        taken[theirs] = ours


def _present(setting: str, wanted: list[str], rows: Rows) -> None:
    there = rows.schema.names
    missing = [name for name in wanted if name not in there]
    if missing:
        close = difflib.get_close_matches(missing[0], there, 1, 0.5) if len(missing) == 1 else []
        columns = ", ".join(there[:20]) + (" ..." if len(there) > 20 else "")
        raise ConfigError(
            f"{setting}: {rows.name} has no column {' and no '.join(missing)}",
            f"did you mean {close[0]}? It has {columns}" if close else f"set {setting} to what it has: {columns}",
        )


def clean_batches(
    rows: Rows, columns: Columns, split: str, seen: Seen, nulls: Nulls, dropped: Counter[str]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(rows read, those that stay): the kept columns under our names and, if there is a label, `label` as text, of which
    `seen` takes note. dropped: counts by reason, `null` and `empty`, where `nulls` is "drop"."""
    import numpy as np
    import pyarrow as pa

    where = f"split {split}, {rows.name}"
    _present("data.columns", columns.theirs, rows)
    done = 0
    for batch in rows.batches(columns.theirs):
        arrays = {ours: _plain(batch.column(theirs), ours, where, done) for ours, theirs in columns.kept}
        for name in columns.text:
            arrays[name] = _text(arrays[name], name, where)
        if columns.label:
            values = _plain(batch.column(columns.label), "the label", where, done)
            arrays["label"] = label_texts(values, columns.rule, where, done)
        made = pa.record_batch(list(arrays.values()), names=list(arrays))
        whole = _whole_rows(made, columns, where, done, nulls, dropped)
        if columns.label:
            siblings = batch.column(columns.sibling).filter(whole) if columns.sibling else None
            numbers = np.flatnonzero(whole) + done + 1
            seen.add(made.column("label").filter(whole), siblings, where, numbers)
        done += batch.num_rows
        yield batch.num_rows, made.filter(whole) if made.num_columns else made


def _whole_rows(
    batch: pa.RecordBatch, columns: Columns, where: str, before: int, nulls: Nulls, dropped: Counter[str]
) -> pa.Array:
    """Which rows have their texts and their label, as a mask; DataError for the first that has not, if that is an error."""
    import numpy as np
    import pyarrow as pa

    whole, first = np.ones(batch.num_rows, dtype=bool), {}
    for what, reason, missing in _missing(batch, columns):
        lost = np.flatnonzero(missing & whole)
        dropped[reason] += len(lost)
        whole[lost] = False
        first.update({int(row): what for row in lost[:1]})
    if first and nulls == "error":
        row = min(first)
        raise DataError(
            f"{where} row {before + row + 1}: {first[row]}", "fill it in, or drop such rows with data.nulls=drop"
        )
    return pa.array(whole)


def _missing(batch: pa.RecordBatch, columns: Columns) -> Iterator[tuple[str, str, Any]]:
    """(what is missing, the reason's short name, bool [rows])."""
    import numpy as np

    for name in columns.text:
        yield f"the text column {name} is missing (null)", "null", _bools(batch.column(name).is_null())
    if columns.label:
        yield "the label is missing (null, or an empty cell)", "null", _bools(batch.column("label").is_null())
    if columns.text:
        blank = np.logical_and.reduce([_bools(is_blank(batch.column(name))) for name in columns.text])
        yield f"the text is empty (column {', '.join(columns.text)})", "empty", blank


def _bools(values: pa.Array) -> Any:
    return values.fill_null(False).to_numpy(zero_copy_only=False)


def _plain(values: pa.Array, name: str, where: str, before: int) -> pa.Array:
    """Without dictionaries, views and 64-bit offsets, so that equal columns of any format are of one type."""
    import pyarrow as pa

    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_large_string(values.type) or pa.types.is_string_view(values.type):
        values = values.cast(pa.string())
    try:
        values.validate(full=True)
    except pa.ArrowInvalid as error:
        raise _broken(values, name, where, before) from error
    return values


def _broken(values: pa.Array, name: str, where: str, before: int) -> DataError:
    """Of the first row whose value is no text, looked for row by row."""
    import pyarrow as pa

    for number in range(len(values)):
        try:
            values.slice(number, 1).validate(full=True)
        except pa.ArrowInvalid as error:
            why = " ".join(str(error).split())
            return DataError(
                f"{where} row {before + number + 1}: {name} is broken: {why}", "write the file anew as UTF-8"
            )
    return DataError(f"{where}: the column {name} is broken after row {before}", "write the file anew")


def _text(values: pa.Array, name: str, where: str) -> pa.Array:
    import pyarrow as pa

    if pa.types.is_nested(values.type) or pa.types.is_binary(values.type):
        raise DataError(
            f"{where}: the text column {name} is of type {values.type}", "choose a column of texts (data.text)"
        )
    return values.cast(pa.string())
