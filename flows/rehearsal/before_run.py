"""Rehearse before a long run: once for the settings, code and model that the run has, and not for other data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from trnflow.flows.runner.context import RunContext
from trnflow.flows.runner.expected_time import expect_training, parameters_of
from trnflow.flows.runner.forecast import ANYWAY
from trnflow.flows.runner.plan import Options, Plan
from trnflow.tasks.artifact import Meta
from trnflow.tasks.events import Reader
from trnflow.tasks.keys.canonical_json import digest_of
from trnflow.tasks.keys.key_document import stage_closure

if TYPE_CHECKING:
    from trnflow.flows.rehearsal.rehearse import Rehearsal

SMALL = 10_000_000
"""Models of at most so many parameters are tried by running them."""
PASSED = "rehearsed"
"""The kind of a pass in the home's memo."""
DIFFERS = {"name", "description", "promote", "checks", "hardware", "store", "run", "tracking", "task_runner", "sweep"}
"""Sections of a recipe that a pass does not depend on."""


def rehearse_first(context: RunContext, options: Options, readers: Iterable[Reader]) -> Rehearsal | None:
    """Rehearse the context's planned run if it is long and no such rehearsal has passed; else return None. A pass is
    remembered, and its remarks become notes of the plan, but for those that the run says again, of all rows."""
    plan, memo = context.plan, context.store.memo
    assert plan is not None
    if plan.graph.elsewhere:
        return None
    expect_training(context.recipe, plan)
    if not is_long(plan, options, context.recipe.run.rehearse_above_minutes):
        return None
    passed = digest_of(_depends_on(context, plan))
    if memo.one(PASSED, passed, "") is not None:
        return None
    from trnflow.flows.rehearsal.rehearse import rehearse

    rehearsal = rehearse(context, *readers)
    if rehearsal.fault is None:
        memo.put(PASSED, passed, "", True)
        memo.save()
        for remark in rehearsal.remarks:
            if remark not in rehearsal.of_sample:
                plan.note(remark)
    return rehearsal


def is_long(plan: Plan, options: Options, minutes: float) -> bool:
    """Return whether a run would train a model that is not small, and is expected to take longer than `minutes`, or
    nobody knows how long it trains. Other stages count as far as earlier runs tell."""
    training = plan.roles["training"]
    if training.action in ANYWAY or training not in plan.until(options):
        return False
    if is_small(plan.sources["model"].identity["config"]):
        return False
    return training.seconds is None or sum(step.seconds or 0.0 for step in plan.due(options)) > 60 * minutes


def is_small(config: Meta) -> bool:
    """Return whether trying a model costs no more than a rehearsal, by its `identity["config"]`."""
    return parameters_of(config) <= SMALL


def _depends_on(context: RunContext, plan: Plan) -> Meta:
    """Return what a rehearsal's outcome depends on, the rows aside: those of tomorrow are checked by the stages."""
    codes = {step.name: stage_closure(step.node.stage, context.store.memo) for step in plan.steps.values()}
    return {
        "recipe": {name: value for name, value in context.recipe.to_json().items() if name not in DIFFERS},
        "model": plan.sources["model"].identity,
        "code": {name: [code, versions] for name, (code, versions) in codes.items()},
        **({"own": [source.identity for source in plan.own_code]} if plan.own_code else {}),
    }
