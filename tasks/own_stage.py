"""Stages of the user's own (`stages`): functions that make an artifact of another stage's, in a process of their own."""

from __future__ import annotations

import hashlib
import json
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.config import NOT_KEYED, Hook, StageConfig
from trnflow.tasks.data.limited_process import call_own
from trnflow.tasks.data.proof import OTHER, go_elsewhere
from trnflow.tasks.errors import CodeError, DataError
from trnflow.tasks.keys.canonical_json import digest_of
from trnflow.tasks.keys.own_functions import function_of, own_errors, shown_file
from trnflow.tasks.stage import Stage, Workdir, stage
from trnflow.tasks.system.threads import ThreadPool

FIX = "correct it, or take the stage out: what the other stages made is kept"


class OwnStage(StageConfig):
    """A stage of your own: a leaf, which no other stage but one of your own can be after."""

    function: Annotated[Hook, NOT_KEYED]
    """Your function, `package.module:name`, marked by `@stage(kind="...")`. It gets `arguments`, the artifact of the stage
    `after`, and a folder to write to, and may return metadata (docs/own_code.md)."""
    after: Annotated[str, NOT_KEYED]
    """The stage whose artifact it reads: a built-in one but `precompile`, or another of your own."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """What the function gets as its first argument."""


@dataclass(eq=False, kw_only=True)
class NamedStage(Stage):
    """`own_stage` under the name and kind of one of the user's."""

    named: str = ""

    @property
    def name(self) -> str:
        return self.named


def named_stage(name: str, kind: str) -> NamedStage:
    described = NamedStage(kind=kind, named=name)
    described.function = own_stage
    return described


@stage(kind="own")
def own_stage(config: OwnStage, given: Input, code: Source, out: Workdir) -> Meta:
    """Call the user's function, for a new state of its code twice. Raises DataError with the user's line, CodeError if
    the files or the metadata differ."""
    (hook,) = code.location["functions"]
    away, twice = out.scratch / "elsewhere", out.scratch / "twice"
    artifact = {**vars(given), "path": str(given.path)}
    asked = {"hook": hook, "code": vars(code), "config": config.model_dump(), "given": artifact}
    first = {**asked, "out": str(out.path), "scratch": str(out.scratch / "own"), "elsewhere": False}
    identity = digest_of({**code.identity, "arguments": config.arguments})
    mark = Path(code.location["proofs"], identity.removeprefix("sha256:"))
    if mark.exists():
        return _report(call_own(f"{__name__}:made", first), out)
    away.mkdir(parents=True)
    second = {**asked, "out": str(twice), "scratch": str(away / "own"), "elsewhere": True}
    # both at once: on two cores a proof costs no time
    with ThreadPool(2, "proof") as pool:
        there = pool.submit(lambda: call_own(f"{__name__}:made", second, OTHER, away))
        result = call_own(f"{__name__}:made", first)
        one, other = _contents(result, out.path), _contents(there.result(), twice)
    for name in sorted(one.keys() | other.keys()):
        if one.get(name) != other.get(name):
            raise CodeError(
                f"{code.location['functions'][hook]} makes another {name} the second time, in another process, folder, zone "
                "and on another day",
                "let it depend on its artifact and arguments alone: on no date, random number, path, or order of a set",
            )
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()
    return _report(result, out)


def _report(result: Meta, out: Workdir) -> Meta:
    """Pass the reports of the other process on, and return the metadata."""
    for event in result["events"]:
        out.emit(event)
    meta: Meta = result["meta"]
    return meta


def _contents(result: Meta, folder: Path) -> Meta:
    """Return {file or entry of the metadata: digest or value}."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    digests: Meta = {}
    for path in files:
        with path.open("rb") as stream:
            digests[path.relative_to(folder).as_posix()] = hashlib.file_digest(stream, "sha256").hexdigest()
    return {f"metadata {name}": value for name, value in result["meta"].items()} | digests


def made(arguments: Meta, limit: Any) -> Meta:
    """Return {"meta": what the function returned, "events": its reports}, in the function's process."""
    code, given = Source(**arguments["code"]), arguments["given"]
    if arguments["elsewhere"]:
        go_elsewhere()
    function = function_of(code, arguments["hook"])
    # what the process reports is passed on when it has ended; its progress would come too late
    events: list[Meta] = []
    out = Workdir(Path(arguments["out"]), Path(arguments["scratch"]), events.append)
    for folder in (out.path, out.scratch):
        folder.mkdir(parents=True, exist_ok=True)
    limit(f"the {given['kind']}")
    # a stage may load a model, which rows never do: `launch.memory_gib` is its limit
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    with own_errors(code, f"on the {given['kind']}", FIX):
        meta = function(arguments["config"]["arguments"], Input(**{**given, "path": Path(given["path"])}), out)
    body = function.__code__
    at = f"{shown_file(code, body.co_filename)}:{body.co_firstlineno} in {body.co_name}"
    return {"meta": _checked(meta, at), "events": [event for event in events if "progress" not in event]}


def _checked(meta: Any, at: str) -> Meta:
    if meta is None:
        return {}
    if not isinstance(meta, dict) or not isinstance(meta.get("metrics", {}), dict):
        what = f"metrics of type {type(meta['metrics']).__name__}" if isinstance(meta, dict) else type(meta).__name__
        raise DataError(
            f"{at}: it returned {what}, no dict", 'return None, or metadata such as {"metrics": {"share": 0.5}}'
        )
    for name, value in meta.get("metrics", {}).items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise DataError(f"{at}: its metric {name} is {value!r:.40}, no number", "return numbers as metrics")
    try:
        checked: Meta = json.loads(json.dumps(meta, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{at}: its metadata are no JSON: {error}", "return texts, finite numbers, lists and dicts"
        ) from error
    return checked
