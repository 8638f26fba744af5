"""Ask the user's `own.identity` in which state the rows of `data.make` are, in a process that is watched as a stage's."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from tempfile import TemporaryDirectory
from typing import Any

from trnflow.tasks.artifact import Meta, Source
from trnflow.tasks.data.limited_process import PLAIN, Timer, call_own
from trnflow.tasks.data.load.config import DataConfig
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.keys.allowed_files import permit_for
from trnflow.tasks.keys.own_functions import function_of, own_errors
from trnflow.tasks.launch.watched import PERMIT
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.stage import Stage

HOOK = "own.identity"
TELLS_STATE = __name__
FIX = "correct it: it returns the state of the rows as a text, such as a count and the newest date"
LONGEST = 1000


def with_state(source: Source, code: Source, config: DataConfig, stage: Stage, resolver: Resolver) -> Source:
    """Return the source of `data.make` with the state that the user's function tells now, offline told last.

    stage: which reads it, and whose permit the function has. Raises DataError with the user's line, ConfigError.
    """
    unset = [name for name in config.variables if name not in os.environ]
    if unset and not resolver.offline:
        raise ConfigError(f"data.variables names {unset[0]}, which is not set", f"set {unset[0]}")
    given = {name: os.environ[name] for name in config.variables if name in os.environ}
    asked = {"hook": HOOK, "code": asdict(code), "arguments": config.arguments, "seconds": config.row_seconds}

    def ask() -> str:
        with TemporaryDirectory() as folder:
            permit = permit_for(stage, code.identity["code"], [code], [resolver.home], resolver.memo)
            file = os.path.join(folder, "permit")
            with open(file, "w", encoding="utf-8") as stream:
                json.dump({**asdict(permit), "files": sorted(permit.files)}, stream)
            environment = {**PLAIN, **given, PERMIT: file}
            return str(call_own(f"{__name__}:told", asked, environment)["state"])

    # two folders may have modules of one name
    named = json.dumps([code.location["functions"][HOOK], config.arguments, code.location["search"]], sort_keys=True)
    try:
        state, note = resolver.ask_or_recall(f"own/{named}", ask)
    except ConfigError as error:
        if not resolver.offline:
            raise
        raise ConfigError(
            f"{HOOK} never told the state of the rows on this machine, and this command runs no code of yours",
            "run the recipe, or `trnflow preview`, once",
        ) from error
    identity = {"make": {**source.identity["make"], "state": state}}
    return replace(source, identity=identity, note=note)


def told(arguments: Meta, limit: Any) -> Meta:
    """Return {"state": the text}, in the process of the user's function."""
    code = Source(**arguments["code"])
    function = function_of(code, HOOK)
    wall = limit.by_the_wall(arguments["seconds"]) if isinstance(limit, Timer) else limit
    with own_errors(code, "when it was asked for the state of the rows", FIX), wall("the state of the rows"):
        state = function(arguments["arguments"])
    if not isinstance(state, str) or not 0 < len(state) <= LONGEST:
        kind = f"a text of {len(state)} characters" if isinstance(state, str) else type(state).__name__
        raise DataError(
            f"{code.location['functions'][HOOK]} returned {kind}, no text of 1 to {LONGEST} characters", FIX
        )
    return {"state": state}
