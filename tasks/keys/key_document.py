"""Build a stage's key document, and hash it to the key."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import ASIDE, CODE, Artifact, Meta, Source
from trnflow.tasks.config import StageConfig
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.keys.canonical_json import digest_of
from trnflow.tasks.keys.code_closure import Closure, closure
from trnflow.tasks.keys.distributions import installed_versions
from trnflow.tasks.keys.hash_cache import Memo, Stamp, stamp
from trnflow.tasks.keys.module_finder import project_folder
from trnflow.tasks.stage import Keyed, Stage

if TYPE_CHECKING:
    from trnflow.tasks.documents import KeyDocument

SCHEMA = 2

TABLES = ("code", "params", "inputs", "env", "accel")
"""The tables of a key document."""


def key_document(
    stage: Stage, config: StageConfig, inputs: Keyed, memo: Memo, stamp_of: Callable[[str], Stamp] = stamp
) -> KeyDocument:
    """Return a stage's key document.

    inputs: {name: artifact or source}; stamp_of: see `closure`. Raises ConfigError when an asset is missing.
    """
    config = stage.resolved(config, inputs)
    code, env = stage_closure(stage, memo, stamp_of)
    own = [item for item in inputs.values() if isinstance(item, Source) and item.kind == CODE]
    for source in own:
        code, env = code | source.identity["code"], env | source.identity["env"]
    inputs = {
        name: seen_by(stage, name, item) if isinstance(item, Artifact) else item
        for name, item in inputs.items()
        if item not in own
    }
    return {
        "schema": SCHEMA,
        "stage": stage.name,
        "code": code | _assets(stage, memo),
        "params": stage.params(config),
        "inputs": stage.inputs(config, inputs),
        "env": env,
        "accel": _accel(stage, config, memo),
    }


def counted(artifact: Artifact) -> Artifact:
    """Return an artifact without its files aside: with the digest that keys have of it."""
    files = tuple(file for file in artifact.files if not file.path.startswith(ASIDE))
    if len(files) == len(artifact.files):
        return artifact
    manifest = {"kind": artifact.kind, "meta": artifact.meta, "files": [list(file) for file in files]}
    return Artifact(digest_of(manifest), artifact.kind, artifact.meta, files)


def seen_by(stage: Stage, name: str, artifact: Artifact) -> Artifact:
    """Return what a stage reads, and its key counts, of the artifact that is its input `name`."""
    return artifact if name in stage.aside else counted(artifact)


def stage_closure(stage: Stage, memo: Memo, stamp_of: Callable[[str], Stamp] = stamp) -> Closure:
    """Return the closure of a stage's code, and of what makes the inputs that it keeps."""
    code, env = closure(stage.function.__module__, memo, stamp_of)
    for kept in stage.kept.values():
        theirs = closure(kept.function.__module__, memo, stamp_of)
        code, env = code | theirs.code, env | theirs.env
    return Closure(code, env)


def key_of(document: KeyDocument) -> str:
    """Return the key of a key document: 64 hexadecimal digits."""
    return digest_of(document).removeprefix("sha256:")


def _assets(stage: Stage, memo: Memo) -> dict[str, str]:
    digests = {}
    folder = project_folder(stage.function.__module__.split(".")[0])
    for asset in stage.assets:
        if not (folder / asset).is_file():
            raise ConfigError(
                f"{stage.name} declares the asset {asset}, and {folder} has no such file",
                "correct its @stage, or add it",
            )
        digests[asset] = memo.digest(folder / asset)
    return digests


def _accel(stage: Stage, config: StageConfig, memo: Memo) -> Meta:
    accel = stage.accel(config)
    if isinstance(accel.get("versions"), list):
        accel["versions"] = installed_versions(set(accel["versions"]), memo)
    return accel
