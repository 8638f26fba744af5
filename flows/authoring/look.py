"""Look at data before there is a recipe: its columns, as load_data's own readers give them."""

from __future__ import annotations

import io
import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from trnflow.flows.authoring.headers import check_header, name_columns, no_names, refuse_tags
from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.load.class_names import class_texts, declared_classes
from trnflow.tasks.data.load.column_types import text_type, to_type
from trnflow.tasks.data.load.config import SourceConfig
from trnflow.tasks.data.load.conll import unread_columns
from trnflow.tasks.data.load.json_rows import first_entries
from trnflow.tasks.data.load.labels import NUMBERED_CLASSES, is_blank
from trnflow.tasks.data.load.loading import open_source
from trnflow.tasks.data.load.readers import RowReader, open_file
from trnflow.tasks.data.load.streams import file_errors, open_stream
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.load_data import DataConfig, data_source
from trnflow.tasks.sources.data_files import FORMATS, DataFile, format_of, local_files
from trnflow.tasks.sources.paths import local_path
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.sources.split_files import FileSettings, choose_files
from trnflow.tasks.sources.zip_files import unzipped

if TYPE_CHECKING:
    import pyarrow as pa

BYTES = 64 << 20
"""Bytes of rows that are read of a split; of what lies behind them only a Parquet file's short columns are read."""
MOST_ROWS = 200_000
"""Rows that are read of a split: of shorter ones BYTES hold millions, which take a minute."""
ROWS = 1000
"""Rows whose texts are looked at, spread over those that are read."""
MOST_VALUES = 10_000
"""Distinct values of a column that are counted."""
MOST_LOOKED = 2000
"""Columns of a file, each of which takes a millisecond."""
MOST_ALONE = 1000
"""Columns of a file that are read one by one, to know which can't be read."""
SHORT = 100
"""Mean characters of the values of a column that can hold classes. One long name among many is none the less a class."""
SPREADSHEETS = (".xlsx", ".xlsm", ".xls", ".ods")
MONTHS = "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"
_DATE = re.compile(
    rf"\W*(\d{{4}}[-/.]\d\d?[-/.]\d\d?|\d\d?[-/.]\d\d?[-/.]\d{{2,4}}|(\w{{3,9}},? )?(\d\d?\W+)?({MONTHS})[a-z]*\.? \d)",
    re.IGNORECASE,
)
# Scripts that put no space between words: two characters count as a word.
_UNSPACED = re.compile("[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")


@dataclass
class Column:
    """What was seen of a column.

    Attributes:
        nested: Whether its values are lists or objects.
        counts: {value: rows}, of at most MOST_VALUES values.
        many: Whether there are more values.
        examples: Values of rows spread over the file, blank ones left out; parsed where they are JSON.
    """

    name: str
    nested: bool = False
    rows: int = 0
    blank: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    many: bool = False
    examples: list[Any] = field(default_factory=list)

    @cached_property
    def numbers(self) -> list[float] | None:
        """The distinct values, if all of them are numbers; texts of a CSV file too."""
        try:
            numbers = [float(value) for value in self.counts if value.strip().lower() != "nan"]
        except ValueError:
            return None
        return None if self.nested or any(number != number for number in numbers) else numbers or None

    @property
    def has_fractions(self) -> bool:
        return any(not number.is_integer() for number in self.numbers or [])

    @property
    def is_measure(self) -> bool:
        """Whether its numbers are rather amounts than classes: fractions, or many integers."""
        return self.has_fractions or (self.numbers is not None and len(self.counts) > NUMBERED_CLASSES)

    @property
    def middle(self) -> float:
        """The median of the distinct numbers."""
        numbers = sorted(self.numbers or [0.0])
        return numbers[len(numbers) // 2]

    @cached_property
    def is_date(self) -> bool:
        return bool(self.examples) and all(isinstance(v, str) and _DATE.match(v) for v in self.examples[:50])

    @cached_property
    def words(self) -> float:
        """The mean number of words; in scripts without spaces half the characters count."""
        texts = [str(example) for example in self.examples]
        return sum(len(text.split()) + len(_UNSPACED.findall(text)) / 2 for text in texts) / max(1, len(texts))

    @property
    def is_unique(self) -> bool:
        if self.many:
            return len(self.examples) == len({*map(str, self.examples)})
        return len(self.counts) == self.rows - self.blank > 1

    @property
    def is_text(self) -> bool:
        plain = not self.nested and self.numbers is None and not self.is_date
        return plain and self.words >= 3 and (self.many or 2 * len(self.counts) > self.rows - self.blank)

    @property
    def is_short(self) -> bool:
        return sum(map(len, self.counts)) <= SHORT * len(self.counts)

    @property
    def can_be_classes(self) -> bool:
        """Whether it has two values or more, most of them often: short texts, truth values or a few integers."""
        often = 2 <= len(self.counts) <= (self.rows - self.blank) / 2
        if self.nested or self.many or self.is_date or not often:
            return False
        return not self.is_measure if self.numbers else self.is_short

    def describe(self) -> str:
        """Return a phrase such as `12 values` or `mean 31 words`."""
        if self.rows == self.blank:
            return "empty"
        if self.nested:
            return "lists or objects"
        if self.is_date:
            return "dates"
        if self.numbers and self.is_measure:
            kind = "unique" if self.is_unique else f"{'over ' if self.many else ''}{len(self.counts):,} values"
            return f"numbers from {min(self.numbers):g} to {max(self.numbers):g}, {kind}"
        if self.is_text:
            return f"mean {self.words:.0f} words"
        if self.is_unique:
            return "unique"
        plural = "" if len(self.counts) == 1 and not self.many else "s"
        return f"{'over ' if self.many else ''}{len(self.counts):,} value{plural}"


@dataclass
class Looked:
    """What was seen of a source.

    Attributes:
        columns: Of train, by name.
        rows: Rows of train that were read; is_whole: whether those are all.
        others: {other split: its columns}.
        unread: Names of data files that belong to no split, and columns of CoNLL files between word and tag.
        remarks: How the rows were read.
        unreadable: {column of train that can't be read: why}.
    """

    columns: dict[str, Column]
    rows: int
    is_whole: bool
    others: dict[str, dict[str, Column]]
    unread: list[str]
    remarks: list[str] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)


def look(config: SourceConfig, resolver: Resolver) -> Looked:
    """Read up to BYTES of a source's train split. Raises ConfigError or DataError for what can't be rows."""
    with TemporaryDirectory() as scratch:
        opened, unread = _open(config, resolver, Path(scratch))
        seen = {split: _read_split(files, BYTES if split == "train" else BYTES // 8) for split, files in opened.items()}
        remarks = [remark for files in opened.values() for rows in files for remark in rows.remarks()]
        train = seen.pop("train")
        columns, name = train.columns, opened["train"][0].name
        whole = train.is_whole and not os.listdir(scratch)
    if not columns:
        raise DataError(f"{name} is empty", "give a file with rows")
    table = opened["train"][0]
    # the name of a column is one of its classes
    is_row = any(column.can_be_classes and column.name in column.counts for column in columns.values())
    if format_of(table.name) in ("csv", "tsv") and is_row:
        raise ConfigError(f"{name}: {no_names([*columns])}", name_columns(name, str(format_of(name)), [*columns]))
    if not train.rows:
        raise DataError(f"{name} has no rows, only the names of columns", "give a file with rows")
    others = {split: each.columns for split, each in seen.items()}
    return Looked(columns, train.rows, whole, others, unread, remarks, train.unreadable)


class _ReadSplit(NamedTuple):
    columns: dict[str, Column]
    rows: int
    is_whole: bool
    unreadable: dict[str, str]


def _read_split(files: list[RowReader], most: int) -> _ReadSplit:
    """Read up to `most` bytes of a split."""
    columns: dict[str, Column] = {}
    unreadable: dict[str, str] = {}
    sizes = [_read(rows, columns, unreadable, most // len(files)) for rows in files]
    total = sum(size for size, _ in sizes)
    for column in columns.values():  # files may lack columns that others have
        column.blank, column.rows = column.blank + total - column.rows, total
    return _ReadSplit(columns, total, all(whole for _, whole in sizes), unreadable)


def _open(config: SourceConfig, resolver: Resolver, scratch: Path) -> tuple[dict[str, list[RowReader]], list[str]]:
    """Return {split: opened files}, and the names of data files that no split has."""
    source = str(config.source)
    path = local_path(source)
    found = local_files(path, resolver.folder("data.source")) if path and not path.startswith("builtin:") else []
    if not found:
        whole = DataConfig.model_validate(config.model_dump(exclude_unset=True))
        return open_source(data_source(whole, resolver).location), []
    # not by `data_source`: the digest of gigabytes would be taken before a word is said
    data, _ = unzipped(source, found, lambda file: Path(file.path), resolver)
    if not config.format and not any(format_of(file.name) for file in data):
        raise _no_data(data[0])
    settings = FileSettings(
        config.format, {str(name): file for name, file in config.splits.items()}, resolver.folder("data.source")
    )
    chosen = choose_files(source, data, settings)
    opened: dict[str, list[RowReader]] = {}
    for split, kind, file in chosen:
        opened.setdefault(split, []).append(_open_file(file, kind, scratch))
    first, *further = opened["train"]
    for rows in further:
        if not {*rows.schema.names} & {*first.schema.names}:
            raise ConfigError(
                f"{first.name} and {rows.name} have no column in common",
                f"give one of them, or name it: data.splits='{{train: {first.name}}}'",
            )
    folders = {file.name.rpartition("/")[0] for split, kind, file in chosen if (split, kind) == ("train", "txt")}
    if len(folders) > 1:
        raise ConfigError(
            f"{source} has text files in the folders {', '.join(sorted(folders)[:4])}, whose names no row would have",
            "if they are labels, write one table with the columns text and label",
        )
    used = {split_file.file.path for split_file in chosen}
    between = [unread_columns(Path(file.path), file.name) for _, kind, file in chosen if kind == "conll"]
    others = [file.name for file in data if file.path not in used and format_of(file.name)]
    return opened, [*filter(None, between), *others]


def _no_data(file: DataFile) -> ConfigError:
    """Return the error about a file whose name shows no format."""
    with Path(file.path).open("rb") as stream:
        head = stream.read(4096)
    refuse_tags(file.name, head)
    if b"\0" in head or not head:
        what = "is empty" if not head else "is no data file: it is binary"
        sheet = "save the sheet as CSV in UTF-8; or " * file.name.lower().endswith(SPREADSHEETS)
        return ConfigError(f"{file.name} {what}", f"{sheet}give rows in one of these formats: {', '.join(FORMATS)}")
    return ConfigError(
        f"the name of {file.name} does not show its format",
        f"name it: data.format=csv (or {', '.join(sorted({*FORMATS.values()} - {'csv'}))})",
    )


def _open_file(file: DataFile, kind: str, scratch: Path) -> RowReader:
    path = Path(file.path)
    with file_errors(file.name), open_stream(path, file.name) as stream:
        head = stream.peek(4096)[:4096]
        if kind in ("csv", "tsv", "jsonl", "txt"):
            if head.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise DataError(f"{file.name} is UTF-16", f"save it as UTF-8: iconv -f utf-16 -t utf-8 {file.name}")
            if b"\0" in head:
                raise DataError(f"{file.name} is no {kind}: it is binary", "check the file")
            refuse_tags(file.name, head)
        # the reader of JSON reads all rows to know the columns, and that of lines passes blank ones without an end
        if kind in ("jsonl", "txt", "conll"):
            aside = scratch / str(len(os.listdir(scratch)))
            path = _first_rows(path, file.name, stream.read(BYTES), aside, is_json=kind == "jsonl")
    rows = open_file(path, kind, file.name)
    if len(rows.schema) > MOST_LOOKED:
        raise DataError(
            f"{file.name} has {len(rows.schema):,} columns, and `new` looks at {MOST_LOOKED:,} at most",
            "write the recipe yourself (data.text and data.label name columns), or keep fewer columns in the file",
        )
    check_header(rows, kind)
    return rows


def _first_rows(path: Path, name: str, head: bytes, scratch: Path, *, is_json: bool) -> Path:
    """Return a file, or `scratch` with its first rows if it has more than BYTES or MOST_ROWS. head: up to BYTES of it."""
    if is_json and head.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"["):
        if len(head) < BYTES and head.count(b"{") < MOST_ROWS:
            return path
        with scratch.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in first_entries(path, name, MOST_ROWS, BYTES))
        return scratch
    if len(head) < BYTES and head.count(b"\n") <= MOST_ROWS:
        return path
    lines = islice(io.BytesIO(head[: head.rfind(b"\n") + 1]), MOST_ROWS)
    with scratch.open("wb") as lines_file:
        lines_file.writelines(lines)
    return scratch


def _read(rows: RowReader, columns: dict[str, Column], unreadable: dict[str, str], most: int) -> tuple[int, bool]:
    """Add a file's rows to `columns`, and why columns can't be read; return the rows, and whether those are all."""
    names = list(rows.schema.names)
    before = deepcopy(columns)
    try:
        return _read_columns(rows, names, columns, most)
    except DataError:
        if len(names) > MOST_ALONE:
            raise
        # a column of mixed types spoils no other
        wrong = {name: why for name in names if (why := _why_unreadable(rows, name))}
        readable = [name for name in names if name not in wrong]
        if not readable:
            raise
        unreadable |= wrong
        columns.clear()
        columns.update(before)
        return _read_columns(rows, readable, columns, most)


def _why_unreadable(rows: RowReader, name: str) -> str:
    try:
        for _ in _batches(rows, [name]):
            pass
    except DataError as error:
        return error.message
    return ""


def _batches(rows: RowReader, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Yield columns as load_data reads a label or text: class numbers by name, decimals and JSON's numbers as texts."""
    import pyarrow as pa

    classes, before = {name: declared_classes(rows.schema, name) for name in names}, 0
    for batch in rows.batches(names):
        arrays = []
        for name, values in zip(names, batch.columns, strict=True):
            values = class_texts(values, classes[name], f"{rows.name} row {{}}: {name}", before)
            kind = pa.string() if pa.types.is_decimal(values.type) else text_type(values.type)
            arrays.append(to_type(values, kind, name, rows.name, before))
        before += batch.num_rows
        yield pa.record_batch(arrays, names=names)


def _read_columns(rows: RowReader, names: list[str], columns: dict[str, Column], most: int) -> tuple[int, bool]:
    import pyarrow as pa

    read = size = 0
    stride = 1
    sampled: list[tuple[int, Meta]] = []
    batches = _batches(rows, names)
    for batch in batches:
        for name in names:
            _count(columns.setdefault(name, Column(name)), batch.column(name))
        picked = [at for at in range(batch.num_rows) if (read + at) % stride == 0]
        taken = batch.take(pa.array(picked, pa.int64())).to_pylist()  # Arrow knows no type of an empty list
        sampled += zip([read + at for at in picked], taken, strict=True)
        while len(sampled) > 2 * ROWS:
            stride *= 2
            sampled = [(at, row) for at, row in sampled if at % stride == 0]
        read, size = read + batch.num_rows, size + batch.nbytes
        if size > most or read >= MOST_ROWS:
            break
    for name in names:
        columns.setdefault(name, Column(name)).examples += _parsed([row[name] for _, row in sampled])
    is_whole = (size <= most and read < MOST_ROWS) or next(batches, None) is None
    if not is_whole and format_of(rows.name) == "parquet":  # its columns are stored apart
        for name in names:
            _count_whole(rows, columns[name], most)
    return read, is_whole


def _count_whole(rows: RowReader, column: Column, most: int) -> None:
    """Count the values of all rows, of a column that may hold classes. most: bytes to read."""
    if column.many or column.nested or not column.counts or not column.is_short:
        return
    whole, size = Column(column.name), 0
    for batch in _batches(rows, [column.name]):
        _count(whole, batch.column(0))
        size += batch.nbytes
        if size > most:
            break
    column.counts, column.many = whole.counts, whole.many


def _count(column: Column, values: pa.Array) -> None:
    """Add a batch's values to a column's counts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column.nested = column.nested or isinstance(values.type, pa.JsonType)
    texts = (values.storage if isinstance(values.type, pa.JsonType) else values).cast(pa.string())
    blank = pc.fill_null(is_blank(texts), True)
    column.rows += len(texts)
    column.blank += pc.sum(blank).as_py() or 0
    if not column.many and not column.nested:
        for entry in pc.value_counts(texts.filter(pc.invert(blank))).to_pylist():
            column.counts[entry["values"]] += entry["counts"]
        column.many = len(column.counts) > MOST_VALUES
        if column.many:
            column.counts = Counter(dict(islice(column.counts.items(), MOST_VALUES)))


def _parsed(values: list[Any]) -> Iterator[Any]:
    """Yield the values that are not blank; JSON text of lists and objects parsed."""
    for value in values:
        if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
            with suppress(ValueError, RecursionError):
                value = json.loads(value)
        if value is not None and (not isinstance(value, str) or value.strip()):
            yield value
