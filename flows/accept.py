"""`accept RECIPE STAGE`: a past result stands for the code as it is now, for a refactor known to change nothing."""

from __future__ import annotations

import argparse
import secrets
import sys
from argparse import Namespace
from typing import Any

from flows import settings
from flows.attempts import now
from flows.commands import emit_json
from flows.run import check_stage, look, open_store
from tasks.artifact import Meta
from tasks.errors import BlobLost, ConfigError
from tasks.explain import Change, difference
from tasks.fingerprint import key_of
from tasks.lineage import leaves
from tasks.store import Store


def add_commands(sub: Any, recipe: argparse.ArgumentParser) -> None:
    adopt = sub.add_parser(
        "accept", parents=[recipe], help="take a stage's past result as that of the code as it is now"
    )
    adopt.add_argument("stage")
    adopt.set_defaults(command=accept)


def accept(options: Namespace) -> int:
    """Publish the nearest past result under the key the stage has now; the record says so."""
    recipe = settings.load(options.recipe, options.overrides)
    stage = check_stage(options.stage)
    store = open_store(recipe)
    planner = look(recipe, store)
    outcome, document = planner.outcomes[stage], planner.documents.get(stage)
    if document is None:
        raise ConfigError(
            f"the inputs of {stage} are not known yet: {outcome.why}", "run or accept the stages above it first"
        )
    past = None if outcome.action == "hit" else _past(store, stage, document)
    if past is not None:
        _adopt(store, stage, document, *past)
    done: Meta = {
        "stage": stage,
        "key": key_of(document),
        "accepted": past is not None,
        "from": past[0]["key"] if past else None,
        "artifact": past[0]["artifact"] if past else outcome.artifact and outcome.artifact.digest,
        "changes": [change._asdict() for change in past[1]] if past else [],
    }
    if options.json:
        emit_json({"schema": 1, **done})
    elif past is None:
        sys.stdout.write(f"{stage} is a hit already: {outcome.why}\n")
    else:
        sys.stdout.write(
            f"{stage}: {done['artifact'][:19]}, made {past[0]['created']}, stands under {done['key'][:12]} too\n"
        )
        sys.stdout.write("".join(f"  {change}\n" for change in past[1]))
    return 0


def _past(store: Store, stage: str, document: Meta) -> tuple[Meta, list[Change]]:
    """The past record that differs least (of equals the newest), its bytes still there, of the same inputs and settings."""
    refused: list[Change] = []
    found = []
    for record in store.records(stage):
        changes = difference(record["document"], document)
        wrong = [change for change in changes if _is_another_result(change, record["document"], document)]
        if wrong:
            refused = refused or wrong
        elif _is_whole(store, record):
            found.append((record, changes))
    if not found:
        why = f"{refused[0]}" if refused else "there is no past result whose bytes are still there"
        raise ConfigError(
            f"no past result of {stage} can stand for this one: {why}",
            "accept is for refactored code; what changes inputs or settings must run",
        )
    return min(found, key=lambda pair: len(pair[1]))


def _is_another_result(change: Change, before: Meta, after: Meta) -> bool:
    """Other inputs, or another value of a setting that both have: no refactor. Settings come and go with the code."""
    shared = dict(leaves(before["params"])).keys() & dict(leaves(after["params"])).keys()
    return change.part == "inputs" or (change.part == "params" and change.name in shared)


def _is_whole(store: Store, record: Meta) -> bool:
    try:
        return store.missing(store.artifact(record["artifact"])) is None
    except BlobLost:
        return False


def _adopt(store: Store, stage: str, document: Meta, past: Meta, changes: list[Change]) -> None:
    key, when, attempt = key_of(document), now(), f"accept-{secrets.token_hex(4)}"
    journal = store.attempt(past["key"], past["attempt"])
    told: Meta = {name: journal[name] for name in ("figures", "seconds", "bytes") if name in journal}
    store.write_attempt(
        key,
        attempt,
        {
            "schema": 1, "attempt": attempt, "stage": stage, "outcome": "adopted", "started": when, "ended": when,
            "artifact": past["artifact"], "adopted": {"from": past["key"], "attempt": past["attempt"]}, **told,
        },
    )  # fmt: skip
    store.secure([], store.artifact(past["artifact"]))
    adopted = {"from": past["key"], "created": past["created"], "changes": [str(change) for change in changes]}
    record = {"schema": 1, "stage": stage, "key": key, "document": document, "artifact": past["artifact"]}
    store.publish(record | {"attempt": attempt, "created": when, "adopted": adopted}, replace=True)
