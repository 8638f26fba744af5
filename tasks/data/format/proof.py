"""Prove that the user's function gives a row the same text wherever and whenever it is called.

The first rows are made twice: in order, and in another process backwards, in other chunks, with another hash seed, a
clock a day on, another folder, zone and locale.
"""

from __future__ import annotations

import datetime
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import Meta, Source
from trnflow.tasks.data.format.row_makers import maker_from
from trnflow.tasks.data.format.templates import Limit
from trnflow.tasks.data.format.time_limit import call_own
from trnflow.tasks.data.tables import read_rows
from trnflow.tasks.errors import CodeError, DataError
from trnflow.tasks.keys.canonical_json import digest_of
from trnflow.tasks.stage import Workdir
from trnflow.tasks.system.threads import ThreadPool

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS = 64
OTHER = {"LC_ALL": "tr_TR.UTF-8", "TZ": "Pacific/Kiritimati", "PYTHONHASHSEED": "1"}
DAY = 86_400
FIX = "let it depend on its row alone: on no date, random number, order of a set, file, or state kept between rows"


def prove(code: Source, arguments: Meta, out: Workdir) -> None:
    """Make ROWS rows twice. Raises CodeError that names the first row that differs. Done once for each code.

    arguments: as `render_rows` takes them.
    """
    mark = Path(code.location["proofs"], digest_of(code.identity).removeprefix("sha256:"))
    if mark.exists():
        return
    away = out.scratch / "elsewhere"
    away.mkdir(parents=True, exist_ok=True)
    with ThreadPool(2, "proof") as pool:
        function = "trnflow.tasks.data.format.proof:made"
        there = pool.submit(lambda: call_own(function, {**arguments, "other": True}, OTHER, away))
        here = call_own(function, {**arguments, "other": False})["rows"]
        rows = there.result()["rows"]
    for number, (first, second) in enumerate(zip(here, rows, strict=True), 1):
        if first != second:
            raise CodeError(
                f"{arguments['config']['make']} makes two things of {arguments['part']['split']} row {number}: "
                f"{_apart(first, second)} the second time, in another process, order, folder, zone and day",
                FIX,
            )
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()


def made(arguments: Meta, limit: Limit) -> Meta:
    """Return {"rows": what is made of each of the first rows, as JSON text}."""
    table = read_rows(Path(arguments["file"]), 0, ROWS).to_pylist()
    numbers = list(range(len(table)))
    if arguments["other"]:
        _tomorrow()
        numbers = numbers[1::2][::-1] + numbers[::2][::-1]
    make, rows = maker_from(arguments, limit), [""] * len(table)
    for number in numbers:
        try:
            examples: Any = make(table[number], f"split {arguments['part']['split']} row {number + 1}").examples
        except DataError as error:
            if arguments["config"]["bad_rows"] == "error" and not arguments["other"]:
                raise
            examples = error.message
        rows[number] = json.dumps(examples)
    return {"rows": rows}


def _apart(first: str, second: str) -> str:
    """Return where two texts part, in words."""
    at = next((at for at, (left, right) in enumerate(zip(first, second, strict=False)) if left != right), 0)
    begin = max(at - 20, 0)
    return f"...{first[begin : at + 30]}... the first time, ...{second[begin : at + 30]}..."


def _tomorrow() -> None:
    """Put this process's clocks a day on, as far as Python code asks them."""
    for name, unit in (("time", 1), ("time_ns", 10**9), ("monotonic", 1), ("perf_counter", 1)):
        setattr(time, name, _later(getattr(time, name), DAY * unit))
    localtime, gmtime = time.localtime, time.gmtime
    time.localtime = lambda at=None: localtime(time.time() if at is None else at)
    time.gmtime = lambda at=None: gmtime(time.time() if at is None else at)
    day = datetime.timedelta(days=1)

    class AlsoTheirs(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, cls.__mro__[1])

    class Datetime(datetime.datetime, metaclass=AlsoTheirs):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return super().now(tz) + day

        @classmethod
        def utcnow(cls) -> Any:
            return super().utcnow() + day

        @classmethod
        def today(cls) -> Any:
            return super().today() + day

    class Date(datetime.date, metaclass=AlsoTheirs):
        @classmethod
        def today(cls) -> Any:
            return super().today() + day

    datetime.datetime, datetime.date = Datetime, Date  # type: ignore[misc]


def _later(clock: Callable[[], Any], more: int) -> Callable[[], Any]:
    return lambda: clock() + more
