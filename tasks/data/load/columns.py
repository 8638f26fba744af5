"""Choose which columns of a source are read, as the recipe's settings say, and check the rows: column names, types,
missing texts and labels.

A source is one data set of the recipe. Its files may have different columns: each file must have the columns that the
settings name; any other column that a file lacks is null in the file's rows. The files of one split must agree on
types. A row whose text or label is missing or blank raises an error that names the row, or is dropped and counted, as
`data.nulls` says.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from trnflow.tasks.data.load.column_types import common_type, is_nested, plain_type, to_type
from trnflow.tasks.data.load.labels import Rule, SeenLabels, declared_classes, is_blank, label_texts, parse_rule
from trnflow.tasks.data.load.readers import Rows
from trnflow.tasks.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa

Nulls = Literal["error", "drop"]


class Columns(NamedTuple):
    """Which columns to read from a source (one data set of the recipe), and what they are for. A column may have two
    names: `ours` in the files that `load_data` writes, `theirs` in the source.

    Attributes:
        kept: (ours, theirs) of each column to write, in order.
        text: names (ours) of the columns that hold the text.
        label: name (theirs) of the label's column, or None.
        rule: the rule, such as `rating >= 4`, that makes labels of that column, or None.
        sibling: name (theirs) of a column that holds the labels' names, or None.
        classes: the class names that the metadata of the source's first file declares for the label, or None.
        named: names (theirs) of the columns that settings name, and that every file must have.
        labels: the setting `data.labels`.
    """

    kept: tuple[tuple[str, str], ...]
    text: tuple[str, ...]
    label: str | None
    rule: Rule | None
    sibling: str | None
    classes: list[str] | None
    named: tuple[str, ...]
    labels: tuple[str, ...]

    @property
    def theirs(self) -> list[str]:
        """The names, as in the source's files, of all columns to read, each once: the columns to write, the label's
        column, and the column with the labels' names."""
        names = [theirs for _, theirs in self.kept] + [name for name in (self.label, self.sibling) if name]
        return list(dict.fromkeys(names))


def choose_columns(
    files: list[Rows], text: tuple[str, ...], label: str | None, columns: Mapping[str, str], labels: tuple[str, ...]
) -> Columns:
    """Find the columns that the settings `data.text`, `data.label` and `data.columns` name in a source's files, and
    return which columns to read and under which names to write them. If `data.text` and `data.columns` name no column,
    all columns are kept. A source is one data set of the recipe.

    files: all files of the source; text, label, columns, labels: the settings. Raises ConfigError for a column that no
    file has (the message suggests the nearest name), and for a column that would get two names."""
    names = list(dict.fromkeys(name for rows in files for name in rows.schema.names))
    theirs = dict(columns)
    rule = parse_rule(label) if label and label not in names else None
    source_label = (rule.column if rule else label) if label else None
    source_label = theirs.pop(source_label, source_label) if source_label else None
    asked = {name: theirs.get(name, name) for name in (*text, *theirs)}
    kept = asked or {name: name for name in names if name != source_label}
    plain = source_label if not rule else None
    _check_names(kept, plain, bool(source_label))
    for setting, wanted in (("data.text", [kept[name] for name in text]), ("data.columns", list(kept.values()))):
        _check_present(setting, wanted, names, files[0].name)
    _check_present("data.label", [source_label] if source_label else [], names, files[0].name)
    sibling = f"{plain}_name" if plain and f"{plain}_name" in names else None
    classes = declared_classes(files[0].schema, plain) if plain else None
    named = (*asked.values(), *([source_label] if source_label else []))
    return Columns(tuple(kept.items()), text, source_label, rule, sibling, classes, named, labels)


def united(files: list[Rows], columns: Columns) -> pa.Schema:
    """Return one Arrow schema for the files of a split: the columns to write, under the names that they get in the
    output of `load_data`, each with a type that holds the values of all files. The label's column is `label`, as text.

    files: the opened files; columns: the columns to read. Raises DataError, with file and row, for a column whose type
    conflicts with that of an earlier file."""
    import pyarrow as pa

    fields = {ours: pa.string() if ours in columns.text else _common(files, theirs) for ours, theirs in columns.kept}
    return pa.schema([*fields.items(), *([("label", pa.string())] if columns.label else [])])


def _common(files: list[Rows], name: str) -> pa.DataType:
    import pyarrow as pa

    common, first = pa.null(), files[0]
    for rows in files:
        if name not in rows.schema.names:
            continue
        kind = plain_type(rows.schema.field(name).type)
        both = common_type(common, kind)
        if both is None:
            row = _first_row(rows, name, lambda values: values.is_valid())
            raise DataError(
                f"{rows.name} row {row}: {name} is of type {kind}, in {first.name} {common}",
                "give the column one type in all files, or name those to keep with data.columns",
            )
        common, first = both, rows if pa.types.is_null(common) else first
    return common


def _first_row(rows: Rows, name: str, wanted: Callable[[pa.Array], pa.Array]) -> int:
    """Return the number, from 1, of the first row for whose value in the column `name` the function `wanted` returns
    True; 1 if there is no such row."""
    done = 0
    for batch in rows.batches([name]):
        at = wanted(batch.column(0)).index(True).as_py()
        if at >= 0:
            return int(done + at + 1)
        done += batch.num_rows
    return 1


def text_columns(text: str | tuple[str, ...] | None, label: str | None, columns: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the columns that hold the text, as in the files that `load_data` writes: the setting
    `data.text`. Without that setting, return `text` if there is a label and `data.columns` is empty or includes `text`;
    else no name.

    text, label, columns: the settings `data.text`, `data.label`, `data.columns`."""
    if text is None:
        return ("text",) if label and (not columns or "text" in columns) else ()
    return (text,) if isinstance(text, str) else tuple(text)


def _check_names(kept: Mapping[str, str], label: str | None, labelled: bool) -> None:
    """Raise ConfigError if a column of the source would get two names in the artifact, or if two columns would be named
    `label`."""
    if "label" in kept and labelled:
        raise ConfigError("data.columns: `label` is the name of the label column", "give the kept column another name")
    taken = {label: "the label"} if label else {}
    for ours, theirs in kept.items():
        if theirs in taken:
            raise ConfigError(
                f"data.columns: the column {theirs} is to be both {taken[theirs]} and {ours}", "keep one of them"
            )
        taken[theirs] = ours


def _check_present(setting: str, wanted: Iterable[str], there: list[str], where: str) -> None:
    missing = [name for name in wanted if name not in there]
    if missing:
        close = difflib.get_close_matches(missing[0], there, 1, 0.5) if len(missing) == 1 else []
        columns = ", ".join(there[:20]) + (" ..." if len(there) > 20 else "")
        raise ConfigError(
            f"{setting}: {where} has no column {' and no '.join(missing)}",
            f"did you mean {close[0]}? It has {columns}" if close else f"set {setting} to what it has: {columns}",
        )


def clean_batches(
    rows: Rows, columns: Columns, schema: pa.Schema, split: str, seen: SeenLabels, nulls: Nulls, dropped: Counter[str]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Read a file's rows in batches, check them, and leave out the rows without text or label.

    Args:
        rows: the opened file.
        columns: the columns to read.
        schema: the schema that `united` returned for the split.
        split: the name of the split, for errors.
        seen: the object to which the labels that are found are added.
        nulls: `data.nulls`, whether rows without text or label are an error or are dropped.
        dropped: the counter to which the numbers of dropped rows are added, under the reasons "null" (no label, or a
            text column without value) and "empty" (a blank text).

    Yields for each batch two values: the number of rows read, and a batch of the rows that remain, with the columns to
    write and, where there is a label, `label` as text. Raises DataError with file and row.
    """
    import numpy as np
    import pyarrow as pa

    where = f"split {split}, {rows.name}"
    _check_present("data.columns", columns.named, rows.schema.names, rows.name)
    there = [name for name in columns.theirs if name in rows.schema.names]
    for name in columns.text:
        _check_not_nested(
            rows, dict(columns.kept)[name], f"the text column {name}", "choose a column of texts (data.text)"
        )
    if columns.label:
        _check_not_nested(rows, columns.label, "the label", "choose a column of names, numbers or booleans")
    done = 0
    for batch in rows.batches(there):
        arrays = {
            ours: _typed(batch.column(theirs), schema.field(ours).type, ours, where, done)
            if theirs in there
            else pa.nulls(batch.num_rows, schema.field(ours).type)
            for ours, theirs in columns.kept
        }
        if columns.label:
            values = batch.column(columns.label)
            values = _typed(values, plain_type(values.type), "the label", where, done)
            arrays["label"] = label_texts(values, columns.rule, columns.labels, where, done)
        made = pa.record_batch(list(arrays.values()), schema=schema)
        complete = _complete_rows(made, columns, where, done, nulls, dropped)
        if columns.label:
            siblings = batch.column(columns.sibling).filter(complete) if columns.sibling in there else None
            numbers = np.flatnonzero(complete) + done + 1
            seen.add(made.column("label").filter(complete), siblings, where, numbers)
        done += batch.num_rows
        yield batch.num_rows, made.filter(complete) if made.num_columns else made


def _complete_rows(
    batch: pa.RecordBatch, columns: Columns, where: str, before: int, nulls: Nulls, dropped: Counter[str]
) -> pa.Array:
    """Return bool [rows]: True for rows that have text and label. If `nulls` is "error", raise DataError for the first
    row that lacks one."""
    import numpy as np
    import pyarrow as pa

    complete, first = np.ones(batch.num_rows, dtype=bool), {}
    for what, reason, missing in _missing(batch, columns):
        lost = np.flatnonzero(missing & complete)
        dropped[reason] += len(lost)
        complete[lost] = False
        first.update({int(row): what for row in lost[:1]})
    if first and nulls == "error":
        row = min(first)
        raise DataError(
            f"{where} row {before + row + 1}: {first[row]}", "fill it in, or drop such rows with data.nulls=drop"
        )
    return pa.array(complete)


def _missing(batch: pa.RecordBatch, columns: Columns) -> Iterator[tuple[str, str, Any]]:
    """Yield for the label and for the text: a phrase for errors, the reason under which dropped rows are counted, and
    bool [rows], True where the value is missing."""
    import numpy as np

    for name in columns.text:
        yield f"the text column {name} is missing (null)", "null", _bools(batch.column(name).is_null())
    if columns.label:
        yield "the label is missing (null, nan, or an empty cell)", "null", _bools(batch.column("label").is_null())
    if columns.text:
        blank = np.logical_and.reduce([_bools(is_blank(batch.column(name))) for name in columns.text])
        yield f"the text is empty (column {', '.join(columns.text)})", "empty", blank


def _bools(values: pa.Array) -> Any:
    return values.fill_null(False).to_numpy(zero_copy_only=False)


def _check_not_nested(rows: Rows, name: str, what: str, fix: str) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    def is_list_or_object(values: pa.Array) -> pa.Array:
        return pc.match_substring_regex(to_type(values, pa.json_(), name, rows.name, 0).storage, r"^\s*[\[{]")

    if is_nested(rows.schema.field(name).type):
        raise DataError(
            f"{rows.name} row {_first_row(rows, name, is_list_or_object)}: {what} is a list or an object", fix
        )


def _typed(values: pa.Array, kind: pa.DataType, name: str, where: str, before: int) -> pa.Array:
    import pyarrow as pa

    try:
        values.validate(full=True)
    except pa.ArrowInvalid as error:
        raise _broken(values, name, where, before) from error
    return to_type(values, kind, name, where, before)


def _broken(values: pa.Array, name: str, where: str, before: int) -> DataError:
    """Return the error for a column that has bytes that are not UTF-8; the message names the first such row."""
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
