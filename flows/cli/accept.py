"""`trnflow accept RECIPE STAGE | --all`: record past artifacts as the results of the present code.

Use `accept` after a refactor, or an upgrade, that does not change results: new code means new keys, and without `accept`
the next run would compute the same artifacts again. Whether results would be the same is the user's word.
"""

from __future__ import annotations

import secrets
import shutil
from argparse import ArgumentParser, Namespace
from typing import Any, NotRequired, TypedDict

from trnflow.flows.cli.arguments import add_command
from trnflow.flows.cli.output import emit
from trnflow.flows.finetune import finetune
from trnflow.flows.runner.attempts import unfinished
from trnflow.flows.runner.context import make_plan, open_context
from trnflow.flows.runner.plan import Plan, Step
from trnflow.flows.runner.stored import check_record
from trnflow.flows.runner.work_folders import workplace
from trnflow.tasks.artifact import Json
from trnflow.tasks.documents import Adoption, Journal, KeyDocument, Record
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.keys.explain import ValueChange, difference, leaves, moved_settings
from trnflow.tasks.keys.key_document import key_of
from trnflow.tasks.store import Store
from trnflow.tasks.system.clock import now


def add_commands(sub: Any, recipe: ArgumentParser) -> None:
    adopt = add_command(sub, "accept", accept, recipe, "record a stage's past result as that of the present code")
    adopt.add_argument("stage", nargs="?")
    adopt.add_argument("--all", action="store_true", help="every stage, and the partial state of a training")


def accept(options: Namespace) -> int:
    """Make past artifacts the results of a stage's present key, or of each stage's.

    Candidates have the same inputs, no setting with another value, and their bytes in the store; the one with the fewest
    differences is taken. Raises ConfigError without a candidate, and if the stage's inputs are not known yet.
    """
    if options.all == (options.stage is not None):
        raise ConfigError("accept takes a stage or --all", "name one of them")
    context = open_context(options.recipe, options.overrides, offline=True, create=False)
    graph = finetune(context.recipe)
    if not options.all:
        stage = graph.stage(options.stage)
        result = _accept(context.store, make_plan(graph, context).steps[stage])
        emit(options, result, *_lines(result))
        return 0
    plan = make_plan(graph, context)
    results = [_accept_or_say_why(plan, stage) for stage in graph.stages]
    emit(options, {"stages": results}, *(line for result in results for line in _lines(result)))
    return 0


Accepted = TypedDict(
    "Accepted",
    {
        "stage": str, "accepted": bool, "key": NotRequired[str], "from": NotRequired[str | None],
        "changes": NotRequired[list[dict[str, Json]]], "artifact": NotRequired[str], "created": NotRequired[str],
        "why": NotRequired[str], "partial": NotRequired[int | None],
    },
)  # fmt: skip
"""What `--json` prints of a stage. accepted: False for a cached one; artifact: absent where none was found; partial: the
step from which an unfinished training goes on."""


def _accept_or_say_why(plan: Plan, stage: str) -> Accepted:
    plan.predict()  # what was accepted above makes the inputs known
    step = plan.steps[stage]
    try:
        return _accept(plan.store, step)
    except ConfigError as error:
        document = step.document if step.node.stage.resumable else None
        partial = _accept_partial(plan.store, stage, document) if document else None
        return {"stage": stage, "accepted": False, "why": error.message, "partial": partial}


def _accept(store: Store, step: Step) -> Accepted:
    stage, document = step.name, step.document
    if document is None:
        raise ConfigError(
            f"the inputs of {stage} are not known yet: {step.why}", "run or accept the stages above it first"
        )
    result: Accepted = {"stage": stage, "key": key_of(document), "accepted": False, "from": None, "changes": []}
    if step.artifact is not None:
        return {**result, "artifact": step.artifact.digest, "why": step.why}
    past, changes = _past(store, step, document)
    _adopt(store, stage, document, past, changes)
    return {
        **result, "accepted": True, "from": past["key"], "artifact": past["artifact"], "created": past["created"],
        "changes": [change._asdict() for change in changes],
    }  # fmt: skip


def _lines(result: Accepted) -> list[str]:
    stage = result["stage"]
    if result["accepted"]:
        made = f"{result['artifact'][:19]}, made {result['created']}"
        changes = [f"  {ValueChange(**change)}" for change in result["changes"]]
        return [f"{stage}: {made}, is now also the result of key {result['key'][:12]}", *changes]
    if "artifact" in result:
        return [f"{stage} is cached already: {result['why']}"]
    if result["partial"] is not None:
        return [f"{stage}: the next run goes on from step {result['partial']} of an unfinished training"]
    return [f"{stage}: {result['why']}"]


def _accept_partial(store: Store, stage: str, document: KeyDocument) -> int | None:
    """Copy the partial state of the nearest unfinished key with the same result; return its last step, or None."""
    key, ours = key_of(document), store.partial(key_of(document))
    steps = ours.steps()
    if steps:
        return steps[-1]
    near = []
    for other in unfinished(store, stage):
        changes = difference(other["document"], document)
        if not any(_is_another_result(change, other["document"], document) for change in changes):
            near.append((changes, other["document"]))
    if not near:
        return None
    changes, before = min(near, key=lambda pair: len(pair[0]))
    theirs = store.partial(key_of(before))
    for step in theirs.steps():  # all: the best evaluation's state may be another than the last
        folder = theirs.sound(step, lambda text: None)
        if folder is not None:
            with workplace(store.home, "accept") as work:
                copy = shutil.copytree(folder, work / "state", ignore=shutil.ignore_patterns("COMMIT"))
                ours.commit(step, copy)
    adopted: Adoption = {"from": key_of(before), "changes": [str(change) for change in changes]}
    _write_journal(store, stage, document, {"document": document, "adopted": adopted})
    return max(store.partial(key).steps(), default=None)


def _past(store: Store, step: Step, document: KeyDocument) -> tuple[Record, list[ValueChange]]:
    """Return the nearest past record with the same inputs and settings whose bytes are in the store, and its changes."""
    refused: list[ValueChange] = []
    found = []
    for record in store.records(step.name):
        changes = difference(record["document"], document)
        wrong = [change for change in changes if _is_another_result(change, record["document"], document)]
        if wrong:
            refused = refused or wrong
        elif check_record(store, record, step.node.stage.kind, set()).artifact is not None:
            found.append((record, changes))
    if not found:
        why = f"{refused[0]}" if refused else "there is no past result whose bytes are still there"
        raise ConfigError(
            f"no past result of {step.name} can be accepted: {why}",
            "accept is for refactored code; a change of inputs or settings must run",
        )
    return min(found, key=lambda pair: len(pair[1]))


def _is_another_result(change: ValueChange, before: KeyDocument, after: KeyDocument) -> bool:
    """Return whether a change between two key documents changes the result: of inputs, or of a setting that both have."""
    if change.part != "params":
        return change.part == "inputs"
    old, new = dict(leaves(before["params"])), dict(leaves(after["params"]))
    moved = moved_settings(before["params"], after["params"])
    if change.name in moved:
        return bool(old[change.name] != new[moved[change.name]])
    return change.name in old and change.name in new


def _adopt(store: Store, stage: str, document: KeyDocument, past: Record, changes: list[ValueChange]) -> None:
    journal = store.attempt(past["key"], past["attempt"])
    fields: Journal = {"artifact": past["artifact"], "adopted": {"from": past["key"], "attempt": past["attempt"]}}
    # what the result once took tells plans what it would take
    for name in ("figures", "seconds", "bytes"):
        if name in journal:
            fields[name] = journal[name]
    attempt, when = _write_journal(store, stage, document, fields)
    store.restore([], store.artifact(past["artifact"]))
    record: Record = {
        "schema": 1, "stage": stage, "key": key_of(document), "document": document, "artifact": past["artifact"],
        "attempt": attempt, "created": when,
        "adopted": {"from": past["key"], "created": past["created"], "changes": [str(change) for change in changes]},
    }  # fmt: skip
    if "counted" in past:
        record["counted"] = past["counted"]
    store.publish(record, replace=True)


def _write_journal(store: Store, stage: str, document: KeyDocument, fields: Journal) -> tuple[str, str]:
    """Write the journal of an attempt that adopts; return the attempt's id and time."""
    when, attempt = now(), f"accept-{secrets.token_hex(4)}"
    journal: Journal = {
        "schema": 1, "attempt": attempt, "stage": stage, "outcome": "adopted", "started": when, "ended": when, **fields,
    }  # fmt: skip
    store.write_attempt(key_of(document), attempt, journal)
    return attempt, when
