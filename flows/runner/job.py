"""The job of a stage, with all that its process needs of the run and its store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trnflow.flows.runner.work_folders import data_folders
from trnflow.tasks.artifact import Input, Source
from trnflow.tasks.config import StageConfig
from trnflow.tasks.documents import KeyDocument
from trnflow.tasks.keys.allowed_files import permit_for
from trnflow.tasks.keys.code_closure import closure
from trnflow.tasks.launch.job import Job
from trnflow.tasks.launch.warm_parents import PARTIAL_ROOT, modules_for
from trnflow.tasks.stage import Stage
from trnflow.tasks.store import Store
from trnflow.tasks.system.process import ATTEMPT


def stage_job(
    store: Store,
    stage: Stage,
    config: StageConfig,
    document: KeyDocument,
    inputs: dict[str, Input | Source],
    out: Path,
    *,
    attempt: str,
    environment: dict[str, str],
    **others: Any,
) -> Job:
    """Return the job that runs a stage. Raises CodeError if code of the stage has changed since its key document.

    environment: further variables of the process, whose values are secret; others: further attributes of the job.
    """
    variables = stage.environ(config) | environment
    return Job.of(
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
        preload=modules_for(closure(stage.function.__module__, store.memo).env, variables),
        **others,
    )
