"""Execute one run of a recipe, from the resolved recipe to the run record, the store's JSON document about the run.

The command line and Prefect both run pipelines through `execute`.
"""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from trnflow.flows.recipes.recipe import Recipe, load, store_root
from trnflow.flows.runner.attempts import PREVIEW
from trnflow.flows.runner.call import Call, Outcome, Stop
from trnflow.flows.runner.devices import devices_of_stages
from trnflow.flows.runner.executor import Listener, filled_environment
from trnflow.flows.runner.parts.part_makers import PartMaker, refuse_task_runners
from trnflow.flows.runner.pipeline import Parent, Pipeline
from trnflow.flows.runner.planning.forecast import dollars
from trnflow.flows.runner.planning.planner import Planner
from trnflow.flows.runner.runner import Runner
from trnflow.flows.runner.work_folders import clean, open_home
from trnflow.tasks.artifact import Artifact, Json, Meta
from trnflow.tasks.errors import BlobLost, Interrupted, ReadOnlyStore, StoreError, TrnflowError, unexpected
from trnflow.tasks.keys.code_closure import closure
from trnflow.tasks.launch.warm_start import modules_for, preload
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.store import Store
from trnflow.tasks.system.clock import now
from trnflow.tasks.system.redaction import scrub, scrubbed

HEALINGS = 10
"""How many times a run may find a missing or corrupt blob and replace it before it fails (the disk may be broken)."""


@dataclass
class Result:
    """The result of a run that ended.

    Attributes:
        run: The run's id.
        recipe: The recipe's name.
        seconds: Duration of the whole run.
        outcomes: What was done with each stage, in the pipeline's order; without the stages that were not reached.
        notes: Sentences to show to the user.
        error: Why the run failed or was cancelled; None if it completed.
        price_per_hour: Price of the hardware in USD per hour; 0 if it has none.
        prefect_lost: Whether Prefect's server stopped answering during the run.
        start: The earlier model that training started from; None if no model was named.
    """

    run: str
    recipe: str
    seconds: float
    outcomes: list[Outcome]
    notes: list[str] = field(default_factory=list)
    error: TrnflowError | None = None
    price_per_hour: float = 0.0
    prefect_lost: bool = False
    start: Artifact | None = None

    @property
    def dollars(self) -> float:
        """Return the cost of the run in USD: its duration times the hourly price of its hardware."""
        return dollars(self.seconds, self.price_per_hour)

    @property
    def outcome(self) -> str:
        """Return `completed`, `failed`, or `cancelled` (by Prefect, Ctrl-C or SIGTERM)."""
        if isinstance(self.error, Interrupted):
            return "cancelled"
        return "failed" if self.error else "completed"

    def to_json(self) -> dict[str, Json]:
        document: dict[str, Json] = {
            "schema": 1,
            "run": self.run,
            "recipe": self.recipe,
            "seconds": round(self.seconds, 3),
            "dollars": round(self.dollars, 4),
            "stages": [_stage_json(outcome) for outcome in self.outcomes],
            "notes": self.notes,
        }
        if self.start is not None:  # what a run's document names is kept by garbage collection
            document["start"] = {"artifact": self.start.digest}
        if self.error is not None:
            document["error"] = {"stage": self.error.stage or None, **self.error.to_json()}
        return document


@dataclass(frozen=True)
class Options:
    """Options of one run that are not part of the recipe.

    Attributes:
        until: The stage after which the run stops; None for the last.
        force: Stages to run even if their artifacts are in the store.
        offline: Whether to make no requests to a model or data hub.
        preview: Whether the run is for `trnflow preview`: its id ends in `-preview`, and the store keeps no run record.
    """

    until: str | None = None
    force: frozenset[str] = frozenset()
    offline: bool = False
    preview: bool = False

    def check(self, pipeline: Pipeline) -> None:
        """Raise ConfigError if `until` or `force` names a stage that the pipeline does not have."""
        for name in (*self.force, *((self.until,) if self.until else ())):
            pipeline.stage(name)


def new_run_id() -> str:
    """Return a new run id, such as `20261120T142233Z-3f9a1c`: the UTC time to the second and random digits. Sorted as
    text, ids are in the order of time, except within a second."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def open_store(recipe: Recipe) -> Store:
    """Return the recipe's store, which need not exist yet and is not created. The home, the folder of local state
    (TRNFLOW_HOME), is created if it is missing.

    Raises:
        ConfigError: The store exists, but is damaged or in a format of another version.
    """
    store = Store(store_root(recipe), open_home())
    store.is_made()
    return store


def open_recipe(name: str, overrides: Iterable[str]) -> tuple[Recipe, Store]:
    """Read and validate a recipe, open its store, which is created if missing, and return both. Raises ConfigError or
    StoreError. name: a recipe in `conf/` or the path of a YAML file; overrides: `section.setting=value` texts."""
    recipe = load(name, overrides)
    store = open_store(recipe)
    store.prepare()
    return recipe, store


def look(recipe: Recipe, store: Store, pipeline: Pipeline, *, offline: bool = True) -> Planner:
    """Plan the pipeline without running a stage, and return the planner. Its attribute `outcomes` is what a run would
    do with each stage.

    offline: whether to make no requests to a model or data hub, and to use its answers cached on this machine.
    """
    planner = Planner(store, resolver_of(recipe, store, offline=offline))
    pipeline.call_stages(recipe, planner)
    store.memo.save()
    return planner


def resolver_of(recipe: Recipe, store: Store, *, offline: bool) -> Resolver:
    """Return the `Resolver` that finds out which exact bytes the paths, URLs and hub names in a recipe stand for.

    offline: whether to make no requests to a model or data hub, and to use its answers cached on this machine."""
    return Resolver(store.home, offline=offline, memo=store.memo, folders=recipe.folders)


def nothing_to_do(recipe: Recipe, store: Store, options: Options, pipeline: Pipeline) -> Result | None:
    """Plan the run; if no stage has to run, write its run record to the store and return its result, else return None.

    Called before `execute`: a run that finds everything in the store then starts neither Prefect nor a runner. None is
    returned, too, if `options.force` names a stage.
    """
    begun = time.monotonic()
    options.check(pipeline)
    if options.force:
        return None
    planner = look(recipe, store, pipeline, offline=options.offline)
    outcomes = _until(list(planner.outcomes.values()), options.until, pipeline)
    if any(outcome.action not in ("hit", "skip") for outcome in outcomes):
        return None
    clean(store)
    notes = [scrub(note) for note in planner.notes]
    result = Result(new_run_id(), recipe.name, time.monotonic() - begun, outcomes, notes, start=planner.start)
    _put_on_record(store, recipe, result, options)
    return result


def execute(
    recipe: Recipe,
    store: Store,
    options: Options,
    pipeline: Pipeline,
    *,
    run: str | None = None,
    listeners: tuple[Listener, ...] = (),
    runner_type: Callable[..., Runner] = Runner,
    part_maker: PartMaker | None = None,
) -> Result:
    """Run those stages of a pipeline whose artifacts are not in the store, and write the run record to the store.

    A TrnflowError and Ctrl-C end the run and are returned in the result's `error`; other exceptions are raised.

    Args:
        options: Where the run stops, which stages are forced, and whether it is offline.
        run: The run's id; None makes a new one.
        listeners: Objects that receive the events of the run.
        runner_type: The class of the runner; `trnflow.flows.deployments` passes `PrefectRunner`.
        part_maker: Makes the parts of stages in other processes; None: each stage's own process makes them.

    Raises:
        ConfigError: `options` names no stage, or the recipe needs a `part_maker`. No run record is written then.
    """
    begun = time.monotonic()
    options.check(pipeline)
    if part_maker is None:
        refuse_task_runners(recipe.task_runner)
    run = run or new_run_id() + PREVIEW * options.preview
    runner = new_runner(recipe, store, options, listeners, kind=runner_type, run=run, part_maker=part_maker)
    result = Result(runner.executor.run, recipe.name, 0.0, [], price_per_hour=recipe.price_per_hour)
    skipped: list[Outcome] = []
    stopped = Interrupted("interrupted", "run the same command again: finished stages hit, training resumes")
    clean(store)
    try:
        planner, parent = _preloaded(recipe, store, options, pipeline)
        pipeline.check(recipe, planner, options.until, parent)
        planned = _until(list(planner.outcomes.values()), options.until, pipeline)
        for listener in listeners:
            listener.planned(planned)
        heal(runner, lambda: pipeline.call_stages(recipe, runner))
        skipped = runner.skipped()
    except TrnflowError as error:
        result.error = scrubbed(error)
    except KeyboardInterrupt:
        result.error = stopped
    except Exception as error:  # an error of this program: on record as one, and raised
        result.error = scrubbed(unexpected(error))
        raise
    except BaseException:  # Prefect's TerminationSignal, raised when a run is cancelled: Prefect's engine acts on it
        result.error = stopped
        raise
    finally:
        result.outcomes = _until([*runner.outcomes.values(), *skipped], options.until, pipeline)
        result.notes, result.start = [scrub(note) for note in runner.notes], runner.start
        result.seconds = time.monotonic() - begun
        store.memo.save()
        _put_on_record(store, recipe, result, options)
    return result


def new_runner(
    recipe: Recipe,
    store: Store,
    options: Options,
    listeners: tuple[Listener, ...],
    *,
    kind: Callable[..., Runner] = Runner,
    run: str | None = None,
    part_maker: PartMaker | None = None,
) -> Runner:
    """Return a runner with the recipe's settings, ready to call stages: those of a pipeline, or single ones.

    kind: the class of the runner; run: the run's id (None makes a new one); listeners: receive the run's events;
    part_maker: makes parts (pieces of a stage's work) in other processes."""
    return kind(
        store, resolver_of(recipe, store, offline=options.offline), run=run or new_run_id(), recipe=recipe.name,
        listeners=listeners, part_maker=part_maker, launch=recipe.launch, min_free_gb=recipe.store.min_free_gb,
        lease_ttl=recipe.store.lease_ttl_seconds, threads=recipe.task_runner.count,
        price_per_hour=recipe.price_per_hour, devices=devices_of_stages(recipe, filled_environment(recipe.launch)),
        until=options.until, force=options.force,
    )  # fmt: skip


def preload_for(recipe: Recipe, store: Store, options: Options, pipeline: Pipeline) -> None:
    """Start the warm parents of a run that is about to begin: processes that import slow libraries, such as torch, and
    from which stages' processes are forked. The imports go on while this process imports Prefect and starts its server.

    A TrnflowError, such as a wrong setting, is ignored here: the run raises the same error later."""
    with contextlib.suppress(TrnflowError):
        _preloaded(recipe, store, options, pipeline)


def _preloaded(
    recipe: Recipe, store: Store, options: Options, pipeline: Pipeline
) -> tuple[Planner, Callable[[Call], Parent]]:
    """Plan a run and start the warm parents of the stages that will run, so that these import slow libraries while the first
    stages run. Return the plan, and the function that names the warm parent of a call."""
    planner = look(recipe, store, pipeline, offline=options.offline)
    parent = partial(_parent_of, filled_environment(recipe.launch), store)
    stages = pipeline.until(options.until)
    due = [call for name, call in planner.calls.items() if planner.outcomes[name].action in ("run", "maybe")]
    with contextlib.suppress(TrnflowError):  # what is wrong is said by the run
        preload(parent(call) for call in due if call.name in stages)
    return planner, parent


def _parent_of(environment: dict[str, str], store: Store, call: Call) -> Parent:
    """Return the warm parent of a call's stage. environment: `launch.environment`, for stages whose code imports
    torch."""
    distributions = closure(call.stage.function.__module__, store.memo)[1]
    variables = call.stage.environ(call.config) | (environment if "torch" in distributions else {})
    return variables, modules_for(distributions, variables)


def _put_on_record(store: Store, recipe: Recipe, result: Result, options: Options) -> None:
    """Write the run record to the store. A preview gets none: garbage collection would keep its results in place of a
    run's.

    If the store is read-only, a note in the result says that the run is not on record. Another error of the store
    becomes the run's error, unless the run failed before."""
    if options.preview:
        return
    try:
        store.write_run(result.run, run_record(recipe, result, options))
    except ReadOnlyStore:
        result.notes.append(f"the store {scrub(store.root)} can only be read: this run is not on record")
    except StoreError as error:
        result.error = result.error or scrubbed(error)


def run_record(recipe: Recipe, result: Result, options: Options) -> Meta:
    """Return the run record, the JSON document that the store keeps of a run. Writes nothing.

    The record has all that is needed to repeat the run except secrets: the recipe with all settings, keys and artifacts
    of the stages, the Python version, the git commit, and the host.
    """
    return {
        **result.to_json(),
        "resolved": recipe.to_json(),
        "until": options.until,
        "force": sorted(options.force),
        "outcome": result.outcome,
        "ended": now(),
        "host": {"name": socket.gethostname(), "python": platform.python_version(), "cores": os.cpu_count()},
        "checkout": checkout_state(),
    }


def checkout_state() -> Meta | None:
    """Return {"commit": the git commit of the code, "dirty": whether tracked files have uncommitted changes}; None
    outside a checkout, or if git can't be run."""
    folder = Path(__file__).parent
    command = ["git", "-C", str(folder), "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return None
    commit = next((line.split()[2] for line in found if line.startswith("# branch.oid")), None)
    return {"commit": commit, "dirty": any(not line.startswith("#") for line in found)}


def artifact_in(run: Meta, stage: str) -> str | None:
    """Return the digest of a stage's artifact in a run, whether the run made the artifact or found it in the store;
    None if the run has none. run: the run record; stage: the stage's name."""
    return next((one.get("artifact") for one in run.get("stages", []) if one["stage"] == stage), None)


def heal(runner: Runner, pipeline: Callable[[], object]) -> None:
    """Run the pipeline; if a blob (a file of the store) turns out missing or corrupt, run the pipeline again from its
    first stage. Stages whose artifacts are undamaged are hits; the stage that made the damaged blob runs again.

    Args:
        runner: The runner that `pipeline` uses. A note about each damaged blob is added to its `notes`.
        pipeline: Calls the stages.

    Raises:
        StoreError: A blob was missing or corrupt 10 times (HEALINGS).
    """
    for _ in range(HEALINGS):
        try:
            pipeline()
            return
        except Stop:
            return
        except BlobLost as error:
            runner.executor.lost.add(error.digest)
            runner.notes.append(f"{error.message}; made anew")
            runner.restart()
    raise StoreError(f"blobs of the store {runner.store.root} keep turning out corrupt", "check the disk it lies on")


def _until(outcomes: list[Outcome], until: str | None, pipeline: Pipeline) -> list[Outcome]:
    """Return the outcomes of the stages up to and including `until`, in the pipeline's order."""
    stages = pipeline.until(until)
    return sorted((one for one in outcomes if one.stage in stages), key=lambda one: stages.index(one.stage))


def _stage_json(outcome: Outcome) -> Meta:
    return {
        "stage": outcome.stage,
        "action": outcome.action,
        "key": outcome.key,
        "artifact": outcome.artifact.digest if outcome.artifact else None,
        "seconds": outcome.seconds,
        "metrics": outcome.metrics,
        "figures": outcome.figures,
        "why": outcome.why,
    }
