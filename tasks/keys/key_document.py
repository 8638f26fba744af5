"""Build the document that identifies a stage's result, and compute the stage key, by which the result is found, from
it.

The *key document* is JSON of the stage's code, parameters, inputs, environment (library versions) and accelerator. The
sha256 of its canonical text is the stage key. The record of a result in the store keeps the document, so comparing two
documents explains why a result was not found again.
"""

from __future__ import annotations

from trnflow.tasks.artifact import Meta
from trnflow.tasks.config import StageConfig
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.keys.canonical_json import digest_of
from trnflow.tasks.keys.code_closure import closure, installed_versions, project_folder
from trnflow.tasks.keys.hash_cache import Memo
from trnflow.tasks.stage import Keyed, Stage

SCHEMA = 2

PARTS = ("code", "params", "inputs", "env", "accel")
"""The tables of a key document."""


def key_document(stage: Stage, config: StageConfig, inputs: Keyed, memo: Memo) -> Meta:
    """Return the key document of a stage (the JSON of which its key is the hash) for this config and these inputs.

    stage: the description of the stage function; inputs: {name of an input: artifact or source}; memo: the hash cache,
    which remembers the digests of files that have not changed. Raises ConfigError when a declared asset (a file beside
    the code that the stage reads) is missing.

    Returns:
        "schema": the version of the key document's form.
        "stage": the stage's name.
        "code": {module: hash of its code, or a schema number; asset: digest}.
        "params": the settings of the stage that belong to its key.
        "inputs": {name of an input: digest of the artifact, or identity of the source}, unless the stage defines
            another form.
        "env": {distribution: version}.
        "accel": the accelerator for which the stage computes, and what else of the machine the stage names; {} if
            nothing."""
    code, env = closure(stage.function.__module__, memo)
    return {
        "schema": SCHEMA,
        "stage": stage.name,
        "code": code | _assets(stage, memo),
        "params": stage.params(config),
        "inputs": stage.inputs(config, inputs),
        "env": env,
        "accel": _accel(stage, config, memo),
    }


def key_of(document: Meta) -> str:
    """Compute the stage key, by which a stage's result is found in the store: the sha256 of a key document (JSON of the
    stage's code, parameters, inputs, environment and accelerator), 64 hexadecimal digits."""
    return digest_of(document).removeprefix("sha256:")


def _assets(stage: Stage, memo: Memo) -> dict[str, str]:
    found = {}
    folder = project_folder(stage.function.__module__.split(".")[0])
    for asset in stage.assets:
        if not (folder / asset).is_file():
            raise ConfigError(
                f"{stage.name} declares the asset {asset}, and {folder} has no such file",
                "correct its @stage, or add it",
            )
        found[asset] = memo.digest(folder / asset)
    return found


def _accel(stage: Stage, config: StageConfig, memo: Memo) -> Meta:
    accel = stage.accel(config)
    if isinstance(accel.get("versions"), list):
        accel["versions"] = installed_versions(set(accel["versions"]), memo)
    return accel
