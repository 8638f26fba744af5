"""Run a graph: look up or make each stage's result, in order, and write the run record.

One function runs stages, for every command, deployment, trial, freezing and scoring.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from trnflow.flows.runner.context import RunContext, make_plan
from trnflow.flows.runner.graph import Graph
from trnflow.flows.runner.make import find_result, make_result
from trnflow.flows.runner.mlflow_log import end_log
from trnflow.flows.runner.plan import Options, Plan, Step
from trnflow.flows.runner.run_log import begin_log, say, write_failure, write_step
from trnflow.flows.runner.stored import Stored
from trnflow.flows.runner.warm_parents import parent_of, start_warm_parents
from trnflow.flows.runner.work_folders import clean
from trnflow.tasks.artifact import Artifact, Meta
from trnflow.tasks.documents import RunRecord
from trnflow.tasks.errors import BlobLost, HomeRemoved, Interrupted, ReadOnlyStore, StoreError, TrnflowError, unexpected
from trnflow.tasks.launch import landlock
from trnflow.tasks.system.home import watched_home
from trnflow.tasks.system.redaction import scrub, scrubbed

REPAIRS = 10
"""How many times a run replaces a missing or corrupt blob before it fails (the disk may be broken)."""

UNHELD = "files that native readers, such as pyarrow, open for own code are not seen"

SHOWN = ("schema", "run", "recipe", "seconds", "dollars", "stages", "notes", "start", "error")
"""The fields of a run record that `trnflow run --json` prints."""

Around = Callable[[Step, Callable[[], Stored]], Stored]
"""Called with each step and the function that returns its result, such as by a Prefect task run."""


@dataclass
class Result:
    """How a run ended.

    Attributes:
        steps: The steps that were settled, in order.
        notes: Sentences for the user.
        verdict: Those of the notes that a stage says of its result, the last of them.
        printed: Those that a command printed when the run began.
        error: Why the run failed or was cancelled; None if it completed.
        record: The run record.
        prefect_lost: Whether Prefect's server stopped answering.
        start: The model in the store that training started from; None if no model was named.
    """

    run: str
    steps: list[Step] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    verdict: list[str] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)
    error: TrnflowError | None = None
    record: RunRecord = field(default_factory=RunRecord)
    prefect_lost: bool = False
    start: Artifact | None = None

    def to_json(self) -> Meta:
        """Return what `trnflow run --json` prints."""
        record: Meta = {**self.record}
        return {name: record[name] for name in SHOWN if name in record} | {"notes": self.notes}


def call(step: Step, result: Callable[[], Stored]) -> Stored:
    """Call `result`: the `Around` of a run without Prefect."""
    return result()


def run(graph: Graph, context: RunContext, options: Options, *, around: Around = call) -> Result:
    """Settle the steps of the context's plan, else of a new one, and write the run record.

    A TrnflowError and Ctrl-C end the run and are in the result's `error`; other exceptions are raised.

    Raises:
        ConfigError: `options` names no stage, or the recipe needs a `part_maker`. No run record is written then.
    """
    options.check(graph)
    context.force, plan = options.force, context.plan
    if plan is None or plan.due(options):
        context.check(options)
    clean(context.store)
    result = Result(context.run)
    stopped = Interrupted("interrupted", "run the same command again: finished stages hit, training resumes")
    with begin_log(context, options), watched_home(context.store.home) as removed:
        try:
            plan = plan or make_plan(graph, context)
            _settle_all(plan, context, options, around)
        except TrnflowError as error:
            result.error = scrubbed(removed() or error)
        except KeyboardInterrupt:
            result.error = stopped
        except Exception as error:  # an error of this program: on record as one, and raised
            result.error = removed() or scrubbed(unexpected(error))
            if not isinstance(result.error, HomeRemoved):
                raise
        # Prefect's TerminationSignal, raised when a run is cancelled: Prefect's engine acts on it
        except BaseException:
            result.error = stopped
            raise
        finally:
            if plan is not None:
                result.steps, result.start = [step for step in plan.until(options) if step.settled], plan.start
            notes = [*(plan.notes if plan else ()), *context.notes]
            # what a stage says of its result stands last
            verdict = [note for step in result.steps if step.artifact for note in step.artifact.meta.get("notes", ())]
            result.notes = [scrub(note) for note in dict.fromkeys([*notes, *verdict])]
            result.verdict = [scrub(note) for note in verdict]
            context.store.memo.save()
            if options.record:
                _put_on_record(context, result)
            result.record = run_record(context, result)
            result.notes += end_log(context, result.error, result.notes)
    return result


def settle(graph: Graph, context: RunContext, *, plan: Plan | None = None, until: str | None = None) -> Plan:
    """Settle the steps of a graph in a run that is not on record, such as scoring. Its error is raised.

    plan: of the graph; None makes one. until: the stage after which to stop; None for the last.
    """
    context.plan = plan or make_plan(graph, context)
    result = run(graph, context, Options(until, record=False))
    if result.error is not None:
        raise result.error
    return context.plan


def _settle_all(plan: Plan, context: RunContext, options: Options, around: Around) -> None:
    graph, elsewhere = plan.graph, plan.graph.elsewhere

    def make_elsewhere(step: Step) -> Stored:
        assert elsewhere is not None
        made: Stored = elsewhere.make(step, plan, context, options, around)
        return made

    if due := plan.due(options):  # else no process starts
        plan.check_needs(options, here=context.environment)
        if plan.own_code and not landlock.is_there():
            context.note(f"{UNHELD}: this kernel has no Landlock (docs/own_code.md)")
        here = [step for step in due if not graph.runs_elsewhere(step.name)]
        start_warm_parents(here, context)
        if elsewhere and len(here) < len(due):
            elsewhere.check(context)
        else:
            graph.check(plan, options.until, lambda name: parent_of(plan.steps[name], context))
    if options.record:
        context.log.write("planned", stages=[step.to_json() for step in plan.until(options)])
    for _ in range(REPAIRS):
        is_job_due = functools.cache(functools.partial(_is_job_due, plan, context, options))
        try:
            for step in plan.until(options):
                if step.name not in graph.deferred or step.name == options.until:
                    goes = elsewhere is not None and step.name in elsewhere.stages and is_job_due()
                    _settle(step, plan, context, around, make_elsewhere if goes else None)
                    plan.check_needs(options, here=context.environment)
            _skip_the_rest(plan.until(options), plan, context)
            return
        except BlobLost as error:  # the stage that made the blob runs again
            if plan.gives(error.digest):
                fix = "run `trnflow run --detach` again where the job was ordered: it makes them anew"
                raise StoreError(f"the store has lost rows that this job was given: {error.message}", fix) from error
            context.note(f"{error.message}; made anew")
            context.log.write("repair", digest=error.digest)
            # forced stages are forced once
            context.force -= {step.name for step in plan.steps.values() if step.settled}
            plan.lost.add(error.digest)
            plan.predict()
    raise StoreError(f"blobs of the store {context.store.root} keep turning out corrupt", "check the disk it lies on")


def _settle(
    step: Step, plan: Plan, context: RunContext, around: Around, make_elsewhere: Callable[[Step], Stored] | None = None
) -> None:
    """Look up or make a step's result, elsewhere if so given; of what runs only for it, too, if it has to run."""
    if step.name in plan.given:
        write_step(context, step)
        return
    if make_elsewhere is not None:
        plan.bind(step)
        stored, make = None, partial(make_elsewhere, step)
    else:
        stored, make = _found(step, plan, context), partial(_make, step, plan, context)
        for needed in step.node.after.values() if stored is None else ():
            if not plan.steps[needed.name].settled:
                _settle(plan.steps[needed.name], plan, context, around)
    try:
        step.take(around(step, make if stored is None else lambda: stored))
        step.settled = True
    except BaseException as error:
        if isinstance(error, TrnflowError) and not error.stage:
            error.stage = step.name
        write_failure(context.log, step.name, error)
        raise
    write_step(context, step)


def _is_job_due(plan: Plan, context: RunContext, options: Options) -> bool:
    """Return whether another machine has to run its stages, as all of them are not in the store."""
    # all or none: a job must not build on another result than that which it finds or makes itself
    row = [step for step in plan.until(options) if plan.graph.runs_elsewhere(step.name)]
    for step in row:
        if step.name in plan.graph.deferred and step.name != options.until:
            continue
        stored = _found(step, plan, context)
        if stored is None:
            for taken in row:
                taken.action, taken.artifact = "maybe", None
            return True
        step.take(stored)
    return False


def _found(step: Step, plan: Plan, context: RunContext) -> Stored | None:
    """Return the stored result of a step, unless it is forced."""
    planned = step.key
    plan.bind(step)
    if step.name in context.force or step.is_guess:
        return None
    if step.action == "hit" and step.key == planned and step.artifact is not None:  # the plan has just looked
        return Stored(step.artifact, "hit", step.why, 0.0, step.figures)
    return find_result(step, context, context.note)


def _make(step: Step, plan: Plan, context: RunContext) -> Stored:
    after = {name: plan.steps[needed.name].artifact for name, needed in step.node.after.items()}
    before = [each for each in plan.steps.values() if each.settled]
    if step.chosen and step.node.stage.role == "training":
        numbers = ", ".join(f"{name} {value}" for name, value in step.chosen.items() if value is not None)
        say(context.log, step.name, f"{numbers}: chosen for these rows")
    return make_result(step, plan.inputs_of(step) | after, before, context)


def _skip_the_rest(steps: list[Step], plan: Plan, context: RunContext) -> None:
    """Settle the steps that would have run only for a step that was a hit: as hits if the store has their results."""
    for step in steps:
        if not step.settled:
            stored = _found(step, plan, context)
            if stored is not None:
                step.take(stored)
            else:
                step.why = step.why if step.action == "skip" else "what it is for did not run"
                step.action, step.artifact, step.seconds, step.figures = "skip", None, 0.0, {}
            step.settled = True
            write_step(context, step)


def _put_on_record(context: RunContext, result: Result) -> None:
    """Write the run record; an error of the store becomes the run's, unless it failed before."""
    try:
        context.store.write_run(result.run, run_record(context, result))
    except ReadOnlyStore:
        result.notes.append(f"the store {scrub(context.store.root)} can only be read: this run is not on record")
    except StoreError as error:
        result.error = result.error or scrubbed(error)


def run_record(context: RunContext, result: Result) -> RunRecord:
    """Return the run record. What its document names is kept by garbage collection, so `start` is in it."""
    record = context.log.result(result.error, result.notes)
    if result.start:
        record["start"] = {"artifact": result.start.digest}
    return record
