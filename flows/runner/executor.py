"""Execute one stage: take its artifact from the store or, under a lease, make the artifact in a process and publish it.

A stage's key is the hash of everything that decides its result. A lease is a file in the store by which one run at a
time makes the result of a key; other runs wait and use that result. To publish an artifact is to write the record (a
document in the store) by which later runs find the artifact. An attempt is one try to run a stage; its journal is a
JSON document in the store with host, times, outcome and error.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from trnflow.flows.recipes.recipe import LaunchConfig
from trnflow.flows.runner.attempts import attempt_id, ending, new_journal, outlook
from trnflow.flows.runner.call import Call, Outcome
from trnflow.flows.runner.devices import take_devices
from trnflow.flows.runner.hits import OnRecord, checked, hit, on_record
from trnflow.flows.runner.job import Job, publish, record_of
from trnflow.flows.runner.parts.part_makers import PartMaker
from trnflow.flows.runner.parts.shards import Shards, listed
from trnflow.flows.runner.progress.metrics_file import Curve
from trnflow.flows.runner.progress.stage_progress import StageProgress
from trnflow.flows.runner.single_flight import maker, single_flight
from trnflow.flows.runner.work_folders import attempt_log, workplace
from trnflow.tasks.artifact import Artifact, Input, Meta, Source
from trnflow.tasks.errors import DataError
from trnflow.tasks.keys.key_document import key_document, key_of
from trnflow.tasks.launch.launcher import Launcher
from trnflow.tasks.store import Store
from trnflow.tasks.store.lease import Lease
from trnflow.tasks.system.clock import now
from trnflow.tasks.system.redaction import fill, know, scrub, scrub_all

Emit = Callable[[Meta], None]


class Listener:
    """Base class for objects that receive the events of a run, such as a progress display. Override the methods you
    need.

    The methods are called in the runner's thread:
    - `retrain_begins`: `trnflow retrain` is about to train; with the reason.
    - `planned`: before the first stage; with the planned outcome of each stage, in order.
    - `stage_started`: a stage is about to be executed; not called for a stage whose artifact is in the store.
    - `waits`: again and again while a stage waits for another run; an error that it raises ends the run.
    - `event`: a running stage reports progress, metrics, figures or a message (see `trnflow.tasks.stage.Workdir`).
    - `stage_ended`, `stage_failed`: with the stage's outcome, or with the error.
    """

    def retrain_begins(self, why: str) -> None: ...
    def planned(self, outcomes: list[Outcome]) -> None: ...
    def stage_started(self, call: Call, key: str) -> None: ...
    def waits(self, stage: str) -> None: ...
    def event(self, stage: str, event: Meta) -> None: ...
    def stage_ended(self, outcome: Outcome) -> None: ...
    def stage_failed(self, stage: str, error: BaseException) -> None: ...


@dataclass
class Executor:
    """Executes the stages of one run: looks up each stage's artifact in the store, and makes and publishes missing
    ones.

    Attributes:
        listeners: Objects that receive the events of the run.
        run: The run's id.
        recipe: The recipe's name, for the journals of attempts.
        launch: Settings of the stages' processes: the recipe's section `launch`.
        min_free_gb: Space that must stay free on the disk, in GB (10^9 bytes); a stage whose output may not fit fails
            before it starts.
        lease_ttl: Seconds without a heartbeat after which another run may take over the lease of a key (the file in the
            store by which only one run makes the key's result).
        part_maker: Makes the parts of stages (pieces of their work) in other processes; None: each stage's own process
            makes them.
        threads: Threads of a stage's process that make its parts.
        devices: {stage: names of the devices that the stage uses alone while it runs, by a lease in the store}; see
            `trnflow.flows.runner.devices`.
        price_per_hour: Price of the hardware in USD per hour; 0 reports no cost.
        force: Stages that are executed even if their artifacts are in the store.
        lost: Digests of blobs (files in the store) that were found missing or corrupt.
        notes: Sentences to show to the user when the run ends.
    """

    store: Store
    run: str
    recipe: str = ""
    listeners: tuple[Listener, ...] = ()
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    min_free_gb: float = 1.0
    lease_ttl: float = 60.0
    part_maker: PartMaker | None = None
    threads: int = 1
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    price_per_hour: float = 0.0
    force: frozenset[str] = frozenset()
    lost: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._environment = filled_environment(self.launch)
        self._launcher = Launcher.kinds[self.launch.kind]()

    # What is on record

    def recorded(self, call: Call) -> Outcome | None:
        """Return the outcome `hit` if the store has a usable artifact of the stage, else None. Also None for a forced
        stage, one that the user asked to run again.

        If the store has a record (the document that names the artifact of a key) but its artifact can't be used, the
        reason is added to `notes`."""
        if call.name in self.force:
            return None
        return self.look(call, self.key(call), self.notes.append)

    def key(self, call: Call) -> str:
        """Return the key of a call's stage: the hash, 64 hexadecimal digits, of everything that decides the stage's
        result. All inputs of the call must be known."""
        return key_of(self._document(call))

    # What is made

    def execute(self, call: Call, before: Iterable[Outcome] = ()) -> Outcome:
        """Run the stage, check that the stage left its inputs unchanged, and publish its artifact.

        If another run makes the same result at the same time, wait for that run and use its artifact: the action of the
        returned outcome is then `hit`, else `ran`. On failure nothing is published, and the store's document about this
        attempt (its journal) contains the error.

        Args:
            before: The outcomes of the stages that this run has finished. Garbage collection keeps their artifacts
            while this stage runs.

        Raises:
            TrnflowError: The error of the stage, or of the store.
        """
        done = [outcome for outcome in before if outcome.artifact]
        return _Execution(self, self.store, call, self._document(call), done).outcome()

    def say(self, call: Call, text: str) -> None:
        """Pass a message for the user about a stage to the listeners (objects that receive the run's events), as an
        `info` event. Does nothing if the text is empty."""
        for listener in self.listeners if text else ():
            listener.event(call.name, {"info": text})

    def heed(self, call: Call) -> None:
        """Call the method `waits` of the listeners (objects that receive the run's events), because a stage waits for
        another run. An error that a listener raises ends the waiting."""
        for listener in self.listeners:
            listener.waits(call.name)

    def job(self, call: Call, document: Meta, inputs: dict[str, Input | Source], attempt: str, log: Path) -> Job:
        """Return the `Job` that runs the stage of a call in a process. `run` of the job starts the process.

        `launch.environment` is passed only to stages whose code imports torch. document: the stage's key document, the
        JSON of everything that decides its result; inputs: by parameter name; attempt: the id of this try to run the
        stage; log: the file for the process's stdout and stderr."""
        environment = self._environment if "torch" in document["env"] else {}  # for stages that train or run models
        grace = self.launch.grace_seconds
        return Job(call.stage, call.config, document, inputs, attempt, log, environment, grace, self._launcher)

    def usable(self, call: Call, record: Meta) -> bool:
        """Return whether the artifact that a record (the store's document about a key's result) names can be used: it
        is of the stage's kind, and none of its blobs (files in the store) is missing or known to be damaged. Reads no
        blob."""
        return on_record(self.store, record, call.stage.kind, self.lost).artifact is not None

    def look(self, call: Call, key: str, note: Callable[[str], None]) -> Outcome | None:
        """Return the outcome `hit` if the store has a record of a key (the document that names the key's artifact) and
        the artifact can be used, else None. Blobs (files in the store) that changed on disk since they were verified
        are hashed again first.

        note: called with the reason, as text for the user, if there is a record whose artifact can't be used.
        """
        record = self.store.record(call.name, key)
        if record is None:
            return None
        found = self._checked(call, on_record(self.store, record, call.stage.kind, self.lost))
        if found.artifact is None:
            note(f"{call.name} is on record, and {found.why}: made anew")
            return None
        return hit(self.store, record, found.artifact)

    def _checked(self, call: Call, found: OnRecord) -> OnRecord:
        if not found.changed:
            return found
        self.say(call, f"{len(found.changed)} of its files changed on disk since they were verified: checking them")
        return checked(self.store, found)

    def _document(self, call: Call) -> Meta:
        return key_document(call.stage, call.config, call.inputs, self.store.memo)


@dataclass
class _Execution:
    """One stage that has to run. `outcome` runs it.

    Attributes:
        terms: The executor, with the settings of the run.
        document: The key document, of which the stage's key is the hash.
        before: The outcomes of the stages that this run has finished; each has an artifact.
        made: The digest of the artifact that this run made, whether or not it was published; None before that.
    """

    terms: Executor
    store: Store
    call: Call
    document: Meta
    before: list[Outcome]
    made: str | None = None

    def __post_init__(self) -> None:
        self.name, self.key = self.call.name, key_of(self.document)
        self.forced = self.name in self.terms.force

    def outcome(self) -> Outcome:
        """Make the artifact under the key's lease, or use the artifact that another run made in the meantime."""
        attempt = attempt_id(self.terms.run, self.name)
        outcome = single_flight(
            lambda: self.store.waiter(self.key, run=self.terms.run, attempt=attempt, ttl=self.terms.lease_ttl),
            made=self._made_meanwhile,
            make=self._make,
            say=partial(self.terms.say, self.call),
            heed=partial(self.terms.heed, self.call),
            take=partial(self._take_devices, attempt),
        )
        if outcome.action == "hit" and outcome.artifact is not None and self.made is not None:
            self._compare(self.made, outcome.artifact.digest)
        return outcome

    def _take_devices(self, attempt: str, held: contextlib.ExitStack) -> Outcome | None:
        """Take the leases of the stage's devices. Return the outcome if another run publishes the artifact meanwhile."""
        terms = self.terms
        return take_devices(
            held, self.store, terms.devices.get(self.name, ()), run=f"{terms.run} of {terms.recipe}",
            attempt=attempt, ttl=terms.lease_ttl, made=partial(self._made_meanwhile, False), say=partial(terms.say, self.call),
            heed=partial(terms.heed, self.call),
        )  # fmt: skip

    def _made_meanwhile(self, superseded: bool) -> Outcome | None:
        """Return the outcome that another run published since this run last looked. A forced stage uses it only if the
        other run took over this run's lease."""
        if self.forced and not superseded:
            return None
        outcome = self.terms.look(self.call, self.key, lambda text: None)
        if outcome is not None:
            outcome.why = f"made meanwhile by {maker(self.store, self.name, self.key)}"
            if superseded:
                self.store.partial(self.key).prune(0)
        return outcome

    def _make(self, lease: Lease) -> Outcome:
        for listener in self.terms.listeners:
            listener.stage_started(self.call, self.key)
        journal = self._new_journal(lease)
        with self._journalled(journal), workplace(self.store.home, journal["attempt"]) as work:
            self.store.check_space(self._expected_bytes(), int(self.terms.min_free_gb * 1e9))
            meta = self._run(work, journal, lease)
            self._check_inputs()
            artifact = self.store.ingest(work / "out", self.call.stage.kind, meta)
            self.terms.lost.difference_update({artifact.digest, *(file.digest for file in artifact.files)})
            journal |= {"artifact": artifact.digest, "bytes": artifact.size}
            self.made = artifact.digest
            lease.check()
        record = self._publish(artifact, journal)
        self.store.partial(self.key).prune(0)
        if record["artifact"] != artifact.digest:
            artifact = self.store.artifact(record["artifact"])
        return Outcome(self.name, "ran", "", self.key, artifact, journal["seconds"], journal["figures"])

    def _new_journal(self, lease: Lease) -> Meta:
        journal = new_journal(self.terms.run, self.name, lease.attempt, self.terms.recipe)
        # garbage collection leaves these alone while the attempt is alive
        journal["holds"] = [{"stage": outcome.stage, "key": outcome.key} for outcome in self.before]
        if self.call.stage.resumable:  # it may leave partial state, which is told apart by what made it
            self.terms.say(self.call, outlook(self.store, self.name, self.key, self.document))
            journal["document"] = self.document
        return journal

    @contextlib.contextmanager
    def _journalled(self, journal: Meta) -> Iterator[None]:
        """Context that writes the attempt's journal when the attempt begins, and again when it ends, also after an
        error."""
        begun = time.monotonic()
        self.store.write_attempt(self.key, journal["attempt"], journal)
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
            self.store.write_attempt(self.key, journal["attempt"], journal)

    def _run(self, work: Path, journal: Meta, lease: Lease) -> Meta:
        """Lay the inputs out below `work`, run the stage there and return its metadata."""
        emit = self._hearing(work, journal, lease)
        inputs = {name: self._lay_out(item, work / "in" / name, emit) for name, item in self._inputs().items()}
        job = self.terms.job(self.call, self.document, inputs, lease.attempt, attempt_log(self.store.home, work.name))
        if self.call.stage.split is None:
            return job.run(self.store, work / "out", emit)
        terms = self.terms
        parts = Shards(self.store, job, journal, work, terms.part_maker, terms.threads, self.forced, terms.notes.append)
        return parts.run(emit)

    def _hearing(self, work: Path, journal: Meta, lease: Lease) -> Emit:
        """Return the function that is called with the stage's events. The function passes them on, and adds their
        figures to the journal."""
        metrics = attempt_log(self.store.home, work.name).with_suffix(".jsonl")
        curve, progress = Curve(metrics, self.name, self.terms.price_per_hour), StageProgress(self.name)

        def emit(event: Meta) -> None:
            lease.heed()  # ends the stage if another run makes it
            event = _scrubbed(curve.priced(event))
            curve.note(event)
            journal["figures"].update(event.get("figures", {}))
            progress.take(event)
            if "progress" in event:
                lease.tell(**progress.counted)
            for listener in self.terms.listeners:
                listener.event(self.name, event)

        return emit

    def _inputs(self) -> dict[str, Any]:
        artifacts = {outcome.stage: outcome.artifact for outcome in self.before}
        return self.call.inputs | {name: artifacts[needed.name] for name, needed in self.call.after.items()}

    def _lay_out(self, item: Any, folder: Path, emit: Emit) -> Input | Source:
        if isinstance(item, Source):
            return item
        unit = f"MB of {folder.name} {'checked' if self.store.is_local else 'pulled'}"

        def progress(done: int, total: int) -> None:
            if total >= 10**6:
                emit({"progress": {"done": done // 10**6, "total": total // 10**6, "unit": unit}})

        return Input(self.store.checkout(item, folder, progress), item.kind, item.meta, item.digest)

    def _check_inputs(self) -> None:
        for name, item in self.call.inputs.items():
            file = self.store.changed(item) if isinstance(item, Artifact) else None
            if file is not None:
                raise DataError(
                    f"{self.name} changed its input {name}: {file.path}",
                    "inputs are read-only: copy what must change; the next run restores the file",
                )

    def _publish(self, artifact: Artifact, journal: Meta) -> Meta:
        """Put the artifact on record, and return the record that counts."""
        shards = listed(self.store, journal)
        record = record_of(self.document, artifact, journal["attempt"], journal["ended"], **shards)
        unusable = (lambda _: True) if self.forced else (lambda published: not self.terms.usable(self.call, published))
        published = publish(self.store, record, artifact, holds=journal["holds"], unusable=unusable)
        self._compare(artifact.digest, published["artifact"])
        return published

    def _compare(self, made: str, published: str) -> None:
        if made != published:
            self.terms.notes.append(
                f"{self.name} is not deterministic: this run made {made[:19]}, "
                f"the record says {published[:19]}; the record counts"
            )

    def _expected_bytes(self) -> int:
        """Return how many bytes the stage may write: twice the size of its input artifacts, a rough guess."""
        return 2 * sum(item.size for item in self.call.inputs.values() if isinstance(item, Artifact))


def filled_environment(launch: LaunchConfig) -> dict[str, str]:
    """Return the variables of `launch.environment`, with each `${NAME}` in a value replaced by the environment variable
    NAME.

    The returned values are treated as secrets from now on: they are removed from logs and messages.

    Raises:
        ConfigError: An environment variable is not set.
    """
    filled = {name: fill(value, f"launch.environment.{name}") for name, value in launch.environment.items()}
    for value in filled.values():
        know(value)
    return filled


def _scrubbed(event: Meta) -> Meta:
    """Return an event with secrets removed from its messages, which may come from a library. Other events are returned
    as they are."""
    return scrub_all(event) if event.keys() & {"warn", "info"} else event
