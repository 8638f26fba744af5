"""What a run would do, without doing it: imports neither Prefect nor torch and writes nothing.

The pipeline runs against a `Planner`; a stage whose inputs aren't known yet is `maybe` and has no key (its inputs may turn out
equal: early cut-off).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flows.call import Call, Function, Outcome, Unknown, Value, bind
from flows.damage import usable
from flows.earlier import earlier_model
from flows.forecast import forecast
from flows.stage import recorded
from flows.unfinished import outlook
from tasks.artifact import Artifact, Meta, Source
from tasks.config import StageConfig
from tasks.explain import nearest_record
from tasks.fingerprint import key_document, key_of
from tasks.resolve import Resolver
from tasks.store import Store

RECENT = 50


class Planner:
    """outcomes: by stage, in the pipeline's order; documents: of the stages whose key is known; sources:
    by kind."""

    def __init__(self, store: Store, resolver: Resolver) -> None:
        self.store = store
        self.resolver = resolver
        self.outcomes: dict[str, Outcome] = {}
        self.documents: dict[str, Meta] = {}
        self.sources: dict[str, Source] = {}
        self.notes: list[str] = []

    def resolve(self, find: Callable[[Any, Resolver], Source], config: StageConfig) -> Source:
        source = find(config, self.resolver)
        self.sources[source.kind] = source
        if source.note:
            self.notes.append(f"{source.kind}: {source.note}")
        return source

    def earlier(self, text: str | None, setting: str) -> Artifact | None:
        return None if text is None else earlier_model(self.store, text, setting)

    def __call__(
        self, function: Function, config: StageConfig, *inputs: Value | None, after: Call | None = None
    ) -> Artifact | Unknown:
        call = bind(function, config, inputs, after)
        outcome = self._look(call)
        for needed in call.after.values():
            if outcome.action == "hit" and self.outcomes[needed.name].action != "hit":
                self.outcomes[needed.name].action = "skip"
                self.outcomes[needed.name].why = f"{call.name} is a hit"
        return outcome.artifact or Unknown(call.name)

    def later(self, function: Function, config: StageConfig, *inputs: Value) -> Call:
        call = bind(function, config, inputs)
        self._look(call)
        return call

    def _look(self, call: Call) -> Outcome:
        self.outcomes[call.name] = outcome = self._outcome(call)
        return outcome

    def _outcome(self, call: Call) -> Outcome:
        if call.unknown:
            waits = " and ".join(dict.fromkeys(call.unknown))
            known = {"params": call.stage.params(call.config)}
            return self._expected(Outcome(call.name, "maybe", f"waits for {waits}"), self._past(call.name), known)
        document = key_document(call.stage, call.config, call.inputs, self.store.memo)
        key = key_of(document)
        self.documents[call.name] = document
        found = recorded(self.store, call, key, set())
        if found is not None:
            return found
        past = self._past(call.name)
        why = self._why(call.name, key, document, past)
        if call.stage.process:
            why = "; ".join(filter(None, (why, outlook(self.store, call.name, key, document))))
        return self._expected(Outcome(call.name, "run", why, key), past, document)

    def _past(self, stage: str) -> list[Meta]:
        return self.store.records(stage)[:RECENT]

    def _expected(self, outcome: Outcome, past: list[Meta], known: Meta) -> Outcome:
        outcome.seconds, outcome.expected_bytes = forecast(self.store, past, known)
        return outcome

    def _why(self, stage: str, key: str, document: Meta, past: list[Meta]) -> str:
        record = self.store.record(stage, key)
        if record is not None:
            return f"its artifact is damaged or gone: {usable(self.store, record, set())}"
        near = nearest_record(past, document)
        if near is None:
            return "never ran in this store"
        changes = near[1]
        more = f" and {len(changes) - 2} more" if len(changes) > 2 else ""
        return "; ".join(str(change) for change in changes[:2]) + more
