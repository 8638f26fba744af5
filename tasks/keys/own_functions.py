"""Import and call the functions of the user's that hooks name, in the process of the stage."""

from __future__ import annotations

import importlib
import linecache
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trnflow.tasks.artifact import Source
from trnflow.tasks.errors import CodeError, DataError, TrnflowError


def function_of(code: Source, setting: str) -> Callable[..., Any]:
    """Import the function that a hook names. Raises DataError with the user's line, CodeError for another's module."""
    module, _, name = code.location["functions"][setting].partition(":")
    sys.path[:0] = [folder for folder in code.location["search"] if folder not in sys.path]
    with own_errors(code, "when it was imported", f"correct it: {setting} names it"):
        found = importlib.import_module(module)
    for name_of, file in code.location["files"].items():
        if (loaded := sys.modules.get(name_of)) is not None and loaded.__file__ != file:
            raise CodeError(
                f"{setting}: {name_of} is {loaded.__file__} in this process, not {file}",
                "give your module another name",
            )
    function: Callable[..., Any] = getattr(found, name)
    return function


@contextmanager
def own_errors(code: Source, where: str, fix: str) -> Iterator[None]:
    """Turn what a user's function raises into a DataError with the user's own line. where: such as `at train row 17`."""
    try:
        yield
    except TrnflowError:
        raise
    except (Exception, SystemExit) as error:
        raise own_error(code, error, where, fix) from error


def own_error(code: Source, error: BaseException, where: str, fix: str) -> DataError:
    """Return the error that shows what a user's function raised, at the last of the user's lines that it passed."""
    files = {*code.location["files"].values()}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    what = f"{type(error).__name__} {error}".strip()
    if not frames:
        return DataError(f"{next(iter(code.location['functions'].values()))}: {what} {where}", fix)
    line = linecache.getline(frames[-1].filename, frames[-1].lineno or 0).strip()
    place = f"{shown_file(code, frames[-1].filename)}:{frames[-1].lineno} in {frames[-1].name}"
    return DataError(f"{place}: {what} {where}: `{line}`", fix)


def shown_file(code: Source, file: str) -> str:
    """Return a file's path as the user writes it, from the folder that is imported from."""
    tops = [top for top in code.location["search"] if Path(file).is_relative_to(top)]
    return str(Path(file).relative_to(tops[0])) if tops else file
