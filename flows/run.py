"""One run of a recipe, from the resolved recipe to the run record: the same for the command line, Prefect and tests."""

from __future__ import annotations

import os
import platform
import secrets
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from flows.attempts import now
from flows.call import Outcome, Stop
from flows.finetune import STAGES, finetune
from flows.forecast import dollars
from flows.plan import Planner
from flows.settings import Recipe, home_folder, store_root
from flows.stage import Listener, Runner
from flows.workers import Workers, workers_for
from flows.workplace import clean
from tasks.artifact import Json, Meta
from tasks.errors import BlobLost, ConfigError, Interrupted, ReadOnlyStore, StoreError, TrnflowError
from tasks.resolve import Resolver
from tasks.store import Store

HEALINGS = 10
"""How often a run may find a corrupt blob and make it anew before it gives up (it may be the disk)."""


@dataclass
class Result:
    """A finished run. outcomes in the pipeline's order; seconds: of the whole run; price_per_hour: USD, of the hardware."""

    run: str
    recipe: str
    seconds: float
    outcomes: list[Outcome]
    notes: list[str] = field(default_factory=list)
    error: TrnflowError | None = None
    price_per_hour: float = 0.0

    @property
    def dollars(self) -> float:
        """What this run's time cost on its hardware, USD."""
        return dollars(self.seconds, self.price_per_hour)

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
        if self.error is not None:
            document["error"] = {"stage": self.error.stage or None, **self.error.to_json()}
        return document


@dataclass(frozen=True)
class Options:
    """until: stop after this stage; force: stages to run though they hit; offline: never ask a hub."""

    until: str | None = None
    force: frozenset[str] = frozenset()
    offline: bool = False

    def __post_init__(self) -> None:
        for name in (*self.force, *((self.until,) if self.until else ())):
            check_stage(name)


def check_stage(name: str) -> str:
    if name not in STAGES:
        from flows.recipes import nearest

        close = nearest(name, STAGES)
        raise ConfigError(
            f"there is no stage {name}", f"did you mean {close}?" if close else f"stages: {', '.join(STAGES)}"
        )
    return name


def new_run_id() -> str:
    """Sorts by time: `20261120T142233Z-3f9a`."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def open_store(recipe: Recipe) -> Store:
    """The recipe's store, made or not. ConfigError when it is of another format."""
    store = Store(store_root(recipe), home_folder())
    store.is_made()
    return store


def look(recipe: Recipe, store: Store, *, offline: bool = True) -> Planner:
    """What a run would do now."""
    planner = Planner(store, Resolver(store.home, offline=offline, memo=store.memo))
    finetune(recipe, planner)
    store.memo.save()
    return planner


def nothing_to_do(recipe: Recipe, store: Store, options: Options) -> Result | None:
    """The result of a run in which every stage hits, its record written; None when something has to run."""
    begun = time.monotonic()
    if options.force:
        return None
    planner = look(recipe, store, offline=options.offline)
    outcomes = _until(list(planner.outcomes.values()), options.until)
    if any(outcome.action not in ("hit", "skip") for outcome in outcomes):
        return None
    clean(store)
    result = Result(new_run_id(), recipe.name, time.monotonic() - begun, outcomes, planner.notes)
    _put_on_record(store, recipe, result, options)
    return result


def execute(
    recipe: Recipe,
    store: Store,
    options: Options,
    *,
    run: str | None = None,
    listeners: tuple[Listener, ...] = (),
    runner_type: Callable[..., Runner] = Runner,
    workers: Workers | None = None,
) -> Result:
    """Run the pipeline; a failure is in the result, and in the run record, not raised. workers: who makes shards."""
    begun = time.monotonic()
    runner = runner_type(
        store,
        Resolver(store.home, offline=options.offline, memo=store.memo),
        run=run or new_run_id(),
        listeners=listeners,
        launch=recipe.launch,
        min_free_gb=recipe.store.min_free_gb,
        lease_ttl=recipe.store.lease_ttl_seconds,
        workers=workers or workers_for(recipe.task_runner),
        price_per_hour=recipe.price_per_hour,
        until=options.until,
        force=options.force,
    )
    result = Result(runner.run, recipe.name, 0.0, [], price_per_hour=recipe.price_per_hour)
    stopped = Interrupted("interrupted", "run the same command again: finished stages hit, training resumes")
    clean(store)
    try:
        heal(runner, lambda: finetune(recipe, runner))
    except TrnflowError as error:
        result.error = error
    except KeyboardInterrupt:
        result.error = stopped
    except BaseException:  # Prefect's own signals, and what nobody foresaw: on record, and not ours to stop
        result.error = stopped
        raise
    finally:
        skipped = runner.skipped() if result.error is None else []
        result.outcomes = _until([*runner.outcomes.values(), *skipped], options.until)
        result.notes = runner.notes
        result.seconds = time.monotonic() - begun
        store.memo.save()
        _put_on_record(store, recipe, result, options)
    return result


def _put_on_record(store: Store, recipe: Recipe, result: Result, options: Options) -> None:
    """Write the run record. That a store does not take it is the run's failure, unless it failed before, or only hit in a
    store that can only be read."""
    try:
        store.write_run(result.run, run_record(recipe, result, options))
    except ReadOnlyStore:
        result.notes.append(f"the store {store.root} can only be read: this run is not on record")
    except StoreError as error:
        result.error = result.error or error


def run_record(recipe: Recipe, result: Result, options: Options) -> Meta:
    """Enough to do it again: the resolved recipe, keys and artifacts, versions, the checkout, the host."""
    return {
        **result.to_json(),
        "resolved": recipe.to_json(),
        "until": options.until,
        "force": sorted(options.force),
        "outcome": "failed" if result.error else "completed",
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


def heal(runner: Runner, pipeline: Callable[[], object]) -> None:
    """Run the pipeline; when a blob turns out missing or corrupt, make what it belonged to anew."""
    for _ in range(HEALINGS):
        try:
            pipeline()
            return
        except Stop:
            return
        except BlobLost as error:
            runner.lost.add(error.digest)
            runner.notes.append(f"{error.message}; made anew")
            runner.restart()
    raise StoreError(f"blobs of the store {runner.store.root} keep turning out corrupt", "check the disk it lies on")


def _until(outcomes: list[Outcome], until: str | None) -> list[Outcome]:
    outcomes.sort(key=lambda outcome: STAGES.index(outcome.stage))
    return outcomes[: STAGES.index(until) + 1] if until else outcomes


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
