"""The user's own metrics (`evaluate.metrics`): what they read, and the checks of what they return."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.config import NOT_KEYED, Hook, StageConfig
from trnflow.tasks.data.format.source_rows import read_source_rows
from trnflow.tasks.data.limited_process import call_own
from trnflow.tasks.data.proof import OTHER, go_elsewhere
from trnflow.tasks.errors import CodeError, DataError
from trnflow.tasks.keys.own_functions import function_of, own_errors, shown_file
from trnflow.tasks.system.arrays import load_array
from trnflow.tasks.system.threads import ThreadPool

if TYPE_CHECKING:
    from trnflow.tasks.system.arrays import Ints

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")
SETTING = "evaluate.metrics"


class OwnMetric(StageConfig):
    """A function of the user's that computes metrics of an evaluation."""

    function: Annotated[Hook, NOT_KEYED]
    """The function, `package.module:name`, which gets `Predictions` (docs/own_code.md). A float that it returns is a metric
    of the function's name, an entry of a dict one of its own name."""
    less_is_better: bool
    """Whether a low value is good."""
    may_promote: Annotated[bool, NOT_KEYED] = False
    """Whether `promote.metric` may name it. It then reads frozen rows, which have no probabilities and no generated
    texts."""

    @property
    def name(self) -> str:
        """The name of the metric, unless the function returns a dict."""
        return self.function.rpartition(":")[2]


@dataclass(frozen=True)
class Predictions:
    """What a function of the user's reads of a model's predictions. Arrays are read-only, one value a row, in the order of
    the rows; those of another task are None.

    Attributes:
        task: Such as `classification` or `causal_lm`.
        split: Such as `test`; `frozen` where models are compared.
        labels: Names of the classes, in the order of `probabilities`; () of a language model.
        row: int64 [rows], the row's number in the split of `load_data`, from 1.
        columns: {name: array [rows]} of all columns of the rows, as `load_data` wrote them.
        expected, predicted: int64 [rows], places in `labels`; of several labels or numbers float32 [rows, outputs].
        probabilities: float32 [rows, classes]; of frozen rows [rows, 0]. Of several labels or numbers [rows, outputs].
        loss: float64 [rows], cross entropy in nats.
        nll: float64 [rows], the loss of a language model in nats, summed over a row's supervised tokens.
        tokens, bytes: int64 [rows], the supervised tokens, and the UTF-8 bytes that they spell.
        generations: Lines of generations.jsonl.
    """

    task: str
    split: str
    labels: tuple[str, ...]
    row: Ints
    columns: Mapping[str, Any]
    expected: Any = None
    predicted: Any = None
    probabilities: Any = None
    loss: Any = None
    nll: Any = None
    tokens: Any = None
    bytes: Any = None
    generations: Sequence[Meta] = field(default=())

    def __post_init__(self) -> None:
        for array in (*vars(self).values(), *self.columns.values()):
            if hasattr(array, "setflags"):
                array.setflags(write=False)

    def __len__(self) -> int:
        return len(self.row)

    def take(self, rows: Ints | slice) -> Predictions:
        """Return the predictions of some rows, in this order. rows: places, int64."""
        count, columns = len(self), {name: values[rows] for name, values in self.columns.items()}
        arrays = {
            name: value[rows] for name, value in vars(self).items() if getattr(value, "shape", ())[:1] == (count,)
        }
        return replace(self, columns=Columns(columns), **arrays)


class Columns(dict[str, Any]):
    """{name: array} of a split's rows."""

    def __missing__(self, name: str) -> Any:
        raise KeyError(f"{name}: load_data kept {', '.join(self)}; data.columns keeps others")


def columns_of(rows: Path, numbers: Ints) -> Columns:
    """Return the columns of the rows with these numbers. rows: a Parquet file of `load_data`."""
    import pyarrow.parquet as pq

    table = pq.read_table(rows).take(numbers)
    return Columns({name: table[name].to_numpy().copy() for name in table.column_names})


def write_seen(
    folder: Path,
    task: str,
    split: str,
    labels: Sequence[str],
    rows: Path,
    numbers: Ints,
    arrays: Mapping[str, Any],
    generations: Path | None = None,
) -> Meta:
    """Write arrays for `read_seen` in another process, and return what it takes.

    rows: the Parquet file with the columns; numbers: each prediction's row in it, from 0; generations: a file of lines.
    """
    import numpy as np

    folder.mkdir(parents=True)
    for name, values in {"numbers": numbers, **arrays}.items():
        np.save(folder / f"{name}.npy", values, allow_pickle=False)
    return {
        "folder": str(folder), "task": task, "split": split, "labels": [*labels], "rows": str(rows),
        "arrays": [*arrays], "generations": str(generations) if generations else None,
    }  # fmt: skip


def sorted_seen(
    folder: Path,
    packed: Input,
    texts: Input,
    rows: Input,
    split: str,
    order: Ints,
    arrays: Mapping[str, Any],
    labels: Sequence[str] = (),
    generations: Path | None = None,
    *,
    task: str | None = None,
) -> Meta:
    """Write the predictions of a split in the order of its rows, as `write_seen`.

    order: of each prediction the row in format_prompts' file; packed, texts, rows: of the data stages; task: the model's, if it
    is not the rows'.
    """
    import numpy as np

    first = np.argsort(order, kind="stable")
    numbers = read_source_rows(texts.path, split, texts.meta["splits"][split])[order[first]].astype(np.int64)
    file = rows.path / f"{split}.parquet"
    sorted_arrays = {name: array[first] for name, array in arrays.items()}
    return write_seen(folder, task or packed.meta["task"], split, labels, file, numbers, sorted_arrays, generations)


def read_seen(seen: Meta) -> Predictions:
    import numpy as np

    def array(name: str) -> Any:
        return load_array(Path(seen["folder"], f"{name}.npy"))

    lines: list[str] = []
    if seen["generations"]:
        with Path(seen["generations"]).open(encoding="utf-8") as stream:
            lines = [*stream]
    numbers = array("numbers").astype(np.int64)
    return Predictions(
        seen["task"], seen["split"], tuple(seen["labels"]), numbers + 1, columns_of(Path(seen["rows"]), numbers),
        **{name: array(name) for name in seen["arrays"]}, generations=tuple(map(json.loads, lines)),
    )  # fmt: skip


def own_values(
    metrics: Sequence[OwnMetric], code: Source, seen: Meta, taken: Collection[str], scratch: Path
) -> dict[str, float]:
    """Call the user's metrics in a process of their own, and return {metric: value}.

    seen: of `write_seen`; taken: names of built-in metrics. Raises DataError with the user's line when a function raises
    or returns what is no finite number, CodeError when it returns another value in another process.
    """
    asked = {"hook": SETTING, "code": vars(code), "metrics": [each.model_dump() for each in metrics], "seen": seen}
    return called_twice(f"{__name__}:values", {**asked, "taken": sorted(taken)}, scratch)


def called_twice(function: str, arguments: Meta, scratch: Path) -> Meta:
    """Return what "module:name"(arguments, limit) returns in a process of its own, and in another one with another hash
    seed, a clock a day on, another folder, zone and locale. Raises CodeError if an entry differs."""
    away = scratch / "elsewhere"
    away.mkdir(parents=True, exist_ok=True)
    with ThreadPool(2, "proof") as pool:
        other = pool.submit(lambda: call_own(function, {**arguments, "elsewhere": True}, OTHER, away))
        first = call_own(function, {**arguments, "elsewhere": False})
        second = other.result()
    for name in first.keys() | second.keys():
        if first.get(name) != second.get(name):
            raise CodeError(
                f"{arguments['hook']}: {name} is {first.get(name)!r}, and {second.get(name)!r} in another process, folder, "
                "zone and on another day",
                "let it depend on the predictions alone: on no date, random number, order of a set, or state kept between calls",
            )
    return first


def values(arguments: Meta, limit: Any) -> dict[str, float]:
    """Return {metric: value}: see `own_values`."""
    code, predictions = Source(**arguments["code"]), read_seen(arguments["seen"])
    if arguments["elsewhere"]:
        go_elsewhere()
    limit(f"the {len(predictions)} rows of {predictions.split}")  # named if the function ends the process
    values: dict[str, float] = {}
    for number, metric in enumerate(arguments["metrics"]):
        function = function_of(code, f"{SETTING}.{number}.function")
        found = _called(function, OwnMetric.model_validate(metric).name, code, predictions)
        for name in found.keys() & {*arguments["taken"], *values}:
            raise DataError(
                f"{described(function, code)}: there is a metric {name} already", "return it under another name"
            )
        values |= found
    return values


def _called(
    function: Callable[[Predictions], Any], named: str, code: Source, predictions: Predictions
) -> dict[str, float]:
    where = f"on the {len(predictions)} rows of {predictions.split}"
    with own_errors(code, where, f"correct it, or take it out of {SETTING}: the predictions are kept"):
        returned = function(predictions)
    at, values = described(function, code), returned if isinstance(returned, dict) else {named: returned}
    for name, value in values.items():
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise DataError(f"{at}: {name!r} is no name of a metric", "use letters, digits, `_`, `.` and `-`")
        if isinstance(value, bool) or not isinstance(value, Real):
            kind = f"{name} is {_kind(value)}" if isinstance(returned, dict) else f"it returned {_kind(value)}"
            raise DataError(f"{at}: {kind}, no number", "return a float, or a dict of floats by name")
        if not math.isfinite(value):
            raise DataError(f"{at}: {name} is {float(value)} {where}", "return a finite number for such rows, too")
    return {name: float(value) for name, value in values.items()}


def own_number(
    function: Callable[[Predictions], Any], name: str, code: Source, predictions: Predictions, setting: str
) -> float:
    """Return the metric that one of the user's functions returns alone. Raises DataError as `own_values`."""
    values = _called(function, name, code, predictions)
    if [*values] != [name]:
        raise DataError(
            f"{described(function, code)}: it returned a dict, and {setting} compares by one number",
            f"let another function return that number alone, and name it in {setting}",
        )
    return values[name]


def _kind(value: Any) -> str:
    return "None" if value is None else f"{value!r:.40} ({type(value).__name__})"


def described(function: Callable[..., Any], code: Source) -> str:
    """Return where a function is, as `mine/metrics.py:9 in cost`."""
    body = function.__code__
    return f"{shown_file(code, body.co_filename)}:{body.co_firstlineno} in {body.co_name}"
