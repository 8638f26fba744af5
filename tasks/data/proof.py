"""Prove that the user's function makes the same of a row wherever and whenever it is called.

The first rows are made twice: in order, and in another process backwards, with another hash seed, a clock a day on, in
another folder, zone and locale.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Mapping
from importlib.machinery import ExtensionFileLoader
from itertools import zip_longest
from pathlib import Path
from typing import Any

from trnflow.tasks.artifact import Meta, Source
from trnflow.tasks.data.limited_process import PLAIN, call_own
from trnflow.tasks.errors import CodeError
from trnflow.tasks.keys.canonical_json import digest_of
from trnflow.tasks.stage import Workdir
from trnflow.tasks.system.threads import ThreadPool

ROWS = 64
OTHER = {"LC_ALL": "tr_TR.UTF-8", "TZ": "Pacific/Kiritimati", "PYTHONHASHSEED": "1"}
DAY = 86_400
FIX = "let it depend on its row alone: on no date, random number, order of a set, file, or state kept between rows"


def prove(
    code: Source, rows: Callable[..., Meta], arguments: Meta, out: Workdir, environment: Mapping[str, str] | None = None
) -> None:
    """Make ROWS rows twice. Raises CodeError that names the first row that differs. Done once for each code.

    rows: returns {"rows": texts}; it gets the arguments with `elsewhere`, whether to call `go_elsewhere`; environment:
    further variables.
    """
    function = f"{rows.__module__}:{rows.__name__}"
    mark = Path(code.location["proofs"], digest_of(code.identity).removeprefix("sha256:"))
    if mark.exists():
        return
    away, more = out.scratch / "elsewhere", environment or {}
    away.mkdir(parents=True, exist_ok=True)
    with ThreadPool(2, "proof") as pool:
        there = pool.submit(lambda: call_own(function, {**arguments, "elsewhere": True}, {**OTHER, **more}, away))
        first = call_own(function, {**arguments, "elsewhere": False}, {**PLAIN, **more})["rows"]
        second = there.result()["rows"]
    for number, (here, elsewhere) in enumerate(zip_longest(first, second, fillvalue="nothing"), 1):
        if here != elsewhere:
            raise CodeError(
                f"{code.location['functions'][arguments['hook']]} makes two things of train row {number}: "
                f"{_apart(here, elsewhere)} the second time, in another process, order, folder, zone and day",
                FIX,
            )
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()


def _apart(first: str, second: str) -> str:
    """Return where two texts part, in words."""
    at = next((at for at, (left, right) in enumerate(zip(first, second, strict=False)) if left != right), 0)
    begin = max(at - 20, 0)
    return f"...{first[begin : at + 30]}... the first time, ...{second[begin : at + 30]}..."


def go_elsewhere() -> None:
    """Put this process's clocks a day on, as far as Python code asks them, before the user's code is imported."""
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

    true = datetime.datetime, datetime.date

    def truly(load: Callable[..., Any]) -> Callable[..., Any]:
        def loaded(*arguments: Any) -> Any:
            before = datetime.datetime, datetime.date
            datetime.datetime, datetime.date = true  # type: ignore[misc]
            try:
                return load(*arguments)
            finally:
                datetime.datetime, datetime.date = before  # type: ignore[misc]

        return loaded

    # compiled modules, such as pandas' and pyarrow's, can be imported only with the true datetime
    for name in ("create_module", "exec_module"):
        setattr(ExtensionFileLoader, name, truly(getattr(ExtensionFileLoader, name)))
    datetime.datetime, datetime.date = Datetime, Date  # type: ignore[misc]


def _later(clock: Callable[[], Any], more: int) -> Callable[[], Any]:
    return lambda: clock() + more
