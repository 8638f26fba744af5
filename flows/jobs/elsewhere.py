"""Have a platform's machine run stages of a recipe as part of a run: submit their job, or join the one that lives, and take
its results."""

from __future__ import annotations

import contextlib
import sys
import time

from trnflow.flows.jobs.carry import Carried
from trnflow.flows.jobs.facts import MachineFacts
from trnflow.flows.jobs.following import FollowedJob, ended_stages
from trnflow.flows.jobs.listing import read_document, runs_of
from trnflow.flows.jobs.order import JobUri, carried_for, order_anew, result_file, write_order
from trnflow.flows.jobs.platforms import platform_of
from trnflow.flows.jobs.submitted import NO_ONE, submissions_of, submit
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.recipes.sections import LaunchConfig
from trnflow.flows.runner.context import RunContext
from trnflow.flows.runner.graph import named_stage
from trnflow.flows.runner.plan import Options, Plan, Step
from trnflow.flows.runner.run_log import say, write_step
from trnflow.flows.runner.stored import Stored
from trnflow.tasks.artifact import Meta
from trnflow.tasks.documents import JobSubmission, KeyDocument, RecordedStage
from trnflow.tasks.errors import BlobLost, ConfigError, Interrupted, MachineError
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
        is_followed: See runner.graph.Elsewhere.
    """

    def __init__(self, stages: tuple[str, ...], launch: LaunchConfig) -> None:
        self.stages = stages
        self._launch = launch
        self._platform: Platform | None = None
        self._carried: Carried | None = None
        self._facts: MachineFacts | None = None
        self._job: FollowedJob | None = None
        self._taken: set[str] = set()

    @property
    def is_followed(self) -> bool:
        return self._job is not None

    def check(self, context: RunContext) -> None:
        """Raise a TrnflowError if the platform is not to be had, or what the stages read can't travel."""
        self._platform = platform_of(self._launch, context.store)
        self._platform.check()
        self._carried = carried_for(context)

    def document(self, store: Store, stage: str, document: KeyDocument) -> KeyDocument | None:
        """Return a key document as it is there; None if that is not known."""
        self._facts = self._facts or MachineFacts(self._launch, store)
        return self._facts.there(stage, document)

    def submit(self, plan: Plan, context: RunContext, options: Options) -> tuple[JobUri, str | None]:
        """Submit the job, unless it lives. Return the platform's ticket; None for a job that is done."""
        uri = self._ordered(plan, context, options)
        has_ended = self._result_of(context, uri, options) is not None
        return uri, None if has_ended else self._submitted(context, uri)["ticket"]

    def make(self, step: Step, plan: Plan, context: RunContext, options: Options) -> Stored:
        """Return the result of a step once the job has ended it; meanwhile, its events go into the run's log.

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
                self._settle_deferred(job, step, plan, context)
                if step.name not in job.ended:
                    if (fault := job.fault(step.name)) is not None:
                        raise fault
                    context.log.heed()
                    time.sleep(LOOK_SECONDS)
        except BaseException as error:
            if not job.is_over:
                self._stop(job, step, context, error)
            raise
        if step.name in (plan.until(options)[-1].name, self.stages[-1]):
            context.notes += job.last_notes(step.name)
            self._settle_deferred(job, step, plan, context)
        stored = self._take(step, job.ended[step.name], context)
        if stored is None:
            raise MachineError(f"job {job.id} skipped {step.name}", "run the same command again")
        return stored

    def _take(self, step: Step, ended: RecordedStage, context: RunContext) -> Stored | None:
        """Return how a step ended there, None if it was skipped; the step gets its key of there."""
        step.key = ended["key"]
        self._taken.add(step.name)
        if self._facts is not None:
            self._facts.learn(step.name, step.key)
        if ended["artifact"] is None:
            return None
        artifact = context.store.artifact(ended["artifact"])
        return Stored(artifact, ended["action"], ended["why"], ended["seconds"] or 0.0, dict(ended.get("figures", {})))

    def _ordered(self, plan: Plan, context: RunContext, options: Options) -> JobUri:
        if self._carried is None:
            self.check(context)
        assert self._carried is not None
        until = options.until if options.until in self.stages else self.stages[-1]
        before = plan.graph.stages[: plan.graph.stages.index(self.stages[0])]
        given = [name for name in before if name not in plan.graph.deferred]
        return write_order(context, plan, self._carried, given, str(until), options.force.intersection(self.stages))

    def _joined(self, step: Step, plan: Plan, context: RunContext, options: Options) -> FollowedJob:
        """Return the job, followed from its first event on; it has ended if its result is there."""
        uri = self._ordered(plan, context, options)
        assert self._platform is not None
        if (result := self._result_of(context, uri, options)) is not None:
            say(context.log, step.name, f"job {uri.id} has made it: no machine is needed")
            job = FollowedJob(context, uri, NO_ONE, self._platform, 0.0, ())
            job.take_result(result)
            return job
        submission = self._submitted(context, uri, step.name)
        return FollowedJob(context, uri, submission, self._platform, self._launch.max_wait_hours, self.stages)

    def _submitted(self, context: RunContext, uri: JobUri, stage: str | None = None) -> JobSubmission:
        store, platform = context.store, self._platform
        assert platform is not None
        known = submissions_of(store, uri.id)
        newest = known[-1] if known else None
        if newest is not None and newest["ticket"] and newest["platform"] == platform.kind:
            standing = platform.look(newest["ticket"])
            if standing.state == "unknown":
                raise MachineError(
                    f"{platform.kind} does not say how job {uri.id} is: {standing.why}", "try again later"
                )
            if standing.state != "ended":
                context.log.note(f"job {uri.id}: joined {platform.kind} {newest['ticket']}", stage=stage)
                return newest
        order_anew(store, uri)
        command = [self._launch.python or sys.executable, "-P", "-m", "trnflow", "job", str(uri)]
        # one without ticket is submitted by another just now
        number = len(known) - (newest is not None and newest["ticket"] is None)
        earlier = len(runs_of(store, uri.id))
        send = lambda: platform.submit(uri.id, command)  # noqa: E731
        submission, is_mine = submit(store, uri.id, number, platform.kind, earlier, send)
        verb = "submitted as" if is_mine else "joined"
        context.log.note(f"job {uri.id}: {verb} {platform.kind} {submission['ticket']}", stage=stage)
        return submission

    def _result_of(self, context: RunContext, uri: JobUri, options: Options) -> Meta | None:
        """Return the result of a job that has completed, if the store has all that it made, and nothing is forced."""
        result = read_document(context.store, result_file(uri.id)) or {}
        if result.get("outcome") != "completed" or options.force.intersection(self.stages):
            return None
        with contextlib.suppress(BlobLost, KeyError, TypeError):
            for ended in ended_stages(result).values():
                if ended["artifact"] is not None:
                    artifact = context.store.artifact(ended["artifact"])
                    if context.lost.intersection((artifact.digest, *(file.digest for file in artifact.files))):
                        return None
            return result
        return None

    def _settle_deferred(self, job: FollowedJob, awaited: Step, plan: Plan, context: RunContext) -> None:
        """Settle the steps for which nothing waits, once they have ended there."""
        for name in plan.graph.deferred.intersection(job.ended) - {awaited.name}:
            step, ended = plan.steps[name], job.ended[name]
            if not step.settled:
                if (stored := self._take(step, ended, context)) is not None:
                    step.take(stored)
                else:
                    step.action, step.why, step.artifact, step.seconds = "skip", ended["why"], None, 0.0
                step.settled = True
                write_step(context, step)

    def _stop(self, job: FollowedJob, step: Step, context: RunContext, error: BaseException) -> None:
        """Ask a job to save its state and stop, and wait for that; a second Ctrl-C leaves it to the job."""
        begun = time.monotonic()
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


def elsewhere_of(recipe: Recipe, stages: tuple[str, ...], data_stages: tuple[str, ...]) -> Elsewhere:
    """Return what runs the stages that `launch.stages` names, by default all behind the data stages.

    stages: of the graph. Raises ConfigError for stages that are no unbroken row, or data stages.
    """
    behind = stages[stages.index(data_stages[-1]) + 1 :]
    named = tuple(named_stage(name, stages) for name in recipe.launch.stages or behind)
    row = tuple(name for name in behind if name in named)
    if len(row) != len(set(named)):
        wrong = next(name for name in named if name not in behind)
        raise ConfigError(
            f"launch.stages: {wrong} is a data stage, which runs here", f"name stages behind {data_stages[-1]}"
        )
    first = behind.index(row[0])
    if behind[first : first + len(row)] != row:
        missing = next(name for name in behind[first:] if name not in row)
        raise ConfigError(f"launch.stages: {missing} lies between them and is missing", "name it, too")
    return Elsewhere(row, recipe.launch)
