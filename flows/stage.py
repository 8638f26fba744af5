"""The stage runner: key -> hit? -> run -> verify -> commit.

`Runner` runs a pipeline's stages in order in this process (training in processes of their own); `flows.orchestrate` shows the
same steps to Prefect by overriding `settle`. Listeners hear what happens: progress bars, MLflow, artifacts.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from flows.attempts import attempt_id, ending, new_journal, now
from flows.call import Call, Function, Outcome, Stop, Value, bind
from flows.curve import Curve
from flows.damage import usable
from flows.earlier import earlier_model
from flows.flight import maker, single_flight
from flows.settings import LaunchConfig
from flows.shards import Shards, listed
from flows.unfinished import outlook
from flows.workers import Threads, Workers
from flows.workplace import data_folders, workplace
from tasks.artifact import Artifact, Input, Meta, Source
from tasks.config import StageConfig
from tasks.errors import DataError, TrnflowError
from tasks.fingerprint import key_document, key_of
from tasks.proof import note_loaded, permit_for
from tasks.resolve import Resolver
from tasks.stage import Workdir
from tasks.store import Store
from tasks.store.lease import Lease
from tasks.store.process import ATTEMPT
from tasks.witness import Permit, unwatched, watch

Emit = Callable[[Meta], None]

KEPT_LOGS = 200


class Listener:
    """Hears a run; override what matters. Called in the runner's thread."""

    def stage_started(self, call: Call, key: str) -> None: ...
    def event(self, stage: str, event: Meta) -> None: ...
    def stage_ended(self, outcome: Outcome) -> None: ...
    def stage_failed(self, stage: str, error: BaseException) -> None: ...


class Runner:
    """Runs stages against a store. price_per_hour: USD, of where they run; until: the stage after which the pipeline stops;
    force: stages that run though they hit."""

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
        workers: Workers | None = None,
        price_per_hour: float = 0.0,
        until: str | None = None,
        force: frozenset[str] = frozenset(),
    ) -> None:
        self.store = store
        self.resolver = resolver
        self.run = run
        self.listeners = listeners
        self.launch = launch or LaunchConfig()
        self.outcomes: dict[str, Outcome] = {}
        self.lost: set[str] = set()
        self.notes: list[str] = []
        note_loaded(store.memo)
        self._reserve = int(min_free_gb * 1e9)
        self._lease_ttl = lease_ttl
        self._workers = workers or Threads(1)
        self._price_per_hour = price_per_hour
        self._until = until
        self._force = force
        self._deferred: list[Call] = []

    # What a pipeline is written against (flows.call.Stages)

    def resolve(self, find: Callable[[Any, Resolver], Source], config: StageConfig) -> Source:
        source = find(config, self.resolver)
        if source.note:
            self.notes.append(f"{source.kind}: {source.note}")
        return source

    def earlier(self, text: str | None, setting: str) -> Artifact | None:
        return None if text is None else earlier_model(self.store, text, setting)

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
        """A stage that runs only when one that comes after it runs."""
        call = bind(function, config, inputs)
        self._deferred.append(call)
        if self._until == call.name:
            self._settle_deferred(call)
        return call

    # The steps

    def settle(self, call: Call, outcome: Outcome | None) -> Outcome:
        """The outcome of a call: the recorded one, or that of running it. Prefect's seam."""
        return outcome or self.execute(call)

    def execute(self, call: Call) -> Outcome:
        """Run the stage, verify, commit; or, when another run makes the same key meanwhile, adopt what that one made.

        On failure the attempt says why and nothing is published.
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
        if call.stage.process:  # it may leave partial state, which is told apart by what made it
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
        record = self._publish(call, key, document, artifact, journal)
        self.store.partial(key).prune(0)
        if record["artifact"] != artifact.digest:
            artifact = self.store.artifact(record["artifact"])
        return Outcome(call.name, "ran", "", key, artifact, journal["seconds"], journal["figures"])

    def _made_meanwhile(self, call: Call, key: str, superseded: bool) -> Outcome | None:
        """What another run published since this one looked. A forced stage takes it only from a run that took over from it."""
        if call.name in self._force and not superseded:
            return None
        outcome = recorded(self.store, call, key, self.lost)
        if outcome is not None:
            outcome.why = f"made meanwhile by {maker(self.store, call.name, key)}"
            if superseded:
                self.store.partial(key).prune(0)
        return outcome

    def _say(self, call: Call, text: str) -> None:
        for listener in self.listeners if text else ():
            listener.event(call.name, {"info": text})

    def restart(self) -> None:
        """Forget what the pipeline did so far: it runs again from the top (forced stages are not forced twice)."""
        self._force -= self.outcomes.keys()
        self.outcomes.clear()
        self._deferred.clear()

    def skipped(self) -> list[Outcome]:
        """What became of the deferred stages that nothing asked for: recorded, or skipped."""
        return [
            self._recorded(call) or Outcome(call.name, "skip", "what it is for did not run", self._key(call), None, 0.0)
            for call in self._deferred
            if call.name not in self.outcomes
        ]

    def _recorded(self, call: Call) -> Outcome | None:
        """The outcome on record, if its bytes are still there; if they are not, a note says which."""
        if call.name in self._force:
            return None
        return recorded(self.store, call, self._key(call), self.lost, self.notes.append)

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

        curve = Curve(self._log(work.name).with_suffix(".jsonl"), call.name, self._price_per_hour)

        def emit(event: Meta) -> None:
            with unwatched():
                lease.heed()  # ends the stage: another makes it
                event = curve.priced(event)
                curve.note(event)
                journal["figures"].update(event.get("figures", {}))
                for listener in self.listeners:
                    listener.event(call.name, event)

        needed = {name: self.outcomes[earlier.name].artifact for name, earlier in call.after.items()}
        inputs = {name: self._lay_out(item, work / "in" / name, emit) for name, item in (call.inputs | needed).items()}
        (work / "out").mkdir()
        (work / "scratch").mkdir()
        permit = permit_for(call.stage, document["code"], inputs.values(), data_folders(self.store), self.store.memo)
        if call.stage.process:
            return self._perform_apart(call, key_of(document), work, inputs, emit, permit, lease.attempt)
        force = call.name in self._force
        shards = Shards(
            self.store, call.stage, document, journal, work / "shards", self._workers, force, self.notes.append, emit
        )
        with watch(permit):
            meta = call.stage.function(
                call.config, **inputs, out=Workdir(work / "out", work / "scratch", emit, parts=shards)
            )
        shards.tell()
        return meta

    def _perform_apart(
        self,
        call: Call,
        key: str,
        work: Path,
        inputs: dict[str, Input | Source],
        emit: Emit,
        permit: Permit,
        attempt: str,
    ) -> Meta:
        from tasks.launch.job import JobSpec
        from tasks.launch.local import run_job

        job = JobSpec.of(
            call.stage.function,
            call.config,
            inputs,
            out=work / "out",
            scratch=work / "scratch",
            log=self._log(work.name),
            partial={"root": self.store.root, "home": str(self.store.home), "key": key},
            environ=call.stage.environ(call.config) | self.launch.environment | {ATTEMPT: attempt},
            permit=permit,
            ranks=call.stage.ranks(call.config),
        )
        return run_job(job, emit, grace_seconds=self.launch.grace_seconds)

    def _log(self, attempt: str) -> Path:
        """Where a process's own output goes; it outlives the attempt, for the error message points to it."""
        folder = self.store.home / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        for old in sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)[:-KEPT_LOGS]:
            old.unlink(missing_ok=True)
        return folder / f"{attempt}.log"

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

    def _publish(self, call: Call, key: str, document: Meta, artifact: Artifact, journal: Meta) -> Meta:
        self.store.secure(journal["holds"], artifact)
        record = {
            "schema": 1,
            "stage": call.name,
            "key": key,
            "document": document,
            "artifact": artifact.digest,
            "attempt": journal["attempt"],
            "created": journal["ended"],
            **listed(self.store, journal),
        }
        published = self.store.publish(record)
        if published["artifact"] == artifact.digest:
            return published
        if call.name in self._force or isinstance(usable(self.store, published, self.lost), str):
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
            journal["error"] = {"type": type(error).__name__, "message": str(error)}
            raise
        finally:
            journal |= {"ended": now(), "seconds": round(time.monotonic() - begun, 3)}
            self.store.write_attempt(key, journal["attempt"], journal)


def recorded(
    store: Store, call: Call, key: str, lost: set[str], say: Callable[[str], None] = lambda text: None
) -> Outcome | None:
    """The outcome on record for `key`, or None: no record, or bytes that are missing or corrupt, which `say` hears of."""
    record = store.record(call.name, key)
    if record is None:
        return None
    artifact = usable(store, record, lost)
    if isinstance(artifact, str):
        say(f"{call.name} is on record, and {artifact}: made anew")
        return None
    figures = store.attempt(key, record["attempt"]).get("figures", {})
    why = f"adopted {record['created']}" if "adopted" in record else f"made {record['created']}"
    return Outcome(call.name, "hit", why, key, artifact, 0.0, figures)
