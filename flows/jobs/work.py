"""Run a job on this machine: `trnflow job ROOT#DIGEST`."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import platform
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import cast

from trnflow.flows.jobs.carry import ARCHIVE, CODE, FILE, RECIPE, has_code, unpack_code
from trnflow.flows.jobs.listing import runs_of, stop_file
from trnflow.flows.jobs.order import JobUri, Order, read_order, result_file
from trnflow.flows.jobs.submitted import submissions_of
from trnflow.flows.recipes import recipe as recipes
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.runner.context import RunContext, context_of
from trnflow.flows.runner.graph import Graph
from trnflow.flows.runner.plan import Given, Options
from trnflow.flows.runner.run import Result, run
from trnflow.flows.runner.work_folders import clear_jobs, job_folders, open_home
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import CodeError, ConfigError, Interrupted, MachineError, StoreError, TrnflowError
from trnflow.tasks.events import EventLog, Reader
from trnflow.tasks.platforms.protocol import SECRET
from trnflow.tasks.platforms.sagemaker import secret_values
from trnflow.tasks.store import Store
from trnflow.tasks.system.clock import now
from trnflow.tasks.system.gpus import usable_gpus
from trnflow.tasks.system.redaction import fill_variables, scrubbed

FOLDER_DIGITS = 16
MODELS = ("model/", "tokenizer/")
STOP_SECONDS = 5.0
"""Between two looks at whether the job is to stop."""
CODE_OF = "TRNFLOW_JOB_CODE"
"""The digest of the code with which this process was started again."""


def work(uri: JobUri, graph_of: Callable[[Recipe], Graph], *readers: Reader) -> tuple[Result, bool]:
    """Run what is left of a job, and write its result into the store. Return it, and whether somebody asked the job to stop.

    If the order has another version of this program, this process starts again with it.

    Args:
        graph_of: Returns the graph of the job's recipe.
        readers: Of the run's events.

    Raises:
        ConfigError: There is no such job, or a variable is missing.
        CodeError: The code in the store is not what the order says.
        MachineError: This machine's GPU or driver does not fit.
        StoreError: The store can't be read.
    """
    uri = JobUri(fill_variables(uri.root, "the job's address"), uri.digits)
    store = Store(uri.root, open_home())
    if not store.is_made():
        raise ConfigError(f"there is no store at {uri.root}", "check the address, and that this machine can reach it")
    order = read_order(store, uri)
    _take_code(store, order, uri)
    # not of stages: a job's own process alone reads the secret
    if (secret := os.environ.pop(SECRET, None)) and order["environment"]:
        values = secret_values(secret)
        os.environ |= {name: values[name] for name in order["environment"] if name in values}
    missing = [name for name in order["environment"] if name not in os.environ]
    if missing:
        fix = f"put it into the secret {secret}" if secret else f"export {missing[0]}=..."
        raise ConfigError(f"job {uri.id}: the variable {missing[0]} is not set here", fix)
    context = _context(store, order, uri).for_run(EventLog(*readers))
    trains = "train" not in [given["stage"] for given in order["given"]]
    if trains and context.recipe.train.device == "cuda" and (why := usable_gpus().why):
        raise MachineError(f"the job trains on a GPU, and this machine can't: {why}", "choose another machine or image")
    context.notes += other_libraries(order["libraries"])
    what = Options(order["until"], frozenset(order["force"]) - _forced(store, uri))
    _begin(store, uri, context)
    try:
        with stops_when_asked(store, uri.id, context.run) as asked:
            result = run(graph_of(context.recipe), context, what)
    except TrnflowError as error:
        result = Result(context.run, error=scrubbed(error))
    _end(store, uri, result)
    # one that was stopped starts again; this process may still import modules from there
    if asked.is_set() or not isinstance(result.error, Interrupted):
        atexit.register(clear_jobs, store.home, is_over=True)
    return result, asked.is_set()


def _forced(store: Store, uri: JobUri) -> set[str]:
    """Return the stages that an earlier run of the job ran since it was submitted: each is forced once."""
    submitted = submissions_of(store, uri.id)
    earlier = submitted[-1]["earlier"] if submitted else ()
    records = (store.run(run) or {} for run in runs_of(store, uri.id) if run not in earlier)
    return {stage["stage"] for record in records for stage in record.get("stages", ()) if stage["action"] == "ran"}


@contextlib.contextmanager
def stops_when_asked(store: Store, job: str, run: str) -> Iterator[threading.Event]:
    """Context in which this process gets SIGTERM once the store has the job's stop file; yields whether it had."""
    ended, asked = threading.Event(), threading.Event()

    def look() -> None:
        while not ended.wait(STOP_SECONDS):
            with contextlib.suppress(StoreError):
                if store.backend.size(stop_file(job, run)) is not None:
                    asked.set()
                    os.kill(os.getpid(), signal.SIGTERM)
                    return

    threading.Thread(target=look, name=f"stop of job {job}", daemon=True).start()
    try:
        yield asked
    finally:
        ended.set()


def _context(store: Store, order: Order, uri: JobUri) -> RunContext:
    folder = _laid_out(store, order["recipe"]["artifact"], RECIPE)
    context = context_of(recipes.load(str(folder / FILE)), store)
    context.given = {each["stage"]: Given(store.artifact(each["artifact"]), each["key"]) for each in order["given"]}
    return context


def _laid_out(store: Store, digest: str, kind: str) -> Path:
    """Return a folder with an artifact's files, models' as links. Raises CodeError for another kind."""
    artifact = store.artifact(digest)
    if artifact.kind != kind:
        raise CodeError(f"{digest[:19]} in the store is no {kind}: {artifact.kind}", "order the job anew")
    with job_folders(store.home) as base:
        folder = base / digest.removeprefix("sha256:")[:FOLDER_DIGITS]
        if folder.exists():
            return folder
        # whole or not there, also if this process is killed
        aside = folder.with_name(f"{folder.name}.{os.getpid()}")
        shutil.rmtree(aside, ignore_errors=True)
        weights = [file for file in artifact.files if file.path.startswith(MODELS)]
        store.copy_files(replace(artifact, files=tuple(file for file in artifact.files if file not in weights)), aside)
        store.link_files(replace(artifact, files=tuple(weights)), aside)
        if kind == CODE:
            unpack_code(aside / ARCHIVE, aside)
        aside.rename(folder)
        return folder


def _take_code(store: Store, order: Order, uri: JobUri) -> None:
    """Start this process again with the order's code, unless it has it."""
    wanted = order["code"]["artifact"]
    if wanted == os.environ.get(CODE_OF) or has_code(store.artifact(wanted)):
        return
    paths = filter(None, [str(_laid_out(store, wanted, CODE)), os.environ.get("PYTHONPATH")])
    environ = os.environ | {CODE_OF: wanted, "PYTHONPATH": os.pathsep.join(paths)}
    sys.stderr.write(f"job {uri.id}: starts again with the code of its order\n")
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, "-P", "-m", "trnflow", "job", str(uri)], environ)


def other_libraries(wanted: Mapping[str, str]) -> list[str]:
    """Return a note of the libraries whose versions here are not those of the order; none if all are equal."""
    here = {name: _version(name) for name in wanted}
    other = [f"{name} {wanted[name]} there, {here[name]} here" for name in sorted(wanted) if here[name] != wanted[name]]
    return [f"libraries differ from those of the order: {', '.join(other)}"] if other else []


def _version(name: str) -> str:
    if name == "python":
        return ".".join(platform.python_version_tuple()[:2])
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"


def _begin(store: Store, uri: JobUri, context: RunContext) -> None:
    document = {"run": context.run, "host": socket.gethostname(), "begun": now()}
    store.backend.create(f"jobs/{uri.id}/runs/{context.run}", json.dumps(document).encode())


def _end(store: Store, uri: JobUri, result: Result) -> None:
    outcome = "completed" if result.error is None else "stopped" if isinstance(result.error, Interrupted) else "failed"
    stages = [cast(Meta, step.outcome()) for step in result.steps]
    document = {
        "run": result.run, "outcome": outcome, "stages": stages, "notes": result.notes, "ended": now(),
        "error": None if result.error is None else result.error.placed(),
    }  # fmt: skip
    store.backend.replace(result_file(uri.id), json.dumps(document).encode())
