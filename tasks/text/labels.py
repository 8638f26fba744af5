"""Labels: read from a column or a rule such as `rating >= 4`, and turned into ids of a set that the train split fixes.

Values are compared by their text ("0", "joy", "true"), so a label is the same label in csv, json and parquet. The set
comes from the recipe's `labels`, the file's own class names, a sibling column `<label>_name`, or what train holds, in
this order. Fails with DataError, which names the file, the row and the label outside the set.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tasks.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

MOST_LABELS = 10_000
_RULE = re.compile(r"\s*(.+?)\s*(>=|<=|==|!=|>|<)\s*(.+?)\s*")
_OPPOSITE = {">=": "<", "<": ">=", "<=": ">", ">": "<=", "==": "!=", "!=": "=="}
_COMPARE = {">=": "greater_equal", "<": "less", "<=": "less_equal", ">": "greater", "==": "equal", "!=": "not_equal"}
_INTEGER = re.compile(r"-?\d+")


@dataclass(frozen=True)
class Rule:
    """`column operator value`, true is label 1. value: a number, or a text for == and !=."""

    column: str
    operator: str
    value: float | str

    @property
    def names(self) -> list[str]:
        """The two labels' names when the recipe gives none: the rule's opposite, and the rule."""
        value = f"{self.value:g}" if isinstance(self.value, float) else self.value
        return [f"{self.column} {_OPPOSITE[self.operator]} {value}", f"{self.column} {self.operator} {value}"]


def parse_rule(label: str) -> Rule | None:
    """The rule that `data.label` states; None when it is a column's name. ConfigError for `<` and `>` with a text."""
    match = _RULE.fullmatch(label)
    if match is None:
        return None
    column, operator, value = match.groups()
    try:
        return Rule(column, operator, float(value))
    except ValueError:
        if operator not in ("==", "!="):
            raise ConfigError(
                f"data.label: {label!r} compares with {value!r}, which is no number", "e.g. rating >= 4"
            ) from None
        return Rule(column, operator, value.strip("'\""))


@dataclass
class Seen:
    """The labels of one split: text -> where it first stood; and the names its sibling column gives them."""

    first: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def add(self, labels: pa.Array, siblings: pa.Array | None, where: str, numbers: NDArray[np.int64]) -> None:
        """labels: strings of one batch; siblings: their names; where: the file; numbers: their rows' in it, from 1."""
        import numpy as np

        encoded = labels.dictionary_encode()
        ids, rows = np.unique(encoded.indices.to_numpy(zero_copy_only=False), return_index=True)
        for index, row in zip(ids, rows, strict=True):
            label = encoded.dictionary[int(index)].as_py()
            self.first.setdefault(label, f"{where} row {numbers[row]}")
            if siblings is not None and (name := siblings[int(row)].as_py()) is not None:
                self.names.setdefault(label, str(name))
        if len(self.first) > MOST_LABELS:
            raise ConfigError(
                f"data.label: more than {MOST_LABELS} distinct labels in {where}",
                "choose a column with classes, or a rule",
            )


def label_texts(values: pa.Array, rule: Rule | None, where: str, before: int) -> pa.Array:
    """The column as label texts; a rule gives "0" and "1", null, NaN and blank texts null. DataError for a fraction, what no
    rule compares."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_string(values.type):
        values = pc.if_else(is_blank(values), pa.scalar(None, pa.string()), values)
    if pa.types.is_floating(values.type):  # what pandas writes for a missing number
        values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
    if rule is not None:
        return _ruled(values, rule, where, before)
    if pa.types.is_floating(values.type):
        values = _whole(values, where, before)
    if pa.types.is_nested(values.type):
        raise DataError(f"{where}: the label is of type {values.type}", "choose a column of names, numbers or booleans")
    return values.cast(pa.string())


def is_blank(texts: pa.Array) -> pa.Array:
    """True where there is nothing but whitespace, or nothing; null where there is null."""
    import pyarrow.compute as pc

    return pc.or_(pc.equal(pc.binary_length(texts), 0), pc.utf8_is_space(texts))


def _ruled(values: pa.Array, rule: Rule, where: str, before: int) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(rule.value, float):
        values, kind = _numbers(values, rule, where, before), pa.float64()
    else:
        values, kind = values.cast(pa.string()), pa.string()
    truth = getattr(pc, _COMPARE[rule.operator])(values, pa.scalar(rule.value, kind))
    return truth.cast(pa.int8()).cast(pa.string())


def _numbers(values: pa.Array, rule: Rule, where: str, before: int) -> pa.Array:
    import pyarrow as pa

    try:
        return values.cast(pa.float64())
    except pa.ArrowInvalid:
        for number, value in enumerate(values.to_pylist(), before + 1):
            if value is not None and not _is_number(value):
                raise DataError(
                    f"{where} row {number}: {rule.column} is {value!r}, which is no number",
                    "repair the row, or the rule",
                ) from None
        raise


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _whole(values: pa.Array, where: str, before: int) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    broken = pc.not_equal(values, pc.floor(values)).index(True).as_py()
    if broken >= 0:
        raise DataError(
            f"{where} row {before + broken + 1}: the label {values[broken].as_py()} is a fraction",
            "give classes, or a rule such as data.label='rating >= 4'",
        )
    return values.cast(pa.int64())


@dataclass(frozen=True)
class LabelSet:
    """names: by id; ids: label text -> id."""

    names: list[str]
    ids: dict[str, int]

    def encode(self, labels: pa.Array) -> pa.Array:
        """int64 ids of label texts, all of which are in the set (see `check`)."""
        import numpy as np
        import pyarrow as pa

        encoded = labels.dictionary_encode()
        table = np.array([self.ids[text] for text in encoded.dictionary.to_pylist()], dtype=np.int64)
        return pa.array(table[encoded.indices.to_numpy(zero_copy_only=False)])

    def under(self, names: list[str]) -> LabelSet:
        """The same labels as ids of `names`, which holds all of this set's."""
        return LabelSet(names, {text: names.index(self.names[i]) for text, i in self.ids.items()})

    def check(self, seen: Seen) -> None:
        """DataError when a split holds a label outside the set."""
        for label, where in seen.first.items():
            if label not in self.ids:
                known = ", ".join(self.names[:12])
                raise DataError(
                    f"{where}: the label {label!r} is outside the label set ({known})",
                    "repair the row, or name all labels in data.labels",
                )


def label_set(train: Seen, given: tuple[str, ...] | None, classes: list[str] | None, rule: Rule | None) -> LabelSet:
    """given: `data.labels`; classes: names the file itself declares. Integers count as ids of declared names."""
    declared = list(given) if given is not None else (rule.names if rule else classes)
    numbers = all(_INTEGER.fullmatch(label) for label in train.first)
    if declared is None:
        ordered = sorted(train.first, key=(lambda text: (int(text), text)) if numbers else None)
        names = [train.names.get(text, text) for text in ordered]
        return LabelSet(
            names if len(set(names)) == len(names) else ordered, {text: i for i, text in enumerate(ordered)}
        )
    by_index = numbers and not all(_INTEGER.fullmatch(name) for name in declared)
    return LabelSet(declared, {str(i) if by_index else name: i for i, name in enumerate(declared)})


def common_names(sources: dict[str, list[str]], given: tuple[str, ...] | None) -> list[str]:
    """The names by id of a mixture's labels: `data.labels`, or those that every source has. ConfigError where they differ."""
    first, *others = sources
    names = list(given) if given is not None else sources[first]
    for source in (first, *others):
        unknown = [name for name in sources[source] if name not in names]
        missing = [name for name in names if name not in sources[source]] if given is None else []
        if unknown or missing:
            known = "data.labels" if given is not None else first
            raise ConfigError(
                f"data.mix: {source} has the labels {', '.join(sources[source][:12])}, {known} {', '.join(names[:12])}",
                f"name them alike with data.mix.{source}.labels, or all that there are with data.labels",
            )
    return names


def declared_classes(schema: pa.Schema, column: str) -> list[str] | None:
    """The names of a `ClassLabel` column, which `datasets` leaves in the schema's metadata."""
    import json

    info = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    feature = info.get("info", {}).get("features", {}).get(column, {})
    names = feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
    return [str(name) for name in names] if names else None
