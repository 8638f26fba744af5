"""The call of a stage, with all that its process needs of the run and its store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trnflow.flows.runner.work_folders import data_folders
from trnflow.tasks.artifact import Input, Source
from trnflow.tasks.config import StageConfig
from trnflow.tasks.documents import KeyDocument
from trnflow.tasks.keys.allowed_files import permit_for
from trnflow.tasks.keys.code_closure import closure
from trnflow.tasks.keys.hash_cache import Memo
from trnflow.tasks.launch.call import Call
from trnflow.tasks.launch.warm_parents import PARTIAL_ROOT, modules_for
from trnflow.tasks.stage import Stage
from trnflow.tasks.store import Store
from trnflow.tasks.system.process import ATTEMPT

Parent = tuple[dict[str, str], tuple[str, ...]]
"""(environment variables, modules to import) of a warm parent."""


def process_of(
    stage: Stage, config: StageConfig, memo: Memo, environment: dict[str, str], *, torch_xla: bool = True
) -> Parent:
    """Return the variables of a stage's process, and the modules that its warm parent imports.

    environment: further variables; torch_xla: whether the run uses it.
    """
    libraries = {*closure(stage.function.__module__, memo).env}
    if getattr(config, "lora", None) is None:
        libraries -= {"peft"}  # its import takes 1.3 s, and only LoRA asks for it
    variables = stage.environ(config)
    if "PJRT_DEVICE" in variables and not torch_xla:
        variables |= {"USE_TORCH_XLA": "0"}  # transformers imports it where it can, for 2 s
    variables |= environment
    return variables, modules_for(libraries, variables)


def stage_call(
    store: Store,
    stage: Stage,
    config: StageConfig,
    document: KeyDocument,
    inputs: dict[str, Input | Source],
    out: Path,
    *,
    attempt: str,
    environment: dict[str, str],
    torch_xla: bool = True,
    **others: Any,
) -> Call:
    """Return the call that runs a stage. Raises CodeError if code of the stage has changed since its key document.

    environment: further variables of the process, whose values are secret; torch_xla: as for `process_of`; others: further
    attributes of the call.
    """
    variables, modules = process_of(stage, config, store.memo, environment, torch_xla=torch_xla)
    return Call.of(
        stage.function,
        config,
        inputs,
        out,
        document=document,
        attempt=attempt,
        root=str(Path(store.root).absolute()) if store.is_local and "://" not in store.root else store.root,
        home=str(store.home.absolute()),
        environ=variables | {ATTEMPT: attempt, PARTIAL_ROOT: store.root},
        secret=tuple(environment),
        permit=permit_for(stage, document["code"], inputs.values(), data_folders(store), store.memo),
        ranks=stage.ranks(config),
        preload=modules,
        **others,
    )
