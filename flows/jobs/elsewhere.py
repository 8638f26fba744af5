"""Have a platform's machine run stages of a recipe as part of a run: submit their job, or join the one that lives, and take
its results."""

from __future__ import annotations

import contextlib
import functools
import time

from trnflow.flows.jobs.carry import Carried
from trnflow.flows.jobs.following import AGAIN, FollowedJob, ended_stages
from trnflow.flows.jobs.listing import read_document, runs_of, stop_file
from trnflow.flows.jobs.machines import Machines, machine_of
from trnflow.flows.jobs.order import JobUri, carried_for, keep_order, order_anew, result_file, write_order
from trnflow.flows.jobs.platforms import platform_of
from trnflow.flows.jobs.submitted import submissions_of, write_submission
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.runner.context import RunContext
from trnflow.flows.runner.graph import named_stage
from trnflow.flows.runner.plan import Options, Plan, Step
from trnflow.flows.runner.run import Around
from trnflow.flows.runner.run_log import say, write_step
from trnflow.flows.runner.stored import Stored, check_record
from trnflow.tasks.artifact import Meta
from trnflow.tasks.documents import JobSubmission, KeyDocument, RecordedStage
from trnflow.tasks.errors import BlobLost, ConfigError, Interrupted, MachineError, TrnflowError
from trnflow.tasks.platforms.protocol import Platform
from trnflow.tasks.store import Store

LOOK_SECONDS = 3.0
"""Between two looks at what a job has reported."""
SPARE_SECONDS = 60.0
"""Beyond `launch.grace_seconds`, for a job that was asked to stop."""


class Elsewhere:
    """The stages of a graph that another machine runs, all in one job.

    Attributes:
        stages: Their names, in order.
    """

    def __init__(self, stages: tuple[str, ...], recipe: Recipe) -> None:
        self.stages = stages
        self._recipe, self._launch = recipe, recipe.launch
        self._platform: Platform | None = None
        self._carried: Carried | None = None
        self._machines: Machines | None = None
        self._job: FollowedJob | None = None
        self._taken: set[str] = set()

    def check(self, context: RunContext) -> None:
        """Raise a TrnflowError if the platform is not to be had, or what the stages read can't travel."""
        self._platform = platform_of(self._recipe, context.store)
        self._platform.check()
        self._carried = carried_for(context)

    def document(self, store: Store, stage: str, document: KeyDocument) -> KeyDocument | None:
        """Return a key document as it is there; None if that is not known."""
        self._machines = self._machines or Machines(self._recipe, store)
        return self._machines.document(stage, document)

    def submit(self, plan: Plan, context: RunContext, options: Options) -> tuple[JobUri, str | None]:
        """Submit the job, unless it lives. Return the platform's ticket; None for a job that is done."""
        context.force = options.force
        uri = self._ordered(plan, context, options)
        has_ended = self._result_of(context, uri) is not None
        return uri, None if has_ended else self._submitted(context, uri)["ticket"]

    def make(self, step: Step, plan: Plan, context: RunContext, options: Options, around: Around) -> Stored:
        """Return the result of a step once the job has ended it; meanwhile, its events go into the run's log.

        around: goes around the steps for which nothing waits, too, such as precompile.

        Raises:
            Interrupted: The job was stopped, by Ctrl-C here or by somebody there.
            TrnflowError: Of the job's stage, the platform or the store.
        """
        # a step is taken a second time if the store has lost what it made
        if self._job is None or step.name in self._taken or (self._job.is_over and step.name not in self._job.ended):
            self._job, self._taken = self._joined(step, plan, context, options), set()
        job = self._job
        try:
            while step.name not in job.ended:
                job.look(step.name)
                self._settle_deferred(job, step, plan, context, around)
                if step.name not in job.ended:
                    if (fault := job.fault(step.name)) is not None:
                        raise fault
                    context.log.heed()
                    time.sleep(LOOK_SECONDS)
        except BaseException as error:
            # an error of this machine or of the store costs the job nothing
            stops = isinstance(error, Interrupted | ConfigError) or not isinstance(error, Exception)
            if stops and not job.is_over:
                self._stop(job, step, context, error)
            raise
        if step.name in (plan.until(options)[-1].name, self.stages[-1]):
            context.notes += job.last_notes(step.name)
            self._settle_deferred(job, step, plan, context, around)
        stored = self._take(step, job, context)
        if stored is None:
            raise MachineError(f"job {job.id} skipped {step.name}", AGAIN)
        return stored

    def _take(self, step: Step, job: FollowedJob, context: RunContext) -> Stored | None:
        """Return how a step ended there, None if it was skipped; the step gets its key of there."""
        ended, store = job.ended[step.name], context.store
        self._taken.add(step.name)
        step.key, step.is_guess = ended["key"], False
        if ended["artifact"] is None:
            return None
        record = store.record(step.name, str(step.key))
        recorded = check_record(store, record, step.node.stage.kind, context.lost) if record else None
        if record is None or recorded is None or recorded.artifact is None:
            why = recorded.why if recorded else "the store has no record of it"
            raise MachineError(f"job {job.id} made {step.name}, and it can't be used: {why}", AGAIN)
        step.document = record["document"]
        if self._machines is not None:
            self._machines.learn(step.name, record["document"])
        if not job.is_here:
            return Stored.of_record(store, record, recorded.artifact)
        seconds, figures = ended["seconds"] or 0.0, dict(ended.get("figures", {}))
        return Stored(recorded.artifact, ended["action"], ended["why"], seconds, figures)

    def _ordered(self, plan: Plan, context: RunContext, options: Options) -> JobUri:
        if self._carried is None:
            self.check(context)
        assert self._carried is not None
        until = options.until if options.until in self.stages else self.stages[-1]
        before = plan.graph.stages[: plan.graph.stages.index(self.stages[0])]
        given = [name for name in before if name not in plan.graph.deferred]
        force = context.force.intersection(self.stages) | self._lost(context)
        return write_order(context, plan, self._carried, given, str(until), force, machine_of(self._recipe))

    def _lost(self, context: RunContext) -> set[str]:
        """Return the stages of which the store has lost what the job made: on record, they would be hits there."""
        return {name for name, ended in (self._job.ended if self._job else {}).items() if _is_lost(ended, context)}

    def _joined(self, step: Step, plan: Plan, context: RunContext, options: Options) -> FollowedJob:
        """Return the job, followed from its first event on; it has ended if its result is there."""
        uri = self._ordered(plan, context, options)
        assert self._platform is not None
        if (result := self._result_of(context, uri)) is not None:
            say(context.log, step.name, f"job {uri.id} has made it: no machine is needed")
            return FollowedJob.of_result(context, uri, result, self._platform)
        submission = self._submitted(context, uri, step.name)
        return FollowedJob(context, uri, submission, self._platform, self._launch.max_wait_hours, self.stages)

    def _submitted(self, context: RunContext, uri: JobUri, stage: str | None = None) -> JobSubmission:
        store, platform = context.store, self._platform
        assert platform is not None
        ticket = platform.find(uri.name)
        if ticket is not None and not _is_ending(store, uri.id):
            context.log.note(f"job {uri.id}: joined {platform.kind} {ticket}", stage=stage)
            known = [each for each in submissions_of(store, uri.id) if each["ticket"] == ticket]
            return known[-1] if known else write_submission(store, uri.id, platform.kind, ticket, ())
        order_anew(store, uri)
        earlier = runs_of(store, uri.id)
        ticket = None
        command = [self._launch.python or platform.python, "-P", "-m", "trnflow", "job", str(uri)]
        try:
            ticket = platform.submit(uri.name, command)
            submission = write_submission(store, uri.id, platform.kind, ticket, earlier)
            # from now on gc keeps the job; it may have begun to collect an old one
            keep_order(store, uri)
        except BaseException as error:
            # refused, there is none of ours; else the platform may have taken it all the same
            if ticket is not None or not isinstance(error, ConfigError):
                with contextlib.suppress(TrnflowError):
                    left = ticket or platform.find(uri.name)
                    # one that is on record is another run's
                    if left is not None and left not in [known["ticket"] for known in submissions_of(store, uri.id)]:
                        platform.end(left)
            raise
        context.log.note(f"job {uri.id}: submitted as {platform.kind} {ticket}", stage=stage)
        return submission

    def _result_of(self, context: RunContext, uri: JobUri) -> Meta | None:
        """Return the result of a job that has completed, if the store has all that it made, and nothing is forced."""
        result = read_document(context.store, result_file(uri.id)) or {}
        if result.get("outcome") != "completed" or context.force.intersection(self.stages):
            return None
        try:
            is_whole = not any(_is_lost(ended, context) for ended in ended_stages(result).values())
        except BlobLost:
            return None
        return result if is_whole else None

    def _settle_deferred(
        self, job: FollowedJob, awaited: Step, plan: Plan, context: RunContext, around: Around
    ) -> None:
        """Settle the steps for which nothing waits, once they have ended there."""
        for name in plan.graph.deferred.intersection(job.ended) - {awaited.name}:
            step = plan.steps[name]
            if not step.settled:
                plan.bind(step)
                if (stored := self._take(step, job, context)) is not None:
                    step.take(around(step, functools.partial(_same, stored)))
                else:
                    step.action, step.why, step.artifact, step.seconds = "skip", job.ended[name]["why"], None, 0.0
                step.settled = True
                write_step(context, step)

    def _stop(self, job: FollowedJob, step: Step, context: RunContext, error: BaseException) -> None:
        """Ask a job to save its state and stop, and wait for that; a second Ctrl-C leaves it to the job."""
        begun = time.monotonic()
        # readers that ended the run, such as a sweep that prunes it, get no more
        job.tells = isinstance(error, KeyboardInterrupt)
        try:
            if not job.ask_to_stop(step.name):
                return
            say(context.log, step.name, f"job {job.id} saves its state and stops; Ctrl-C again does not wait for that")
            while time.monotonic() - begun < self._launch.grace_seconds + SPARE_SECONDS:
                job.look(step.name)
                fault = job.fault(step.name)
                if job.is_over:
                    if fault is not None and isinstance(error, KeyboardInterrupt):
                        raise fault from None
                    return
                time.sleep(LOOK_SECONDS)
        except KeyboardInterrupt:
            raise Interrupted(f"job {job.id} goes on stopping", f"`trnflow jobs {job.id}` says when it has") from None
        job.end()


def _is_ending(store: Store, job: str) -> bool:
    """Return whether a job that its platform still has is over: the next one does not wait for that."""
    result = read_document(store, result_file(job)) or {}
    if result.get("outcome") == "failed":
        return True
    return result.get("outcome") == "stopped" and store.backend.size(stop_file(job, str(result["run"]))) is not None


def _same(stored: Stored) -> Stored:
    return stored


def _is_lost(ended: RecordedStage, context: RunContext) -> bool:
    """Return whether blobs of a stage's result are known to be lost. Raises BlobLost without its manifest."""
    if ended["artifact"] is None:
        return False
    artifact = context.store.artifact(ended["artifact"])
    return bool(context.lost.intersection((artifact.digest, *(file.digest for file in artifact.files))))


def elsewhere_of(
    recipe: Recipe, stages: tuple[str, ...], known: tuple[str, ...], data_stages: tuple[str, ...]
) -> Elsewhere:
    """Return what runs the stages that `launch.stages` names, by default all behind the data stages.

    stages: of the graph; known: which a graph can have. Raises ConfigError for stages that are no unbroken row, or data stages.
    """
    behind = stages[stages.index(data_stages[-1]) + 1 :]
    # such as export_neuron of a recipe that exports nothing
    absent = {*known} - {*stages}
    named = tuple(named_stage(name, stages) for name in recipe.launch.stages or behind if name not in absent)
    row = tuple(name for name in behind if name in named)
    if len(row) != len(set(named)) or not row:
        wrong = next((name for name in named if name not in behind), "none of them")
        raise ConfigError(
            f"launch.stages: {wrong} is a data stage, which runs here", f"name stages behind {data_stages[-1]}"
        )
    first = behind.index(row[0])
    if behind[first : first + len(row)] != row:
        missing = next(name for name in behind[first:] if name not in row)
        raise ConfigError(f"launch.stages: {missing} lies between them and is missing", "name it, too")
    return Elsewhere(row, recipe)
