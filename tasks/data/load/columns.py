"""Choose which columns of a source are read, and check names, types, missing texts and labels."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trnflow.tasks.data.load.arrow_rows import broken
from trnflow.tasks.data.load.asides import batches_with, with_asides
from trnflow.tasks.data.load.class_names import class_texts, declared_classes
from trnflow.tasks.data.load.column_types import WrittenNumbers, common_type, is_nested, plain_type, text_type, to_type
from trnflow.tasks.data.load.config import Nulls
from trnflow.tasks.data.load.labels import Rule, SeenLabels, is_blank, label_texts, parse_rule
from trnflow.tasks.data.load.readers import RowReader
from trnflow.tasks.data.load.selection import Mask
from trnflow.tasks.data.load.streams import max_cell, too_long
from trnflow.tasks.data.tables import written_name
from trnflow.tasks.errors import ConfigError, DataError

# the escape of NUL, and not of a backslash before u0000
_NUL_IN_JSON = r"[^\\](?:\\\\)*\\u0000"


class LongestRow(NamedTuple):
    """The row with the most bytes of text; place: its split, file and row."""

    size: int
    place: str


class CleanRows(NamedTuple):
    """The usable rows of a batch, and what is beside them. complete: bool [rows read], whether each is usable."""

    complete: Mask
    rows: pa.RecordBatch
    longest: LongestRow


class Columns(NamedTuple):
    """Which columns to read: `ours` in what `load_data` writes, `theirs` in the source.

    Attributes:
        kept: (ours, theirs) of each, in order.
        label: Theirs, or None.
        rule: Makes labels of it, such as `rating >= 4`, or None.
        sibling: Theirs, with the labels' names, or None.
        classes: The label's names by number, as the first file that has them declares; None where numbers are no names.
        named: Theirs, that every file must have.
        labels: The setting `data.labels`.
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
        """All columns to read, each once, under the source's names."""
        names = [theirs for _, theirs in self.kept] + [name for name in (self.label, self.sibling) if name]
        return list(dict.fromkeys(names))


def choose_columns(
    files: list[RowReader],
    text: tuple[str, ...],
    label: str | None,
    columns: Mapping[str, str],
    labels: tuple[str, ...],
) -> Columns:
    """Find the columns of `data.text`, `data.label` and `data.columns`; all if they name none. Raises ConfigError."""
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
        _check_present(setting, wanted, names, files[0].name, used={source_label})
    label_names = [source_label] if source_label else []
    _check_present("data.label", label_names, names, files[0].name, used={*asked.values()})
    sibling = f"{plain}_name" if plain and f"{plain}_name" in names else None
    by_number = rule is not None and isinstance(rule.value, float)
    classes = common_classes(files, source_label, None if by_number else labels) if source_label else None
    for name in kept.values():
        common_classes(files, name, None)
    named = (*asked.values(), *([source_label] if source_label else []))
    named_classes = None if by_number else classes
    return Columns(tuple(kept.items()), text, source_label, rule, sibling, named_classes, named, labels)


def common_classes(files: list[RowReader], column: str, by_name: Collection[str] | None) -> list[str] | None:
    """Return the names by number that the first file declares for a column of classes; None without any.

    by_name: Further names that other files may have, or None where numbers are not read as names. Raises DataError for a file
    that declares other names, or numbers them otherwise.
    """
    known, first = None, ""
    for rows in files:
        names = declared_classes(rows.schema, column)
        if names is None or (by_name is None and not pa.types.is_integer(rows.schema.field(column).type)):
            continue
        known, first = (known, first) if known else (names, rows.name)
        if names != known and (by_name is None or not {*names} <= {*known, *by_name}):
            raise DataError(
                f"{rows.name} declares the classes {listed(names)} of {column}, {first} {listed(known)}",
                "write the files with the same names in one order"
                + (", or name all of them in data.labels" if by_name is not None else ""),
            )
    return known


def renumbered_classes(files: list[RowReader], columns: Columns) -> Iterator[str]:
    """Yield a remark for each file that numbers the label's classes otherwise than the first."""
    first = ""
    for rows in files:
        names = declared_classes(rows.schema, columns.label) if columns.label and columns.classes else None
        if names and names != columns.classes:
            numbers = f"{rows.name} numbers its classes {listed(names)}, {first} {listed(columns.classes or ())}"
            yield f"{numbers}: labels are taken by name"
        first = first or (rows.name if names else "")


def listed(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if names[12:] else "")


def united(files: list[RowReader], columns: Columns) -> pa.Schema:
    """Return one schema for a split's files, `label` as text. Raises DataError for conflicting types.

    A column of WrittenNumbers whose texts a float does not have becomes two, of floats and of texts.
    """
    fields: dict[str, pa.DataType] = {}
    for ours, theirs in columns.kept:
        kind = pa.string() if ours in columns.text else _common(files, theirs)
        fields[ours] = pa.float64() if isinstance(kind, WrittenNumbers) else kind
        if isinstance(kind, WrittenNumbers) and not kind.are_floats:
            fields[written_name(ours)] = pa.string()
    return pa.schema([*fields.items(), *([("label", pa.string())] if columns.label else [])])


def _common(files: list[RowReader], name: str) -> pa.DataType:
    common, first = pa.null(), files[0]
    for rows in files:
        if rows.schema.get_field_index(name) < 0:
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


def _first_row(rows: RowReader, name: str, wanted: Callable[[pa.Array], pa.Array]) -> int:
    """Return the number, from 1, of the first row for whose value `wanted` returns True; 1 if there is none."""
    before = 0
    for batch in rows.batches([name]):
        at = wanted(batch.column(0)).index(True).as_py()
        if at >= 0:
            return int(before + at + 1)
        before += batch.num_rows
    return 1


def _check_names(kept: Mapping[str, str], label: str | None, labelled: bool) -> None:
    """Raise ConfigError if a column would get two names, or two columns the name `label`."""
    if "label" in kept and labelled:
        raise ConfigError("data.columns: `label` is the name of the label column", "give the kept column another name")
    for ours in kept:
        if written_name(ours) in kept:
            raise ConfigError(
                f"data.columns: {written_name(ours)} beside {ours} has a name that load_data gives",
                "give it another name in data.columns, or in the file",
            )
    taken = {label: "the label"} if label else {}
    for ours, theirs in kept.items():
        if theirs in taken:
            raise ConfigError(
                f"data.columns: the column {theirs} is to be both {taken[theirs]} and {ours}", "keep one of them"
            )
        taken[theirs] = ours


def _check_present(
    setting: str, wanted: Iterable[str], there: list[str], where: str, *, used: Collection[str | None]
) -> None:
    """Raise ConfigError for a column that is not there. used: columns that other settings name, which are no suggestions."""
    known = {*there}
    missing = [name for name in wanted if name not in known]
    if missing:
        free = [name for name in there if name not in used]
        close = difflib.get_close_matches(missing[0], free, 1, 0.5) if len(missing) == 1 else []
        columns = ", ".join(there[:20]) + (" ..." if len(there) > 20 else "")
        raise ConfigError(
            f"{setting}: {where} has no column {' and no '.join(missing)}",
            f"did you mean {close[0]}? It has {columns}" if close else f"set {setting} to what it has: {columns}",
        )


def _check_file(rows: RowReader, columns: Columns) -> None:
    """Raise ConfigError for a column that other files have and this one has not."""
    missing = [name for name in columns.named if rows.schema.get_field_index(name) < 0]
    if missing:
        raise ConfigError(
            f"{rows.name} has no column {' and no '.join(missing)}, which other files of the data have",
            f"rename a column of it, or leave the file out; it has {', '.join(rows.schema.names[:20])}",
        )


def clean_batches(
    rows: RowReader,
    columns: Columns,
    schema: pa.Schema,
    split: str,
    seen: SeenLabels,
    nulls: Nulls,
    dropped: Counter[str],
    asides: Sequence[str],
    chosen: Mask | None = None,
) -> Iterator[CleanRows]:
    """Yield the usable rows of each of a file's batches. Raises DataError with file and row.

    Args:
        schema: The split's, from `united`.
        seen, dropped: Get labels, and dropped rows under "null", "empty" and "nul".
        asides: Left-out columns that go beside the rows.
        chosen: bool [the file's rows], to yield these alone; they were all read before, so that errors name no row.
    """
    where = f"split {split}, {rows.name}"
    _check_file(rows, columns)
    there = {name: None for name in columns.theirs if rows.schema.get_field_index(name) >= 0}
    sources = {name: theirs for ours, theirs in columns.kept for name in (ours, written_name(ours))}
    classes = declared_classes(rows.schema, columns.label) if columns.label and columns.classes else None
    for name in columns.text:
        _check_not_nested(
            rows, dict(columns.kept)[name], f"the text column {name}", "choose a column of texts (data.text)"
        )
    if columns.label:
        _check_not_nested(rows, columns.label, "the label", "choose a column of names, numbers or booleans")
    for batch, numbers in _numbered(batches_with(rows, [*there], asides), chosen):
        before = int(numbers[0]) - 1 if len(numbers) else 0
        arrays = [
            _typed(batch.column(sources[field.name]), field.type, field.name, where, before)
            if sources[field.name] in there
            else pa.nulls(batch.num_rows, field.type)
            for field in schema
            if field.name in sources
        ]
        if columns.label:
            values = batch.column(columns.label)
            values = class_texts(values, classes, f"{where} row {{}}: the label", before)
            values = _typed(values, text_type(values.type), "the label", where, before)
            arrays.append(label_texts(values, columns.rule, columns.labels, where, before))
        cleaned = pa.record_batch(arrays, schema=schema)
        longest = _longest_row(cleaned, where, before)
        complete = _complete_rows(cleaned, columns, where, before, nulls, dropped)
        if columns.label:
            siblings = batch.column(columns.sibling).filter(complete) if columns.sibling in there else None
            seen.add(cleaned.column("label").filter(complete), siblings, where, numbers[_bools(complete)])
        placed = with_asides(cleaned, batch, rows.name, numbers, asides)
        yield CleanRows(_bools(complete), placed.filter(complete), longest)


def _numbered(
    batches: Iterator[pa.RecordBatch], chosen: Mask | None
) -> Iterator[tuple[pa.RecordBatch, NDArray[np.int64]]]:
    """Yield (rows, their numbers in the file from 1), of the rows that `chosen` (bool [the file's rows]) picks."""
    before = 0
    for batch in batches:
        keep = slice(None) if chosen is None else chosen[before : before + batch.num_rows]
        numbers = (np.arange(before, before + batch.num_rows) + 1)[keep]
        before += batch.num_rows
        if len(numbers) == batch.num_rows:
            yield batch, numbers
        elif len(numbers):
            try:
                yield batch.filter(pa.array(keep)), numbers
            except pa.ArrowNotImplementedError:  # views and runs
                first = before - batch.num_rows + 1
                yield from ((batch.slice(number - first, 1), numbers[at : at + 1]) for at, number in enumerate(numbers))


def _longest_row(batch: pa.RecordBatch, where: str, before: int) -> LongestRow:
    """Return the row with the most bytes of text. Raises DataError for a cell above `data.max_cell_mb`."""
    total = np.zeros(batch.num_rows, dtype=np.int64)
    for name, values in _texts(batch):
        sizes = pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False)
        if len(sizes) and sizes.max() > max_cell():
            raise too_long(f"{where} row {before + int(sizes.argmax()) + 1}: {name}")
        total += sizes
    row = int(total.argmax()) if len(total) else 0
    return LongestRow(int(total[row]) if len(total) else 0, f"{where} row {before + row + 1}")


def _texts(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.Array]]:
    """Yield (name, strings) of each column of text or JSON text."""
    for name, values in zip(batch.schema.names, batch.columns, strict=True):
        storage = values.storage if isinstance(values.type, pa.JsonType) else values
        if pa.types.is_string(storage.type):
            yield name, storage


def _complete_rows(
    batch: pa.RecordBatch, columns: Columns, where: str, before: int, nulls: Nulls, dropped: Counter[str]
) -> pa.Array:
    """Return bool [rows]: text and label are there, and no NUL. Raises DataError for the first row of others."""
    complete, first = np.ones(batch.num_rows, dtype=bool), {}
    for what, reason, missing in _missing(batch, columns):
        lost = np.flatnonzero(missing & complete)
        dropped[reason] += len(lost)
        complete[lost] = False
        first.update({int(row): what for row in lost[:1]})
    if first and nulls == "error":
        row = min(first)
        raise DataError(
            f"{where} row {before + row + 1}: {first[row]}", "repair the row, or drop such rows with data.nulls=drop"
        )
    return pa.array(complete)


def _missing(batch: pa.RecordBatch, columns: Columns) -> Iterator[tuple[str, str, Any]]:
    """Yield for each fault: a phrase for errors, the reason for the count, and bool [rows] that have it."""
    for name in columns.text:
        yield f"the text column {name} is missing (null)", "null", _bools(batch.column(name).is_null())
    if columns.label:
        none = "-1" if columns.classes else "nan"
        yield f"the label is missing (null, {none}, or an empty cell)", "null", _bools(batch.column("label").is_null())
    if columns.text:
        blank = np.logical_and.reduce([_bools(is_blank(batch.column(name))) for name in columns.text])
        yield f"the text is empty (column {', '.join(columns.text)})", "empty", blank
    for name, values in _texts(batch):
        is_json = isinstance(batch.schema.field(name).type, pa.JsonType)
        nul = pc.match_substring_regex(values, _NUL_IN_JSON) if is_json else pc.match_substring(values, "\0")
        yield f"{name} holds a NUL byte", "nul", _bools(nul)


def _bools(values: pa.Array) -> Any:
    return values.fill_null(False).to_numpy(zero_copy_only=False)


def _check_not_nested(rows: RowReader, name: str, what: str, fix: str) -> None:
    def is_list_or_object(values: pa.Array) -> pa.Array:
        return pc.match_substring_regex(to_type(values, pa.json_(), name, rows.name, 0).storage, r"^\s*[\[{]")

    if is_nested(rows.schema.field(name).type):
        raise DataError(
            f"{rows.name} row {_first_row(rows, name, is_list_or_object)}: {what} is a list or an object", fix
        )


def _typed(values: pa.Array, kind: pa.DataType, name: str, where: str, before: int) -> pa.Array:
    try:
        values.validate(full=True)
    except pa.ArrowInvalid as error:
        raise broken(values, name, where, before) from error
    return to_type(values, kind, name, where, before)
