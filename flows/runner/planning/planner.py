"""Find out what a run would do, without running a stage. Imports neither Prefect nor torch, and writes nothing to the
store.

A stage's key is the hash of its key document, the JSON of everything that decides its result: code, settings, inputs,
library versions. A stage whose key has a usable artifact in the store is a hit.

The pipeline function is called with a `Planner` in place of a runner. A stage whose inputs depend on stages that have to
run gets the action `maybe` and no key: the stage will be a hit if its inputs turn out the same as in a past run.
"""

from __future__ import annotations

from trnflow.flows.runner.attempts import outlook
from trnflow.flows.runner.call import Call, Function, Outcome, Unknown, Value, bind
from trnflow.flows.runner.hits import hit, on_record
from trnflow.flows.runner.inputs import Inputs
from trnflow.flows.runner.planning.forecast import forecast
from trnflow.tasks.artifact import Artifact, Meta
from trnflow.tasks.config import StageConfig
from trnflow.tasks.keys.explain import nearest_record
from trnflow.tasks.keys.key_document import key_document, key_of
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.store import Store

RECENT = 50


class Planner(Inputs):
    """Finds out for each stage of a pipeline what a run would do with the stage, without running it. A pipeline
    function calls a Planner in the same way as a `Runner`.

    Args:
        store: The store in which past results are looked up.
        resolver: Finds out which exact bytes a path, URL or hub name stands for.

    Attributes:
        calls: {stage name: the stage's call}, in the pipeline's order.
        outcomes: {stage name: what a run would do}, with the action `hit` (the artifact is in the store), `run`,
            `maybe` (not known yet) or `skip` (not needed), in the same order.
        documents: {stage name: key document} of the stages whose inputs are known. A key document is the JSON of
            everything that decides a stage's result.
    """

    def __init__(self, store: Store, resolver: Resolver) -> None:
        super().__init__(store, resolver)
        self.calls: dict[str, Call] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.documents: dict[str, Meta] = {}

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

    def defer(self, function: Function, config: StageConfig, *inputs: Value) -> Call:
        """Plan a stage that a run would start only if a following stage needs it, such as precompile for train, and
        return its call, which the pipeline function passes to the following stage as `after`."""
        call = bind(function, config, inputs)
        self._look(call)
        return call

    def _look(self, call: Call) -> Outcome:
        self.calls[call.name] = call
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
        found = self._recorded(call, key, document)
        if isinstance(found, Outcome):
            return found
        past = self._past(call.name)
        why = found or self._why(document, past)
        if call.stage.resumable:
            why = "; ".join(filter(None, (why, outlook(self.store, call.name, key, document))))
        return self._expected(Outcome(call.name, "run", why, key), past, document)

    def _past(self, stage: str) -> list[Meta]:
        return self.store.records(stage, RECENT)

    def _expected(self, outcome: Outcome, past: list[Meta], known: Meta) -> Outcome:
        outcome.seconds, outcome.expected_bytes = forecast(self.store, past, known)
        return outcome

    def _recorded(self, call: Call, key: str, document: Meta) -> Outcome | str:
        """Return the outcome of a stage whose key has a record; "" if there is no record; the reason, as text, if the
        record's artifact can't be used.

        If files of the artifact changed on disk, the action is `maybe`: they may be undamaged, or be made again with
        the same bytes. The stages below are then planned with this artifact."""
        record = self.store.record(call.name, key)
        if record is None:
            return ""
        found = on_record(self.store, record, call.stage.kind, set())
        if found.artifact is None:
            return f"its artifact is damaged or gone: {found.why}"
        outcome = hit(self.store, record, found.artifact)
        if not found.changed:
            return outcome
        outcome.action, outcome.why = "maybe", f"{found.changed[0].path} changed on disk, run will check"
        return self._expected(outcome, self._past(call.name), document)

    def _why(self, document: Meta, past: list[Meta]) -> str:
        near = nearest_record(past, document)
        if near is None:
            return "never ran in this store"
        changes = near[1]
        more = f" and {len(changes) - 2} more" if len(changes) > 2 else ""
        return "; ".join(str(change) for change in changes[:2]) + more
