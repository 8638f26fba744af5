"""Read labels from a column or a rule such as `rating >= 4`, and turn them into ids.

Labels are compared as text, so that csv, json and parquet agree. Names in the order of ids: the recipe's `labels`, else
declared class names, else a column `<label>_name`, else train's labels, sorted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trnflow.tasks.data.load.column_types import to_type
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.kinds.label_names import comparable

MOST_LABELS = 10_000
LARGEST = 2.0**63
NUMBERED_CLASSES = 20
"""More integers than these, such as 0 to 100, are rather a score."""
_RULE = re.compile(r"\s*(.+?)\s*(>=|<=|==|!=|>|<)\s*(.+?)\s*")
_OPPOSITE = {">=": "<", "<": ">=", "<=": ">", ">": "<=", "==": "!=", "!=": "=="}
_COMPARE = {">=": "greater_equal", "<": "less", "<=": "less_equal", ">": "greater", "==": "equal", "!=": "not_equal"}
_INTEGER = re.compile(r"-?\d+")
_WHOLE = re.compile(r"(-?(?:0|[1-9]\d*))\.0+")
NO_CLASSES = (
    "give classes, or a rule such as data.label='rating >= 4'; to learn the numbers themselves, set format.task: regression "
    "and format.target to the column, and leave data.label out"
)


@dataclass(frozen=True)
class Rule:
    """A condition in `data.label`, such as `rating >= 4`: label 1 where it holds, else 0. value: a number, or a text
    for == and !=."""

    column: str
    operator: str
    value: float | str

    @property
    def names(self) -> list[str]:
        """Names of labels 0 and 1, such as ["rating < 4", "rating >= 4"]."""
        value = f"{self.value:g}" if isinstance(self.value, float) else self.value
        return [f"{self.column} {_OPPOSITE[self.operator]} {value}", f"{self.column} {self.operator} {value}"]


def parse_rule(label: str) -> Rule | None:
    """Parse `data.label` as a rule; None if it is a column's name. Raises ConfigError for an order of texts."""
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
class SeenLabels:
    """The labels of a split. first: {label: file and row of its first occurrence}; names: {label: name}."""

    first: dict[str, str] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def add(self, labels: pa.Array, siblings: pa.Array | None, where: str, numbers: NDArray[np.int64]) -> None:
        """Add a batch's labels. siblings: their names, or None; numbers: of rows, from 1. Raises ConfigError."""
        encoded = labels.dictionary_encode()
        ids, rows = np.unique(encoded.indices.to_numpy(zero_copy_only=False), return_index=True)
        for index, row in zip(ids, rows, strict=True):
            label = encoded.dictionary[int(index)].as_py()
            self.first.setdefault(label, f"{where} row {numbers[row]}")
            if siblings is not None and (name := siblings[int(row)].as_py()) is not None:
                self.names.setdefault(label, str(name))
        if len(self.first) > MOST_LABELS:
            raise ConfigError(f"data.label: more than {MOST_LABELS} distinct labels in {where}", NO_CLASSES)


def label_texts(values: pa.Array, rule: Rule | None, named: tuple[str, ...], where: str, before: int) -> pa.Array:
    """Return labels as texts, with a rule "1" where it holds, else "0".

    Blanks and "nan" become null, unless `named` (`data.labels`) lists it. Raises DataError for a fraction, or a value that
    the rule can't compare.
    """
    if pa.types.is_string(values.type):
        is_nan = pc.equal(pc.ascii_lower(pc.utf8_trim_whitespace(values)), "nan")
        missing = pc.or_(is_blank(values), pc.and_not(is_nan, pc.is_in(values, pa.array(named, pa.string()))))
        values = pc.if_else(missing, pa.scalar(None, pa.string()), values)
    if rule is not None:
        return _ruled(values, rule, where, before)
    if pa.types.is_floating(values.type):
        values = _as_integers(values, where, before)
    return to_type(values, pa.string(), "the label", where, before)


def is_blank(texts: pa.Array) -> pa.Array:
    """Return bool [texts]: empty or whitespace; null where the text is null."""
    return pc.or_(pc.equal(pc.binary_length(texts), 0), pc.utf8_is_space(texts))


def _ruled(values: pa.Array, rule: Rule, where: str, before: int) -> pa.Array:
    if isinstance(rule.value, float):
        values, kind = _numbers(values, rule, where, before), pa.float64()
    else:
        values, kind = to_type(values, pa.string(), rule.column, where, before), pa.string()
    truth = getattr(pc, _COMPARE[rule.operator])(values, pa.scalar(rule.value, kind))
    return truth.cast(pa.int8()).cast(pa.string())


def _numbers(values: pa.Array, rule: Rule, where: str, before: int) -> pa.Array:
    try:
        return values.cast(pa.float64())
    except pa.ArrowInvalid:
        for number, value in enumerate(values.to_pylist(), before + 1):
            if value is not None and not is_number(value):
                raise DataError(
                    f"{where} row {number}: {rule.column} is {value!r}, which is no number",
                    "repair the row, or the rule",
                ) from None
        raise


def is_number(value: Any) -> bool:
    """Return whether a value, or its text, is a number."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _as_integers(values: pa.Array, where: str, before: int) -> pa.Array:
    numbers = values.cast(pa.float64())
    is_class = pc.and_(pc.equal(numbers, pc.floor(numbers)), pc.less(pc.abs(numbers), LARGEST))
    broken = is_class.index(False).as_py()
    if broken >= 0:
        label = values[broken].as_py()
        raise DataError(f"{where} row {before + broken + 1}: the label {label} {_why_no_class(label)}", NO_CLASSES)
    return numbers.cast(pa.int64())


def _why_no_class(number: float) -> str:
    return "is a fraction" if abs(number) < LARGEST else "is too large for a class"


@dataclass(frozen=True)
class LabelSet:
    """A source's labels. names: by id; ids: {label as in the data: id}."""

    names: list[str]
    ids: dict[str, int]

    def encode(self, labels: pa.Array) -> pa.Array:
        """Return the ids, int64 [rows], of label texts, which must be in the set."""
        encoded = labels.dictionary_encode()
        table = np.array([self.ids[text] for text in encoded.dictionary.to_pylist()], dtype=np.int64)
        return pa.array(table[encoded.indices.to_numpy(zero_copy_only=False)])

    def renumbered(self, names: list[str]) -> LabelSet:
        """Return the labels with ids by their position in `names`, which has all of them."""
        return LabelSet(names, {text: names.index(self.names[i]) for text, i in self.ids.items()})

    def of_splits(self, splits: Iterable[SeenLabels]) -> LabelSet:
        """Return the set with the labels of splits that are equal numbers to one of the set, such as 1.0 to 1.

        Raises DataError, with file and row, if a split has another label.
        """
        ids, by_number = dict(self.ids), {whole_number(text): i for text, i in self.ids.items()}
        for seen in splits:
            for label, where in seen.first.items():
                number = ids.get(label, by_number.get(whole_number(label)))
                if number is None:
                    near = next((name for name in self.names if comparable(name) == comparable(label)), None)
                    raise DataError(
                        f"{where}: the label {label!r} is outside the label set ({', '.join(self.names[:12])})",
                        "repair the row, or name all labels in data.labels"
                        + (
                            f"; {near!r} differs by capitals, blanks, Unicode form, zeros or + in front alone"
                            if near
                            else ""
                        ),
                    )
                ids[label] = number
        return LabelSet(self.names, ids)

    @property
    def equal_numbers(self) -> dict[str, str]:
        """{label as in the data: the class of the same number that it counts as}."""
        pairs = {text: self.names[i] for text, i in self.ids.items()}
        return {text: name for text, name in pairs.items() if text != name and whole_number(text) == whole_number(name)}


def whole_number(label: str) -> str:
    """Return a number without the zeros of its fraction, as pandas writes whole numbers of columns with gaps."""
    match = _WHOLE.fullmatch(label)
    return match[1] if match else label


def _is_integer(label: str) -> bool:
    return _INTEGER.fullmatch(whole_number(label)) is not None


def label_set(
    train: SeenLabels, given: tuple[str, ...] | None, classes: list[str] | None, rule: Rule | None
) -> LabelSet:
    """Decide names and ids of a source's labels: `given`, else the rule's, else `classes`, else train's sorted labels.

    Where names are given or declared, labels must equal names; if all are integers and the names are not, they are ids.
    """
    if classes and not rule:
        return _declared(classes, given)
    declared = list(given) if given is not None else (rule.names if rule else None)
    if declared is None:
        return _found(train)
    by_index = all(map(_is_integer, train.first)) and not all(map(_is_integer, declared))
    return LabelSet(declared, {str(i) if by_index else name: i for i, name in enumerate(declared)})


def _found(train: SeenLabels) -> LabelSet:
    """Return the labels of train, sorted; equal numbers are one. Raises DataError if all are numbers, and one is a fraction."""
    for label, where in train.first.items() if all(map(is_number, train.first)) else ():
        if not float(label).is_integer():
            raise DataError(f"{where}: the label {label} {_why_no_class(float(label))}", NO_CLASSES)
    texts = {whole_number(label): label for label in sorted(train.first, key=len, reverse=True)}
    are_numbers = all(map(is_number, texts))
    ordered = sorted(texts, key=(lambda text: (float(text), text)) if are_numbers else None)
    names = [train.names.get(texts[text], texts[text]) for text in ordered]
    places = {text: i for i, text in enumerate(ordered)}
    ids = {label: places[whole_number(label)] for label in train.first}
    return LabelSet(names if len(set(names)) == len(names) else [texts[text] for text in ordered], ids)


def _declared(classes: list[str], given: tuple[str, ...] | None) -> LabelSet:
    """Return the classes that a file declares. given: all names in the order to take, or new names. Raises ConfigError."""
    names = list(given or classes)
    ids = {name: i for i, name in enumerate(names)}
    if not {*classes} <= {*names}:
        if len(classes) != len(names) or any(ids.get(name, i) != i for i, name in enumerate(classes)):
            raise ConfigError(
                f"data.labels is {', '.join(names[:12])}, and the data declares {', '.join(classes[:12])}",
                "name each of the data's classes as it is called there, or give all new names in its order",
            )
        ids |= {name: i for i, name in enumerate(classes)}
    if not any(map(_is_integer, ids)):  # files that declare nothing may have numbers
        ids |= {str(i): ids[name] for i, name in enumerate(classes)}
    return LabelSet(names, ids)


def common_names(sources: dict[str, list[str]], given: tuple[str, ...] | None) -> list[str]:
    """Return a mixture's label names by id: `data.labels`, else those of the first source. Raises ConfigError."""
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
