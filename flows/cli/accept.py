"""`trnflow accept RECIPE STAGE`: record a stage's past artifact as the result of the present code.

Use `accept` after a refactor that does not change results. The refactored code gives the stage a new key, so without
`accept` the next run would compute the same artifact again.
"""

from __future__ import annotations

import argparse
import secrets
from argparse import Namespace
from typing import Any

from trnflow.flows.cli.output import emit
from trnflow.flows.finetune import KINDS, finetune
from trnflow.flows.runner.context import make_plan, open_context
from trnflow.flows.runner.stored import check_record
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.keys.explain import Change, difference, moved_settings
from trnflow.tasks.keys.key_document import key_of
from trnflow.tasks.keys.lineage import leaves
from trnflow.tasks.store import Store
from trnflow.tasks.system.clock import now


def add_commands(sub: Any, recipe: argparse.ArgumentParser) -> None:
    adopt = sub.add_parser("accept", parents=[recipe], help="record a stage's past result as that of the present code")
    adopt.add_argument("stage")
    adopt.set_defaults(command=accept)


def accept(options: Namespace) -> int:
    """Make a past artifact the result of a stage's present key.

    Candidates have the same inputs, no setting with another value (one may be new, gone or moved), and their bytes in
    the store; the one with the fewest differences is taken. Nothing is written for a cached stage.

    Raises:
        ConfigError: There is no candidate, or the stage's inputs are not known yet.
    """
    context = open_context(options.recipe, options.overrides, offline=True, create=False)
    store, graph = context.store, finetune(context.recipe)
    stage = graph.stage(options.stage)
    step = make_plan(graph, context).steps[stage]
    document = step.document
    if document is None:
        raise ConfigError(
            f"the inputs of {stage} are not known yet: {step.why}", "run or accept the stages above it first"
        )
    past = None if step.artifact is not None else _past(store, stage, document)
    if past is not None:
        _adopt(store, stage, document, *past)
    done: Meta = {
        "stage": stage,
        "key": key_of(document),
        "accepted": past is not None,
        "from": past[0]["key"] if past else None,
        "artifact": past[0]["artifact"] if past else step.artifact and step.artifact.digest,
        "changes": [change._asdict() for change in past[1]] if past else [],
    }
    lines = [f"{stage} is cached already: {step.why}"]
    if past is not None:
        made = f"{done['artifact'][:19]}, made {past[0]['created']}"
        lines = [f"{stage}: {made}, is now also the result of key {done['key'][:12]}"]
        lines += [f"  {change}" for change in past[1]]
    emit(options, done, *lines)
    return 0


def _past(store: Store, stage: str, document: Meta) -> tuple[Meta, list[Change]]:
    """Return the nearest past record with the same inputs and settings whose bytes are in the store, and its changes."""
    refused: list[Change] = []
    found = []
    for record in store.records(stage):
        changes = difference(record["document"], document)
        wrong = [change for change in changes if _is_another_result(change, record["document"], document)]
        if wrong:
            refused = refused or wrong
        elif check_record(store, record, KINDS[stage], set()).artifact is not None:
            found.append((record, changes))
    if not found:
        why = f"{refused[0]}" if refused else "there is no past result whose bytes are still there"
        raise ConfigError(
            f"no past result of {stage} can be accepted: {why}",
            "accept is for refactored code; a change of inputs or settings must run",
        )
    return min(found, key=lambda pair: len(pair[1]))


def _is_another_result(change: Change, before: Meta, after: Meta) -> bool:
    """Return whether a change between two key documents changes the result: of inputs, or of a setting that both have."""
    if change.part != "params":
        return change.part == "inputs"
    old, new = dict(leaves(before["params"])), dict(leaves(after["params"]))
    moved = moved_settings(before["params"], after["params"])
    if change.name in moved:
        return bool(old[change.name] != new[moved[change.name]])
    return change.name in old and change.name in new


def _adopt(store: Store, stage: str, document: Meta, past: Meta, changes: list[Change]) -> None:
    key, when, attempt = key_of(document), now(), f"accept-{secrets.token_hex(4)}"
    journal = store.attempt(past["key"], past["attempt"])
    copied: Meta = {name: journal[name] for name in ("figures", "seconds", "bytes") if name in journal}
    store.write_attempt(
        key,
        attempt,
        {
            "schema": 1, "attempt": attempt, "stage": stage, "outcome": "adopted", "started": when, "ended": when,
            "artifact": past["artifact"], "adopted": {"from": past["key"], "attempt": past["attempt"]}, **copied,
        },
    )  # fmt: skip
    store.secure([], store.artifact(past["artifact"]))
    adopted = {"from": past["key"], "created": past["created"], "changes": [str(change) for change in changes]}
    record = {"schema": 1, "stage": stage, "key": key, "document": document, "artifact": past["artifact"]}
    store.publish(record | {"attempt": attempt, "created": when, "adopted": adopted}, replace=True)
