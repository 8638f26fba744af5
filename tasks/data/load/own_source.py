"""Rows that the user's `data.make` gives: written as JSON lines by a process of its own, and then read as any file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import islice
from typing import Any

from trnflow.tasks.artifact import Meta, Source
from trnflow.tasks.data.limited_process import PLAIN, Timer, call_own
from trnflow.tasks.data.load.config import DataConfig
from trnflow.tasks.data.proof import ROWS, go_elsewhere, prove
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.keys.own_functions import function_of, own_errors
from trnflow.tasks.stage import Workdir

HOOK = "data.make"
FIX = "correct it: it gives rows as dicts of texts, numbers, booleans, lists and objects"
_END: Any = object()


def made_source(config: DataConfig, source: Source, code: Source, out: Workdir) -> Source:
    """Let `data.make` give each split's rows, and return them as a source of files. Raises DataError, CodeError,
    ConfigError without a train split or a variable."""
    folder = out.scratch / "made"
    folder.mkdir(parents=True)
    unset = [name for name in config.variables if name not in os.environ]
    if unset:
        raise ConfigError(f"data.variables names {unset[0]}, which is not set", f"set {unset[0]}")
    environment = {name: os.environ[name] for name in config.variables}
    shared = {"hook": HOOK, "code": vars(code), "arguments": config.arguments, "seconds": config.row_seconds}
    splits: Meta = source.location["splits"]
    first = {**shared, "split": "train", "theirs": splits.get("train", "train")}
    prove(code, first_rows, first, out, environment)
    files = []
    for split, theirs in splits.items():
        to = folder / f"{split}.jsonl"
        given = {**shared, "split": split, "theirs": theirs, "to": str(to)}
        if call_own("trnflow.tasks.data.load.own_source:write", given, {**PLAIN, **environment})["is_given"]:
            files.append({"split": split, "format": "jsonl", "path": str(to), "name": f"{config.make} {split}"})
    if not any(file["split"] == "train" for file in files):
        raise ConfigError(f"{config.make} gives no train split", "let it give rows for `train`")
    return Source("data", source.identity, {"files": files})


def write(arguments: Meta, limit: Any) -> Meta:
    """Write a split's rows as JSON lines. Return {"is_given": whether there is such a split}."""
    rows = _rows(arguments, limit)
    if rows is None:
        return {"is_given": False}
    with open(arguments["to"], "w", encoding="utf-8") as stream:
        for line in rows:
            stream.write(f"{line}\n")
    return {"is_given": True}


def first_rows(arguments: Meta, limit: Any) -> Meta:
    """Return {"rows": the first rows as JSON text}."""
    if arguments["elsewhere"]:
        go_elsewhere()
    return {"rows": list(islice(_rows(arguments, limit) or (), ROWS))}


def _rows(arguments: Meta, limit: Any) -> Iterator[str] | None:
    code, split = Source(**arguments["code"]), arguments["split"]
    function = function_of(code, HOOK)
    wall = limit.by_the_wall(arguments["seconds"]) if isinstance(limit, Timer) else limit
    with own_errors(code, f"for the split {split}", FIX), wall(f"{split} row 1"):
        rows = function(arguments["arguments"], arguments["theirs"])
    return None if rows is None else _lines(rows, code, split, wall)


def _lines(rows: Any, code: Source, split: str, wall: Any) -> Iterator[str]:
    named = code.location["functions"][HOOK]
    with own_errors(code, f"for the split {split}", FIX):
        following = iter(rows)
    number = 0
    while True:
        where = f"{split} row {(number := number + 1)}"
        with own_errors(code, f"at {where}", FIX), wall(where):
            row = next(following, _END)
        if row is _END:
            return
        if not isinstance(row, dict):
            raise DataError(f"{where}: {named} gave {type(row).__name__}, no dict", FIX)
        try:
            yield json.dumps(row, allow_nan=False)
        except (TypeError, ValueError) as error:
            column = next((name for name, value in row.items() if not _is_json(value)), "")
            raise DataError(f"{where}: {named} gave a column {column!r} that is no JSON: {error}", FIX) from error


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True
