"""Which columns of a source are read, under which names, and what each must hold.

Kept columns come out as plain strings where they are text; a missing text or label is an error that names its row.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from tasks.errors import ConfigError, DataError
from tasks.text.labels import Rule, Seen, declared_classes, label_texts, parse_rule, refuse_null
from tasks.text.readers import Rows

if TYPE_CHECKING:
    import pyarrow as pa


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


def choose_columns(
    rows: Rows, text: str | tuple[str, ...] | None, label: str | None, columns: Mapping[str, str]
) -> Columns:
    """The settings `data.text`, `data.label` and `data.columns` against what there is; without any, all is kept.

    ConfigError, with the nearest name, for a column the source lacks."""
    names = rows.schema.names
    theirs = dict(columns)
    rule = parse_rule(label) if label and label not in names else None
    source_label = (rule.column if rule else label) if label else None
    source_label = theirs.pop(source_label, source_label) if source_label else None
    texts = _texts(text, label, columns)
    kept = {name: theirs.get(name, name) for name in (*texts, *theirs)}
    kept = kept or {name: name for name in names if name != source_label}
    if "label" in kept and source_label:
        raise ConfigError("data.columns: `label` is the name of the label column", "give the kept column another name")
    for setting, wanted in (("data.text", [kept[name] for name in texts]), ("data.columns", list(kept.values()))):
        _present(setting, wanted, rows)
    _present("data.label", [source_label] if source_label else [], rows)
    plain = source_label if not rule else None
    sibling = f"{plain}_name" if plain and f"{plain}_name" in names else None
    classes = declared_classes(rows.schema, plain) if plain else None
    return Columns(tuple(kept.items()), texts, source_label, rule, sibling, classes)


def _texts(text: str | tuple[str, ...] | None, label: str | None, columns: Mapping[str, str]) -> tuple[str, ...]:
    if text is None:
        return ("text",) if label and (not columns or "text" in columns) else ()
    return (text,) if isinstance(text, str) else tuple(text)


def _present(setting: str, wanted: list[str], rows: Rows) -> None:
    for name in wanted:
        if name not in rows.schema.names:
            close = difflib.get_close_matches(name, rows.schema.names, 1, 0.5)
            there = ", ".join(rows.schema.names[:20])
            fix = f"did you mean {close[0]}?" if close else f"set {setting} to one of: {there}"
            raise ConfigError(f"{setting}: {rows.name} has no column {name}", fix)


def clean_batches(rows: Rows, columns: Columns, split: str, seen: Seen) -> Iterator[pa.RecordBatch]:
    """The kept columns under our names and, if there is a label, `label` as text, which `seen` takes note of."""
    import pyarrow as pa

    where = f"split {split}, {rows.name}"
    _present("data.columns", columns.theirs, rows)
    done = 0
    for batch in rows.batches(columns.theirs):
        arrays = {ours: _plain(batch.column(theirs)) for ours, theirs in columns.kept}
        for name in columns.text:
            arrays[name] = _text(arrays[name], name, where, done)
        if columns.label:
            arrays["label"] = label_texts(batch.column(columns.label), columns.rule, where, done)
            siblings = batch.column(columns.sibling) if columns.sibling else None
            seen.add(arrays["label"], siblings, where, done)
        done += batch.num_rows
        yield pa.record_batch(list(arrays.values()), names=list(arrays))


def _plain(values: pa.Array) -> pa.Array:
    """Without dictionaries, views and 64-bit offsets, so that equal columns of any format are of one type."""
    import pyarrow as pa

    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_large_string(values.type) or pa.types.is_string_view(values.type):
        values = values.cast(pa.string())
    return values


def _text(values: pa.Array, name: str, where: str, before: int) -> pa.Array:
    import pyarrow as pa

    if pa.types.is_nested(values.type) or pa.types.is_binary(values.type):
        raise DataError(
            f"{where}: the text column {name} is of type {values.type}", "choose a column of texts (data.text)"
        )
    refuse_null(values, f"the text column {name}", where, before)
    return values.cast(pa.string())
