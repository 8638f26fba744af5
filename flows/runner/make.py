"""Make a stage's result: under a lease, in a process, from read-only inputs, and published last.

A run that fails publishes nothing; the attempt's journal in the store has its host, times, outcome and error.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from trnflow.flows.runner.attempts import attempt_id, ending, new_journal, outlook
from trnflow.flows.runner.claim import Turn, describe_maker
from trnflow.flows.runner.context import RunContext
from trnflow.flows.runner.memory_check import checkpoint_bytes
from trnflow.flows.runner.parts.shards import Shards, shard_entries
from trnflow.flows.runner.plan import Inputs, Step, kept_steps
from trnflow.flows.runner.reasons import in_words
from trnflow.flows.runner.run_log import say
from trnflow.flows.runner.stage_call import stage_call
from trnflow.flows.runner.stored import Stored, check_record, publish, rehash_changed
from trnflow.flows.runner.work_folders import attempt_log, workplace
from trnflow.tasks.artifact import Artifact, Input, Meta, Source
from trnflow.tasks.config import keyed_params
from trnflow.tasks.documents import Journal, Record, RecordName, Shard
from trnflow.tasks.errors import DataError
from trnflow.tasks.events import Emit
from trnflow.tasks.events.state import present
from trnflow.tasks.keys.key_document import seen_by
from trnflow.tasks.launch.call import Phase
from trnflow.tasks.launch.local import run_call
from trnflow.tasks.stage import parameters
from trnflow.tasks.store import Store
from trnflow.tasks.store.lease import Lease, LeaseLost
from trnflow.tasks.system.clock import now
from trnflow.tasks.system.redaction import scrub
from trnflow.tasks.training.memory.estimate import Memory


def find_result(step: Step, context: RunContext, note: Callable[[str], None]) -> Stored | None:
    """Return the stored result of a step's key, or None.

    note: called with the reason if there is a record whose artifact can't be used.
    """
    assert step.key is not None
    record = context.store.record(step.name, step.key)
    if record is None:
        return None
    recorded = check_record(context.store, record, step.node.stage.kind, context.lost)
    if recorded.changed:  # may be disk damage: hash before believing the hit
        count = len(recorded.changed)
        say(context.log, step.name, f"{count} of its files changed on disk since they were verified: checking them")
        recorded = rehash_changed(context.store, recorded)
    if recorded.artifact is None:
        note(f"{step.name} is on record, and {recorded.why}: made anew")
        return None
    return Stored.of_record(context.store, record, recorded.artifact)


def make_result(
    step: Step, inputs: Inputs, before: list[Step], context: RunContext, keeper: Keeper | None = None
) -> Stored:
    """Run the stage and publish its artifact, or return the result that another run makes of the same key meanwhile.

    Args:
        inputs: By parameter name, those included that the key does not depend on.
        before: Steps that this run has settled: garbage collection keeps their artifacts while this stage runs.
        keeper: Of an input that a stage keeps.

    Raises:
        TrnflowError: Of the stage or the store.
    """
    attempt = _Attempt(step, inputs, [each for each in before if each.artifact], context, keeper)
    superseded = False
    while True:
        with attempt.claim(superseded) as claimed:
            if isinstance(claimed, Stored):
                attempt.note_difference(claimed.artifact.digest)
                return claimed
            try:
                return attempt.make(claimed)
            except LeaseLost as error:
                superseded = True
                say(context.log, attempt.shown, f"{error}; adopting what that one makes")


class Keeper(NamedTuple):
    """The stage that keeps an input (`Stage.kept`). report: takes the events of the process that makes the input."""

    stage: str
    report: Emit


class _Attempt:
    """One attempt to make a step's result.

    Attributes:
        made: The digest of the artifact that it made, published or not.
        shown: The name of the stage, or of that which keeps what this one makes: users and the log know that alone.
    """

    def __init__(
        self, step: Step, inputs: Inputs, before: list[Step], context: RunContext, keeper: Keeper | None
    ) -> None:
        assert step.document is not None and step.key is not None
        self.step, self.inputs, self.before, self.context, self.keeper = step, inputs, before, context, keeper
        self.stage, self.name, self.key, self.document = step.node.stage, step.name, step.key, step.document
        self.store: Store = context.store
        self.shown = keeper.stage if keeper else step.name
        self.forced = self.shown in context.force
        self.id = attempt_id(context.run, step.name)
        self.made: str | None = None

    def claim(self, superseded: bool) -> contextlib.AbstractContextManager[Lease | Stored]:
        context, log = self.context, self.context.log
        turn = Turn(
            self.store, context.run, context.recipe.name, self.id, context.recipe.store.lease_ttl_seconds,
            look=partial(self._made_meanwhile, superseded), say=partial(say, log, self.shown), on_wait=log.heed,
        )  # fmt: skip
        return turn.claim(self.key, context.devices_of(self.step))

    def _made_meanwhile(self, superseded: bool) -> Stored | None:
        """Return what another run published since this run last looked."""
        # a forced stage takes it only from the run that took over its lease
        if self.forced and not superseded:
            return None
        stored = find_result(self.step, self.context, lambda text: None)
        if stored is None:
            return None
        if superseded:
            self.store.partial(self.key).prune(0)
        why = f"made meanwhile by {describe_maker(self.store, self.name, self.key)}"
        return Stored(stored.artifact, "hit", why, 0.0, stored.figures)

    def _expected_bytes(self) -> int:
        """Return a guess at what the stage writes: its inputs twice; of training that begins, its checkpoints at least."""
        read = [item for name, item in self.inputs.items() if name not in self.stage.meta_only]
        expected = 2 * sum(item.size for item in read if isinstance(item, Artifact))
        graphs = next((step.artifact for step in self.before if step.node.stage.role == "graphs"), None)
        memory = graphs.meta["memory"] if graphs else None
        if self.stage.role != "training" or memory is None or self.store.partial(self.key).steps():
            return expected
        states = checkpoint_bytes(self.context.recipe.training, self.store, Memory.from_json(memory))
        return max(expected, states)

    def make(self, lease: Lease) -> Stored:
        settings = keyed_params(self.step.config)
        begin = partial(self.context.log.stage, key=self.key, attempt=lease.attempt, settings=settings)
        report = self.keeper.report if self.keeper else begin(self.name)
        journal = new_journal(self.context.run, self.name, lease.attempt, self.context.recipe.name)
        # garbage collection leaves these alone while the attempt is alive
        journal["holds"] = [RecordName(stage=step.name, key=str(step.key)) for step in self.before]
        if self.stage.resumable:  # it may leave partial state, which is told apart by what made it
            told = partial(in_words, self.store, None)
            recipe = self.context.recipe.name
            say(self.context.log, self.name, outlook(self.store, self.name, self.key, self.document, told, recipe))
            journal["document"] = self.document
        with self._journalled(journal), workplace(self.store.home, journal["attempt"]) as work:
            self.store.check_space(self._expected_bytes(), int(self.context.recipe.store.min_free_gb * 1e9))
            meta = self._run(work, journal, self._hearing(report, journal, lease))
            self._refuse_changed_inputs()
            artifact = self.store.ingest(work / "out", self.stage.kind, meta)
            self.context.lost.difference_update({artifact.digest, *(file.digest for file in artifact.files)})
            journal |= {"artifact": artifact.digest, "bytes": artifact.size}
            self.made = artifact.digest
            lease.check()
        recorded = publish(
            self.store, self.document, artifact, journal["attempt"], holds=journal["holds"], unusable=self._replaces,
            shards=shard_entries(self.store, journal),
        )  # fmt: skip
        self.note_difference(recorded)
        self.store.partial(self.key).prune(0)
        if recorded != artifact.digest:
            artifact = self.store.artifact(recorded)
        return Stored(artifact, "ran", "", journal["seconds"], journal["figures"])

    @contextlib.contextmanager
    def _journalled(self, journal: Journal) -> Iterator[None]:
        """Write the journal when the attempt begins, and again when it ends, also after an error."""
        begun = time.monotonic()
        self.store.write_attempt(self.key, journal["attempt"], journal)
        try:
            self.store.restore(journal["holds"])
            yield
            journal["outcome"] = "completed"
        except BaseException as error:
            journal["outcome"] = ending(error)
            journal["error"] = {"type": type(error).__name__, "message": scrub(str(error))}
            raise
        finally:
            journal |= {"ended": now(), "seconds": round(time.monotonic() - begun, 3)}
            self.store.write_attempt(self.key, journal["attempt"], journal)

    def _run(self, work: Path, journal: Journal, emit: Emit) -> Meta:
        context, attempt = self.context, journal["attempt"]
        given = self.inputs | self._kept(journal, emit)
        reads = parameters(self.stage.function)
        inputs = {name: self._lay_out(given[name], work / "in" / name, emit) for name in given if name in reads}
        log = attempt_log(self.store.home, context.run, attempt)
        call = stage_call(
            self.store, self.stage, self.step.config, self.document, inputs, work / "out", attempt=attempt, log=log,
            environment=context.variables_for(self.document["env"]), torch_xla=context.uses_torch_xla,
            grace_seconds=context.recipe.launch.grace_seconds, memory_gib=context.recipe.launch.memory_gib,
            phase=Phase(threads=context.recipe.task_runner.count),
        )  # fmt: skip
        maker = context.part_maker
        if self.stage.split is None or (maker is None and not self.stage.keep_parts):
            return run_call(call, emit)
        return Shards(self.store, self.stage, call, journal, work, maker, self.forced, context.note).run(emit)

    def _kept(self, journal: Journal, emit: Emit) -> dict[str, Artifact]:
        """Look up or make the inputs that the stage keeps, and list them in the journal, which protects them."""
        kept, keeper = {}, Keeper(self.shown, emit)
        for name, step in kept_steps(self.step, self.inputs, self.store.memo).items():
            stored = None if self.forced else find_result(step, self.context, self.context.note)
            reads = {each: self.inputs[each] for each in step.node.inputs}
            stored = stored or make_result(step, reads, self.before, self.context, keeper)
            if stored.action == "hit":
                emit({"info": f"its {name.replace('_', ' ')}: {stored.why}"})
                emit({"figures": stored.figures})
            listed = Shard(stage=step.name, key=str(step.key), artifact=stored.artifact.digest)
            journal.setdefault("shards", []).append(listed)
            kept[name] = stored.artifact
        return kept

    def _hearing(self, report: Emit, journal: Journal, lease: Lease) -> Emit:
        """Return the function that takes the stage's reports: for the log, the journal's figures and the heartbeat."""

        def emit(event: Meta) -> None:
            lease.raise_if_superseded()  # ends the stage if another run makes it
            report(event)
            state = self.context.log.state.stages[self.shown]
            journal["figures"].update(state.figures)
            if "progress" in event:
                lease.set_progress(**state.counted(present()))

        return emit

    def _lay_out(self, item: Any, folder: Path, emit: Emit) -> Input | Source:
        if isinstance(item, Source):
            return item
        unit = f"MB of {folder.name} {'checked' if self.store.is_local else 'pulled'}"

        def progress(done: int, total: int) -> None:
            if total >= 10**6:
                emit({"progress": {"done": done // 10**6, "total": total // 10**6, "unit": unit}})

        if folder.name in self.stage.meta_only:
            folder.mkdir(parents=True)
        else:
            self.store.link_files(seen_by(self.stage, folder.name, item), folder, progress)
        return Input(folder, item.kind, item.meta, item.digest)

    def _refuse_changed_inputs(self) -> None:
        for name, item in self.inputs.items():
            file = self.store.changed(seen_by(self.stage, name, item)) if isinstance(item, Artifact) else None
            if file is not None:
                raise DataError(
                    f"{self.name} changed its input {name}: {file.path}",
                    "inputs are read-only: copy what must change; the next run restores the file",
                )

    def _replaces(self, published: Record) -> bool:
        """Return whether this run's artifact replaces another run's record."""
        return self.forced or check_record(self.store, published, self.stage.kind, self.context.lost).artifact is None

    def note_difference(self, published: str) -> None:
        """Note that another run published other bytes than this attempt made, if it made any."""
        if self.made is not None and self.made != published:
            self.context.note(
                f"{self.name} is not deterministic: this run made {self.made[:19]}, "
                f"the record says {published[:19]}; the record counts"
            )
