"""Execute one run of a recipe, from the resolved recipe to the run record.

The command line, Prefect and tests all run pipelines through `execute`.
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

from flows.recipes.recipe import Recipe, load, store_root
from flows.runner.attempts import PREVIEW
from flows.runner.call import Call, Outcome, Stop
from flows.runner.devices import devices_of_stages
from flows.runner.executor import Listener, filled_environment
from flows.runner.parts.part_makers import PartMaker, refuse_task_runners
from flows.runner.pipeline import Parent, Pipeline
from flows.runner.planning.forecast import dollars
from flows.runner.planning.planner import Planner
from flows.runner.runner import Runner
from flows.runner.work_folders import clean, open_home
from tasks.artifact import Artifact, Json, Meta
from tasks.errors import BlobLost, Interrupted, ReadOnlyStore, StoreError, TrnflowError, unexpected
from tasks.keys.code_closure import closure
from tasks.launch.warm_start import modules_for, preload
from tasks.sources.resolver import Resolver
from tasks.store import Store
from tasks.system.clock import now
from tasks.system.redaction import scrub, scrubbed

HEALINGS = 10
"""How many times a run may find a missing or corrupt blob and replace it before it fails (the disk may be broken)."""


@dataclass
class Result:
    """The result of a run that ended.

    Attributes:
        run: The run's id.
        recipe: The recipe's name.
        seconds: Duration of the whole run.
        outcomes: One for each stage, in the pipeline's order.
        notes: Sentences to show to the user.
        error: Why the run failed or was cancelled; None if it completed.
        price_per_hour: Price of the hardware in USD.
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
        """Return the cost of the run in USD: its seconds at the price of its hardware."""
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
        preview: Whether the run only shows rows. Its id then ends in PREVIEW, and the store keeps no record of the run.
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
    """Return a new run id, such as `20261120T142233Z-3f9a1c`. Ids sort by time, to the second."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def open_store(recipe: Recipe) -> Store:
    """Return the recipe's store, which need not exist yet.

    Raises:
        ConfigError: The store exists, in a format of another version.
    """
    store = Store(store_root(recipe), open_home())
    store.is_made()
    return store


def open_recipe(name: str, overrides: Iterable[str]) -> tuple[Recipe, Store]:
    """Read a recipe as `flows.recipes.recipe.load` does, and open its store, which is created if there is none yet."""
    recipe = load(name, overrides)
    store = open_store(recipe)
    store.prepare()
    return recipe, store


def look(recipe: Recipe, store: Store, pipeline: Pipeline, *, offline: bool = True) -> Planner:
    """Plan the pipeline without running a stage, and return the planner, which holds what a run would do with each stage.

    offline: make no requests to a model or data hub.
    """
    planner = Planner(store, resolver_of(recipe, store, offline=offline))
    pipeline.call_stages(recipe, planner)
    store.memo.save()
    return planner


def resolver_of(recipe: Recipe, store: Store, *, offline: bool) -> Resolver:
    """Return what finds the sources of a recipe. offline: make no requests to a model or data hub."""
    return Resolver(store.home, offline=offline, memo=store.memo, folders=recipe.folders)


def nothing_to_do(recipe: Recipe, store: Store, options: Options, pipeline: Pipeline) -> Result | None:
    """Return the result of a run in which no stage has to run, after writing its run record; None if some stage has to run.

    Called before `execute`, to save the start of Prefect and of a runner.
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
    """Run the pipeline and write the run record.

    A TrnflowError, or Ctrl-C, is returned in the result; any other exception is recorded there and raised, too.

    Args:
        run: The run's id; None makes a new one.
        listeners: Called at each event of the run.
        runner_type: Makes the runner; Prefect passes its own.
        part_maker: Makes the parts of stages in other processes; None: each stage's own process makes them.
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
    """Return a runner with the recipe's settings, for the stages of `execute` or a few others. The arguments are as for
    `execute`."""
    return kind(
        store, resolver_of(recipe, store, offline=options.offline), run=run or new_run_id(), recipe=recipe.name,
        listeners=listeners, part_maker=part_maker, launch=recipe.launch, min_free_gb=recipe.store.min_free_gb,
        lease_ttl=recipe.store.lease_ttl_seconds, threads=recipe.task_runner.count,
        price_per_hour=recipe.price_per_hour, devices=devices_of_stages(recipe, filled_environment(recipe.launch)),
        until=options.until, force=options.force,
    )  # fmt: skip


def preload_for(recipe: Recipe, store: Store, options: Options, pipeline: Pipeline) -> None:
    """Start the warm parents of a run that is about to begin, so that they import while Prefect is imported and its server
    starts. What is wrong with the recipe is ignored here: the run raises the same error later."""
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
    """The warm parent of a call's stage. environment: `launch.environment`."""
    distributions = closure(call.stage.function.__module__, store.memo)[1]
    variables = call.stage.environ(call.config) | (environment if "torch" in distributions else {})
    return variables, modules_for(distributions, variables)


def _put_on_record(store: Store, recipe: Recipe, result: Result, options: Options) -> None:
    """Write the run record. That a store does not take it is the run's failure, unless it failed before, or only hit in a
    store that can only be read. A preview is not put on record: garbage collection would keep it in place of a run."""
    if options.preview:
        return
    try:
        store.write_run(result.run, run_record(recipe, result, options))
    except ReadOnlyStore:
        result.notes.append(f"the store {scrub(store.root)} can only be read: this run is not on record")
    except StoreError as error:
        result.error = result.error or scrubbed(error)


def run_record(recipe: Recipe, result: Result, options: Options) -> Meta:
    """Build the JSON document that the store keeps of a run.

    It has all that is needed to repeat the run except secrets: the resolved recipe, keys and artifacts of the stages, the
    Python version, the git commit, and the host.
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
    """The git commit of the code and whether the tree was dirty; None outside a checkout."""
    folder = Path(__file__).parent
    command = ["git", "-C", str(folder), "status", "--porcelain=v2", "--branch", "--untracked-files=no"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return None
    commit = next((line.split()[2] for line in found if line.startswith("# branch.oid")), None)
    return {"commit": commit, "dirty": any(not line.startswith("#") for line in found)}


def artifact_in(run: Meta, stage: str) -> str | None:
    """Return the digest of the artifact that a run made or used of a stage; None if there is none. run: its record."""
    return next((one.get("artifact") for one in run.get("stages", []) if one["stage"] == stage), None)


def heal(runner: Runner, pipeline: Callable[[], object]) -> None:
    """Run the pipeline; if a blob of the store turns out missing or corrupt, run the pipeline again to replace it.

    Raises:
        StoreError: A blob was missing or corrupt HEALINGS times.
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
    """Those of the stages up to `until`, in the pipeline's order."""
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
