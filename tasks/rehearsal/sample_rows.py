"""Stage `sample_rows`: choose rows of each split, of every label and kind, and refuse columns that can't be meant."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import Input, Meta
from trnflow.tasks.config import PositiveCount, StageConfig
from trnflow.tasks.data.load.labels import NUMBERED_CLASSES, is_number
from trnflow.tasks.data.tables import write_rows
from trnflow.tasks.data.texts import in_order
from trnflow.tasks.errors import DataError
from trnflow.tasks.kinds import multi_label
from trnflow.tasks.kinds.multi_label import BETWEEN, MOST_LABELS
from trnflow.tasks.stage import Workdir, stage

if TYPE_CHECKING:
    import pyarrow as pa

    from trnflow.tasks.metadata import RowsMeta

LOOKED_AT = 200_000
"""Rows of each split that are looked at."""
KINDS = 64
"""The most kinds of rows of which one is taken."""


class SampleConfig(StageConfig):
    """Settings of `sample_rows`."""

    rows: PositiveCount = 32
    """The rows of each split; more if there are more labels."""

    several: str = ""
    """The column whose cells hold several labels each, of the task `multi_label`."""


@stage(kind="rows")
def sample_rows(config: SampleConfig, rows: Input[RowsMeta], out: Workdir) -> RowsMeta:
    """Write some rows of each split, with every label and every kind of row that occurs.

    Raises DataError for a class of one row, and for a text or label column that can't be meant.
    """
    meta = rows.meta
    _check_labels(meta)
    splits, label_counts = {}, {}
    for split in in_order(meta["splits"]):
        numbers = _choose(rows, split, max(config.rows, len(meta["labels"] or ())), config.several)
        tables = [*_taken(rows, split, numbers)]
        if split == "train":
            _check_texts(meta, tables)
        splits[split] = write_rows(tables, tables[0].schema, out.path / f"{split}.parquet", lambda done: None)
        if meta["labels"] is not None:
            seen = Counter(number for table in tables for number in table.column("label").to_pylist())
            label_counts[split] = {name: seen[number] for number, name in enumerate(meta["labels"])}
    sampled: RowsMeta = {**meta, "splits": splits}
    if label_counts:
        sampled["label_counts"] = label_counts
    return sampled


def _choose(rows: Input[RowsMeta], split: str, most: int, several: str) -> list[int]:
    """Return numbers of rows, ascending: the first of each label (also in lists, and in the cells of the column `several`)
    and kind, the longest, then rows at equal distances."""
    nested = rows.meta.get("nested", [])
    longest = (0, 0)
    labels: dict[int | None, int] = {}
    kinds: dict[Any, int] = {}
    listed: dict[str, dict[str, int]] = {name: {} for name in nested if name != several}
    named: dict[str, int] = {}
    number = -1
    for number, row in enumerate(_rows(rows, split)):
        labels.setdefault(row.get("label"), number)
        if len(kinds) < KINDS:
            kinds.setdefault(kind_of(row, nested), number)
        for name, firsts in listed.items():
            # a column of more values holds no labels, but words
            if len(firsts) <= KINDS:
                for value in labels_in(row[name]):
                    firsts.setdefault(value, number)
        # what stands between labels is known when all cells are read
        for between in BETWEEN if several and len(named) <= MOST_LABELS else ():
            for label in multi_label.labels_in(row.get(several), between):
                named.setdefault(label, number)
        longest = max(longest, (sum(len(text) for text in row.values() if isinstance(text, str)), number))
    chosen = {*labels.values(), *kinds.values(), *named.values(), longest[1]}
    chosen |= {number for firsts in listed.values() if len(firsts) <= KINDS for number in firsts.values()}
    step = max(1, (number + 1) // most)
    for more in range(0, number + 1, step):
        if len(chosen) >= most:
            break
        chosen.add(more)
    return sorted(chosen)


def kind_of(row: Mapping[str, Any], nested: list[str]) -> tuple[Any, ...]:
    """Return what kind of row it is: which columns are null or blank, and of a conversation its first and last role, its
    set of roles, and whether a turn is blank."""
    return tuple(
        None if value is None
        else _kind_of_turns(value) if name in nested
        else not value.strip() if isinstance(value, str)
        else True
        for name, value in row.items()
    )  # fmt: skip


def labels_in(text: str | None) -> Iterator[str]:
    """Yield what may be labels in a list: its values, or `label` of its objects."""
    values = json.loads(text) if text else []
    for value in values if isinstance(values, list) else ():
        label = value.get("label") if isinstance(value, dict) else value
        if isinstance(label, str | int):
            yield str(label)


def _kind_of_turns(text: str) -> tuple[Any, ...]:
    turns = json.loads(text)
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        return (type(turns).__name__,)
    roles = [str(turn.get("role", turn.get("from"))) for turn in turns]
    blank = any(not str(turn.get("content", turn.get("value")) or "").strip() for turn in turns)
    return (*roles[:1], *roles[-1:], *sorted({*roles}), blank)


def _rows(rows: Input[RowsMeta], split: str) -> Iterator[Meta]:
    import pyarrow.parquet as pq

    left = LOOKED_AT
    for batch in pq.ParquetFile(rows.path / f"{split}.parquet", pre_buffer=False).iter_batches(4096):
        yield from batch.slice(0, left).to_pylist()
        left -= min(left, batch.num_rows)
        if not left:
            return


def _taken(rows: Input[RowsMeta], split: str, numbers: list[int]) -> Iterator[pa.Table]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    before = 0
    for batch in pq.ParquetFile(rows.path / f"{split}.parquet", pre_buffer=False).iter_batches(4096):
        here = [number - before for number in numbers if before <= number < before + batch.num_rows]
        if here:
            yield pa.Table.from_batches([batch]).take(here)
        before += batch.num_rows


def _check_labels(meta: RowsMeta) -> None:
    """Raise DataError for labels that can't be meant as classes."""
    labels = meta["labels"]
    if labels is None:
        return
    counts = meta.get("label_counts", {}).get("train", {})
    total = sum(counts.values())
    if len(labels) > NUMBERED_CLASSES and all(label.isdigit() for label in labels):
        numbers = sorted(map(int, labels))
        if numbers[-1] - numbers[0] < 2 * len(numbers):
            raise DataError(
                f"data.label: the labels are {len(labels)} numbers from {numbers[0]} to {numbers[-1]}, as of a score",
                f"make classes of them (data.label='COLUMN >= {numbers[len(numbers) // 2]}'), or name all in data.labels",
            )
    if len(labels) > NUMBERED_CLASSES and len(labels) > total / 2:
        raise DataError(
            f"data.label: {len(labels)} labels for {total} rows of train, so that most occur once",
            "choose the column of the classes with data.label",
        )
    alone = [name for name, count in counts.items() if count == 1]
    if alone:
        raise DataError(
            f"data.label: {' and '.join(alone[:3])} {'has one row' if len(alone) == 1 else 'have one row each'} in train",
            "give the class more rows, or leave its rows out",
        )


def _check_texts(meta: RowsMeta, tables: list[pa.Table]) -> None:
    """Raise DataError for a text column of numbers or of identifiers."""
    for name in meta["text"]:
        texts = [str(text) for table in tables for text in table.column(name).to_pylist() if text]
        if len(texts) > 1 and all(is_number(text) for text in texts):
            raise DataError(
                f"data.text: the column {name} holds numbers", "choose the column of the text with data.text"
            )
        if len(texts) > 1 and len({*texts}) == len(texts) and all(_is_identifier(text) for text in texts):
            raise DataError(
                f"data.text: the column {name} holds identifiers, such as {texts[0]}",
                "choose the column of the text with data.text",
            )


def _is_identifier(text: str) -> bool:
    return " " not in text and any(letter.isdigit() for letter in text)
