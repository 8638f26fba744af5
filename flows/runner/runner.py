"""Run stages: look up a stage's key in the store and, if there is no usable record, run the stage and publish its artifact.

`Runner` calls the stages of a pipeline in order; the code of each runs in processes of its own. `flows.deployments`
overrides `settle` to show each stage as a Prefect task. Listeners receive events: the progress display, MLflow.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from flows.recipes.recipe import LaunchConfig
from flows.runner.attempts import attempt_id, ending, new_journal, now
from flows.runner.call import Call, Function, Outcome, Stop, Value, bind
from flows.runner.hits import OnRecord, checked, hit, on_record
from flows.runner.inputs import Inputs
from flows.runner.job import Job, record_of
from flows.runner.metrics_file import Curve
from flows.runner.parts.part_makers import PartMaker
from flows.runner.parts.shards import Shards, listed
from flows.runner.resumable import outlook
from flows.runner.single_flight import maker, single_flight
from flows.runner.work_folders import attempt_log, workplace
from tasks.artifact import Artifact, Input, Meta, Source
from tasks.config import StageConfig
from tasks.errors import DataError, TrnflowError
from tasks.keys.key_document import key_document, key_of
from tasks.sources.resolver import Resolver
from tasks.store import Store
from tasks.store.lease import Lease
from tasks.system.redaction import fill, know, scrub, scrub_all

Emit = Callable[[Meta], None]


class Listener:
    """Base class for objects that receive the events of a run. Override the methods you need.

    They are called in the runner's thread.
    """

    def stage_started(self, call: Call, key: str) -> None: ...
    def event(self, stage: str, event: Meta) -> None: ...
    def stage_ended(self, outcome: Outcome) -> None: ...
    def stage_failed(self, stage: str, error: BaseException) -> None: ...


class Runner(Inputs):
    """Runs the stages of a pipeline against a store. One object serves one run.

    Args:
        run: The run's id.
        launch: Settings of the stages' processes.
        min_free_gb: Space that must stay free on the disk, in GB; a stage whose output may not fit fails before it starts.
        lease_ttl: Time to live of the lease on a key that is being made, in seconds.
        part_maker: Makes the parts of stages in other processes; None: each stage's own process makes them.
        threads: Threads of a stage's process that make its parts.
        price_per_hour: Price of the hardware in USD; 0 reports no cost.
        until: The stage after which the pipeline stops; None for the last.
        force: Stages that run even if their artifacts are in the store.

    Attributes:
        outcomes: The outcomes of the finished stages, by name.
        lost: Digests of blobs that were found missing or corrupt.
    """

    def __init__(
        self,
        store: Store,
        resolver: Resolver,
        *,
        run: str,
        listeners: tuple[Listener, ...] = (),
        launch: LaunchConfig | None = None,
        min_free_gb: float = 1.0,
        lease_ttl: float = 60.0,
        part_maker: PartMaker | None = None,
        threads: int = 1,
        price_per_hour: float = 0.0,
        until: str | None = None,
        force: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(store, resolver)
        self.run = run
        self.listeners = listeners
        self.launch = launch or LaunchConfig()
        self._environment = filled_environment(self.launch)
        self.outcomes: dict[str, Outcome] = {}
        self.lost: set[str] = set()
        self._reserve = int(min_free_gb * 1e9)
        self._lease_ttl = lease_ttl
        self._part_maker = part_maker
        self._threads = threads
        self._price_per_hour = price_per_hour
        self._until = until
        self._force = force
        self._deferred: list[Call] = []

    # What a pipeline is written against (flows.runner.call.Stages)

    def __call__(
        self, function: Function, config: StageConfig, *inputs: Value | None, after: Call | None = None
    ) -> Artifact:
        call = bind(function, config, inputs, after)
        outcome = self._recorded(call)
        if outcome is None:
            for needed in call.after.values():
                self._settle_deferred(needed)
        return self._finish(call, outcome)

    def later(self, function: Function, config: StageConfig, *inputs: Value) -> Call:
        """Register a stage that runs only if another stage needs it, and return its call.

        The pipeline passes the call as `after` to the stage that needs it. If the run is to stop after the registered stage
        (`until`), it runs at once.
        """
        call = bind(function, config, inputs)
        self._deferred.append(call)
        if self._until == call.name:
            self._settle_deferred(call)
        return call

    # The steps

    def settle(self, call: Call, outcome: Outcome | None) -> Outcome:
        """Return the recorded outcome, or run the stage if `outcome` is None.

        `PrefectRunner` overrides this method to do the same in a Prefect task.
        """
        return outcome or self.execute(call)

    def execute(self, call: Call) -> Outcome:
        """Run the stage, check that it left its inputs unchanged, and publish its artifact.

        If another run makes the same key at the same time, wait for that run and use its artifact. On failure nothing is
        published, and the attempt's journal in the store holds the error.
        """
        document = key_document(call.stage, call.config, call.inputs, self.store.memo)
        key = key_of(document)
        mine: list[str] = []
        outcome = single_flight(
            lambda: self.store.waiter(key, run=self.run, attempt=attempt_id(self.run, call.name), ttl=self._lease_ttl),
            made=partial(self._made_meanwhile, call, key),
            make=partial(self._make, call, key, document, mine),
            say=partial(self._say, call),
        )
        if outcome.action == "hit" and outcome.artifact is not None:
            for digest in mine:
                self._compare(call.name, digest, outcome.artifact.digest)
        return outcome

    def _make(self, call: Call, key: str, document: Meta, mine: list[str], lease: Lease) -> Outcome:
        """mine: gets the digest of what this run made, published or not."""
        for listener in self.listeners:
            listener.stage_started(call, key)
        journal = new_journal(self.run, call.name, lease.attempt)
        if call.stage.resumable:  # it may leave partial state, which is told apart by what made it
            self._say(call, outlook(self.store, call.name, key, document))
            journal["document"] = document
        with self._journalled(call, key, journal), workplace(self.store.home, journal["attempt"]) as work:
            self.store.check_space(self._expected_bytes(call), self._reserve)
            meta = self._perform(call, document, work, journal, lease)
            self._check_inputs(call)
            artifact = self.store.ingest(work / "out", call.stage.kind, meta)
            journal |= {"artifact": artifact.digest, "bytes": artifact.size}
            mine.append(artifact.digest)
            lease.check()
        record = self._publish(call, document, artifact, journal)
        self.store.partial(key).prune(0)
        if record["artifact"] != artifact.digest:
            artifact = self.store.artifact(record["artifact"])
        return Outcome(call.name, "ran", "", key, artifact, journal["seconds"], journal["figures"])

    def _made_meanwhile(self, call: Call, key: str, superseded: bool) -> Outcome | None:
        """What another run published since this one looked. A forced stage takes it only from a run that took over from it."""
        if call.name in self._force and not superseded:
            return None
        outcome = self._look(call, key, lambda text: None)
        if outcome is not None:
            outcome.why = f"made meanwhile by {maker(self.store, call.name, key)}"
            if superseded:
                self.store.partial(key).prune(0)
        return outcome

    def _say(self, call: Call, text: str) -> None:
        for listener in self.listeners if text else ():
            listener.event(call.name, {"info": text})

    def restart(self) -> None:
        """Clear all outcomes, so that the pipeline can be run again from its first stage after a blob was lost.

        Forced stages that already ran are not forced again.
        """
        self._force -= self.outcomes.keys()
        self.outcomes.clear()
        self._deferred.clear()

    def skipped(self) -> list[Outcome]:
        """Return the outcomes of the stages registered by `later` that did not run.

        The action is `hit` if the store has the stage's artifact, else `skip`.
        """
        return [
            self._recorded(call) or Outcome(call.name, "skip", "what it is for did not run", self._key(call), None, 0.0)
            for call in self._deferred
            if call.name not in self.outcomes
        ]

    def _recorded(self, call: Call) -> Outcome | None:
        """The outcome on record, if its bytes are still there; if they are not, a note says which."""
        if call.name in self._force:
            return None
        return self._look(call, self._key(call), self.notes.append)

    def _look(self, call: Call, key: str, note: Callable[[str], None]) -> Outcome | None:
        """What is on record for a key. note: hears why that can't be used, if anything is."""
        record = self.store.record(call.name, key)
        if record is None:
            return None
        found = self._checked(call, on_record(self.store, record, call.stage.kind, self.lost))
        if found.artifact is None:
            note(f"{call.name} is on record, and {found.why}: made anew")
            return None
        return hit(self.store, record, found.artifact)

    def _checked(self, call: Call, found: OnRecord) -> OnRecord:
        """A hit is not believed before what changed on disk was read again."""
        if not found.changed:
            return found
        self._say(call, f"{len(found.changed)} of its files changed on disk since they were verified: checking them")
        return checked(self.store, found)

    def _settle_deferred(self, call: Call) -> None:
        self._finish(call, self._recorded(call))

    def _finish(self, call: Call, recorded: Outcome | None) -> Artifact:
        try:
            outcome = self.settle(call, recorded)
        except BaseException as error:
            if isinstance(error, TrnflowError) and not error.stage:
                error.stage = call.name
            for listener in self.listeners:
                listener.stage_failed(call.name, error)
            raise
        self.outcomes[call.name] = outcome
        for listener in self.listeners:
            listener.stage_ended(outcome)
        if self._until == call.name:
            raise Stop
        assert outcome.artifact is not None
        return outcome.artifact

    def _key(self, call: Call) -> str:
        return key_of(key_document(call.stage, call.config, call.inputs, self.store.memo))

    def _perform(self, call: Call, document: Meta, work: Path, journal: Meta, lease: Lease) -> Meta:
        """Run the stage's function on its inputs laid out below `work`; the journal collects what it says of this run."""

        curve = Curve(attempt_log(self.store.home, work.name).with_suffix(".jsonl"), call.name, self._price_per_hour)

        def emit(event: Meta) -> None:
            lease.heed()  # ends the stage: another makes it
            event = _scrubbed(curve.priced(event))
            curve.note(event)
            journal["figures"].update(event.get("figures", {}))
            for listener in self.listeners:
                listener.event(call.name, event)

        needed = {name: self.outcomes[earlier.name].artifact for name, earlier in call.after.items()}
        inputs = {name: self._lay_out(item, work / "in" / name, emit) for name, item in (call.inputs | needed).items()}
        log, grace = attempt_log(self.store.home, work.name), self.launch.grace_seconds
        environment = (
            self._environment if "torch" in document["env"] else {}
        )  # it is for stages that train or run models
        job = Job(call.stage, call.config, document, inputs, lease.attempt, log, environment, grace)
        if call.stage.split is None:
            return job.run(self.store, work / "out", emit)
        force = call.name in self._force
        return Shards(self.store, job, journal, work, self._part_maker, self._threads, force, self.notes.append).run(
            emit
        )

    def _lay_out(self, item: Any, folder: Path, emit: Emit) -> Input | Source:
        if isinstance(item, Source):
            return item
        unit = f"MB of {folder.name} {'checked' if self.store.is_local else 'pulled'}"

        def told(done: int, total: int) -> None:
            if total >= 10**6:
                emit({"progress": {"done": done // 10**6, "total": total // 10**6, "unit": unit}})

        return Input(self.store.checkout(item, folder, told), item.kind, item.meta, item.digest)

    def _check_inputs(self, call: Call) -> None:
        for name, item in call.inputs.items():
            file = self.store.changed(item) if isinstance(item, Artifact) else None
            if file is not None:
                raise DataError(
                    f"{call.name} changed its input {name}: {file.path}",
                    "inputs are read-only: copy what must change; the next run restores the file",
                )

    def _publish(self, call: Call, document: Meta, artifact: Artifact, journal: Meta) -> Meta:
        self.store.secure(journal["holds"], artifact)
        record = record_of(document, artifact, journal["attempt"], journal["ended"], **listed(self.store, journal))
        published = self.store.publish(record)
        if published["artifact"] == artifact.digest:
            return published
        if call.name in self._force or on_record(self.store, published, call.stage.kind, self.lost).artifact is None:
            return self.store.publish(record, replace=True)
        self._compare(call.name, artifact.digest, published["artifact"])
        return published

    def _compare(self, stage: str, made: str, published: str) -> None:
        if made != published:
            self.notes.append(
                f"{stage} is not deterministic: this run made {made[:19]}, "
                f"the record says {published[:19]}; the record counts"
            )

    def _expected_bytes(self, call: Call) -> int:
        """Twice the size of the stage's inputs, for want of a better guess."""
        return 2 * sum(item.size for item in call.inputs.values() if isinstance(item, Artifact))

    @contextlib.contextmanager
    def _journalled(self, call: Call, key: str, journal: Meta) -> Iterator[None]:
        """Write the attempt when it begins and when it ends, however it ends."""
        begun = time.monotonic()
        # what the run has come by so far is not collected while the attempt is alive
        made = [outcome for outcome in self.outcomes.values() if outcome.artifact]
        journal["holds"] = [{"stage": outcome.stage, "key": outcome.key} for outcome in made]
        self.store.write_attempt(key, journal["attempt"], journal)
        try:
            self.store.secure(journal["holds"])
            yield
            journal["outcome"] = "completed"
        except BaseException as error:
            journal["outcome"] = ending(error)
            journal["error"] = {"type": type(error).__name__, "message": scrub(str(error))}
            raise
        finally:
            journal |= {"ended": now(), "seconds": round(time.monotonic() - begun, 3)}
            self.store.write_attempt(key, journal["attempt"], journal)


def filled_environment(launch: LaunchConfig) -> dict[str, str]:
    """Return the variables of `launch.environment` with the environment variables they refer to filled in.

    Their values are treated as secrets from now on: they are removed from logs and messages.
    """
    filled = {name: fill(value, f"launch.environment.{name}") for name, value in launch.environment.items()}
    for value in filled.values():
        know(value)
    return filled


def _scrubbed(event: Meta) -> Meta:
    """What a stage says in words may come from a library, and hold a secret."""
    return scrub_all(event) if event.keys() & {"warn", "info"} else event
