"""The plan of a run: what is done with each stage, found out without running one.

Loads neither torch nor Prefect, and writes nothing to the store. The run then settles the plan's steps, so it trains on
what the plan has looked up and checked.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from trnflow.flows.runner.attempts import outlook
from trnflow.flows.runner.code_parts import remember_parts
from trnflow.flows.runner.forecast import forecast
from trnflow.flows.runner.graph import Graph, Lookup, Node
from trnflow.flows.runner.reasons import in_words, nearest_changes
from trnflow.flows.runner.stored import Stored, check_record
from trnflow.tasks.artifact import CODE, Artifact, Meta, Source
from trnflow.tasks.config import StageConfig
from trnflow.tasks.documents import Documented, KeyDocument, Record, RecordedStage, StageFacts
from trnflow.tasks.errors import TrnflowError
from trnflow.tasks.events.event_types import PlannedStage
from trnflow.tasks.keys.explain import ValueChange
from trnflow.tasks.keys.hash_cache import Memo, Stamp, in_threads, stamp
from trnflow.tasks.keys.key_document import key_document, key_of
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.stage import Known, Role, stage_of
from trnflow.tasks.store import Store
from trnflow.tasks.store.layout import SHARD
from trnflow.tasks.store.store import READERS

RECENT = 50
"""Past records of a stage that a plan reads, to say what changed and what it will cost."""


class Given(NamedTuple):
    """What stands for a stage's result in a job: the artifact, and the key under which it is on record."""

    artifact: Artifact
    key: str


GIVES_NOTHING: Mapping[str, Given] = {}

Inputs = dict[str, Any]
"""By parameter name: artifacts, sources, and nodes that have not run yet."""

FACTS = ("splits", "longest", "lengths", "parameters", "target")


@dataclass(frozen=True)
class Options:
    """Options of one run that are not part of the recipe.

    Attributes:
        until: The stage after which the run stops; None for the last.
        force: Stages to run even if their artifacts are in the store.
        offline: Whether to make no requests to a hub.
        record: Whether the store keeps a run record.
    """

    until: str | None = None
    force: frozenset[str] = frozenset()
    offline: bool = False
    record: bool = True

    def to_json(self) -> Meta:
        """Return {until, force, offline}."""
        return {"until": self.until, "force": sorted(self.force), "offline": self.offline}

    def check(self, graph: Graph) -> None:
        """Raise ConfigError if `until` or `force` names a stage that the graph does not have."""
        for name in (*self.force, *((self.until,) if self.until else ())):
            graph.stage(name)


@dataclass
class Step:
    """What is done with a node: as planned, and when it is settled, as it was.

    Attributes:
        action: Planned: `hit`, `run`, `maybe` (not known before another stage has run, or a file was checked) or `skip`
            (no other stage needs it). Settled: `hit`, `ran` or `skip`.
        why: The reason, as text for the user; may be empty.
        resolved: The config with what its stage finds in its inputs (`Stage.resolve`), as far as they are known.
        key, document: None while an input is not known.
        artifact: What the stage made, or what the store has; None if there is none.
        seconds: Settled: how long it took in this run, 0 for a hit. Planned: as expected, or None.
        figures: What the attempt that made the artifact measured.
        expected_bytes: The expected size of the artifact, or None.
        settled: Whether this run is done with it.
        is_guess: Whether the key is that of this machine, while another one will run the stage.
    """

    node: Node
    action: str = "maybe"
    why: str = ""
    resolved: StageConfig | None = None
    key: str | None = None
    document: KeyDocument | None = None
    artifact: Artifact | None = None
    seconds: float | None = 0.0
    figures: Meta = field(default_factory=dict)
    expected_bytes: int | None = None
    settled: bool = False
    is_guess: bool = False

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def config(self) -> StageConfig:
        return self.resolved or self.node.config

    @property
    def chosen(self) -> Meta:
        """{setting: value} that the stage found in its inputs."""
        given, found = self.node.config, self.config
        names = type(given).model_fields if self.resolved else ()
        return {name: getattr(found, name) for name in names if getattr(found, name) != getattr(given, name)}

    @property
    def bytes(self) -> int | None:
        return self.artifact.size if self.artifact else self.expected_bytes

    @property
    def metrics(self) -> Meta:
        """The metrics in the artifact's metadata; what varies from run to run is in `figures`."""
        return dict(self.artifact.meta.get("metrics", {})) if self.artifact else {}

    @property
    def facts(self) -> Meta:
        """What tables show of an artifact without metrics, such as the rows of each split."""
        if self.artifact is None or self.metrics:
            return {}
        meta = self.artifact.meta
        if self.node.stage.role == "graphs":
            return {"graphs": len(meta.get("graphs", []))}
        return {name: meta[name] for name in FACTS if name in meta}

    def to_json(self) -> PlannedStage:
        """Return the step as a plan shows it."""
        return {**self._common(), "bytes": self.bytes}

    def outcome(self) -> RecordedStage:
        """Return the settled step as a run record has it."""
        return {**self._common(), "metrics": self.metrics, "figures": self.figures}

    def _common(self) -> StageFacts:
        return {
            "stage": self.name, "action": self.action, "why": self.why, "key": self.key,
            "artifact": self.artifact.digest if self.artifact else None, "seconds": self.seconds,
        }  # fmt: skip

    def take(self, stored: Stored) -> None:
        """Take over a result of the store."""
        self.action, self.why, self.artifact = stored.action, stored.why, stored.artifact
        self.seconds, self.figures = stored.seconds, stored.figures


def kept_steps(
    step: Step, inputs: Mapping[str, Any], memo: Memo, stamp_of: Callable[[str], Stamp] = stamp
) -> dict[str, Step]:
    """Return {parameter: step of its own} of the inputs that a step's stage keeps. inputs: the step's, all known."""
    stage, steps = step.node.stage, {}
    for name, kept in stage.kept.items():
        if (config := kept.config(step.config)) is None or not kept.reads(inputs):
            continue
        takes = stage_of(kept.function).takes
        given = {other: item for other, item in inputs.items() if other in takes}
        node = Node(kept.function, config, dict.fromkeys(takes) | given, name=f"{stage.name}{SHARD}")
        document = key_document(node.stage, node.config, given, memo, stamp_of) | {"stage": node.name}
        steps[name] = Step(node, key=key_of(document), document=document)
    return steps


class Plan:
    """What is done with each node of a graph.

    Attributes:
        found: What each lookup of the graph found.
        steps: By stage name, in the graph's order.
        notes: Sentences for the user.
        lost: Digests of blobs that were found missing or corrupt.
        start: The model in the store that training starts from; None if there is none, or while it is not known.
        given: {stage: what stands for its step}; what the stage reads is not looked up.
        recipe: The recipe's name; "" compares with the runs of all.
        seconds: How long the plan took.
    """

    def __init__(
        self, graph: Graph, store: Store, resolver: Resolver, lost: set[str], given: Mapping[str, Given] = GIVES_NOTHING,
        recipe: str = "",
    ) -> None:  # fmt: skip
        begun = time.monotonic()
        self.graph = graph
        self.store = store
        self.resolver = resolver
        self.notes: list[str] = []
        self.lost = lost
        self.given = given
        self.recipe = recipe
        self._foreseen: dict[str, Meta] = {}
        self.found: dict[Lookup, Any] = {lookup: lookup.find(store, resolver) for lookup in graph.lookups(given)}
        for source in self.sources.values():
            if source.note:
                self.notes.append(f"{source.kind}: {source.note}")
        remember_parts(self.own_code, store.memo)
        self.predict()
        store.memo.save()
        self.seconds = time.monotonic() - begun

    @property
    def sources(self) -> dict[str, Source]:
        """The sources by kind: `data`, `model`."""
        given = (item for node in self.graph.nodes for item in node.inputs.values())
        items = [item for item in (*given, *self.found.values()) if isinstance(item, Source)]
        return {item.kind: item for item in items if item.kind != CODE}

    @property
    def own_code(self) -> list[Source]:
        """The user's own code that stages call."""
        return [item for item in self.found.values() if isinstance(item, Source) and item.kind == CODE]

    @property
    def roles(self) -> dict[Role | None, Step]:
        """The steps by the role of their stage."""
        return {step.node.stage.role: step for step in self.steps.values()}

    def told(self, record: Documented, changes: Sequence[ValueChange]) -> list[str]:
        """Return what changed since a record, as texts."""
        return in_words(self.store, self.sources.get("data"), record, changes)

    def own(self, records: Sequence[Record]) -> list[Record]:
        """Return those of `records` that runs of this recipe made or found. What another recipe did is no reason."""
        return [record for record in records if self._is_own(record)]

    def _is_own(self, record: Record) -> bool:
        # a journal that is lost, or of a store without recipes, tells of no other recipe
        made_for = self.store.attempt(record["key"], record["attempt"]).get("recipe") if self.recipe else ""
        return not made_for or made_for == self.recipe or (record["stage"], record["key"]) in self._on_record

    @cached_property
    def _on_record(self) -> set[tuple[str, str | None]]:
        """(stage, key) of the recipe's newest runs: also of what another recipe made."""
        read = in_threads(self.store.run, self.store.run_ids()[:RECENT], 1 if self.store.is_local else READERS)
        runs = [run for run in read if run and run.get("recipe") == self.recipe]
        return {(stage["stage"], stage["key"]) for run in runs for stage in run.get("stages", [])}

    def predict(self) -> None:
        """Look up anew what would be done with each node. What the lookups found stays."""
        self.start: Artifact | None = None
        self._chosen: dict[Lookup, Artifact | None] = {}
        self.steps = {node.name: Step(node) for node in self.graph.nodes}
        stamp_of = functools.cache(stamp)  # for this moment: the run looks again when a stage's turn comes
        for step in self.steps.values():
            if step.name in self.given:
                artifact, step.key = self.given[step.name]
                step.take(Stored(artifact, "hit", "given", 0.0, {}))
                step.settled = True
            else:
                self._predict(step, stamp_of)
        for step in self.steps.values():
            for needed in (self.steps[node.name] for node in step.node.after.values()):
                if step.action == "hit" and needed.action != "hit":
                    needed.action, needed.why = "skip", f"{step.name} is a hit"

    def gives(self, digest: str) -> bool:
        """Return whether a blob is of a given artifact, which no stage of this run can make anew."""
        return any(
            digest in (artifact.digest, *(file.digest for file in artifact.files))
            for artifact, _ in self.given.values()
        )

    def artifact(self, stage: str) -> Artifact:
        """Return what a stage made or the store has, of a step that was settled."""
        artifact = self.steps[stage].artifact
        assert artifact is not None
        return artifact

    def due(self, options: Options) -> list[Step]:
        """Return the steps that may have to run."""
        due = ("run", "maybe")
        return [
            step
            for step in self.until(options)
            if step.name not in self.given and (step.action in due or step.name in options.force)
        ]

    def until(self, options: Options) -> list[Step]:
        """Return the steps up to the stage after which the run stops."""
        return [self.steps[name] for name in self.graph.until(options.until)]

    def bind(self, step: Step, stamp_of: Callable[[str], Stamp] = stamp) -> list[str]:
        """Fill in the step's document and key. Return the names of the stages whose artifacts are not known yet: then
        there is no key."""
        step.node.check(self)
        inputs = self.inputs_of(step)
        unknown = [item.name for item in inputs.values() if isinstance(item, Node)]
        memo = self.store.memo
        step.resolved = step.node.stage.resolved(step.node.config, inputs)
        step.document = None if unknown else key_document(step.node.stage, step.config, inputs, memo, stamp_of)
        if step.document and self.graph.elsewhere and self.graph.runs_elsewhere(step.name):
            there = self.graph.elsewhere.document(self.store, step.name, step.document)
            step.is_guess, step.document = there is None, there or step.document
        step.key = key_of(step.document) if step.document else None
        return list(dict.fromkeys(unknown))

    def inputs_of(self, step: Step) -> Inputs:
        """Return the step's inputs by parameter name; a node stands for its artifact that is not known yet."""
        values = {name: self._value(item) for name, item in step.node.inputs.items()}
        for name, item in step.node.inputs.items():
            if isinstance(item, Lookup) and item.choose and self.found[item] is not None:
                values[name] = self._choose(step, item, {other: values[other] for other in values if other != name})
        return {name: value for name, value in values.items() if value is not None}

    def check_needs(self, options: Options, *, here: Mapping[str, str] | None = None) -> None:
        """Raise a TrnflowError if a stage that may have to run is bound to fail, as far as is known now; note the
        stages' remarks. here: `launch.environment`, filled in, if the stages will run on this machine."""
        due = {step.name for step in self.due(options) if not step.settled}
        # what another machine has is found out there
        known = Known(self.sources, here=None if self.graph.elsewhere else here)
        for step in self.until(options):
            described = step.node.stage
            if described.role:
                known.meta[described.role] = step.artifact.meta if step.artifact else self._foresee(step, known)
        for step in self.until(options):
            if step.name in due:
                try:
                    step.node.needs(known)
                    for stage, config in step.node.stage.with_kept(step.config):
                        for remark in stage.needs(config, known):
                            self.note(remark)
                except TrnflowError as error:
                    # before anything ran the settings are wrong, later what a stage has made for this one
                    error.stage = error.stage or (
                        step.name if any(each.settled for each in self.steps.values()) else ""
                    )
                    raise
        for remark in self.graph.remarks(known):
            self.note(remark)

    def _foresee(self, step: Step, known: Known) -> Meta:
        """Return what is known of a step's metadata before it runs. Of sources alone, whose files are read for it, once."""
        if any(isinstance(item, Node) for item in step.node.inputs.values()):
            return step.node.stage.foresee(step.config, known)
        if step.name not in self._foreseen:
            self._foreseen[step.name] = step.node.stage.foresee(step.config, known)
        return self._foreseen[step.name]

    def _value(self, item: Node | Artifact | Source | Lookup) -> Any:
        if isinstance(item, Node):
            return self.steps[item.name].artifact or item
        return self.found[item] if isinstance(item, Lookup) else item

    def _choose(self, step: Step, lookup: Lookup, others: Inputs) -> Artifact | None:
        """Return the artifact that a lookup chooses for the first step that reads it, once its other inputs are known."""
        others = {name: value for name, value in others.items() if value is not None}
        if lookup not in self._chosen:
            if any(isinstance(value, Node) for value in others.values()):
                artifact: Artifact | None = self.found[lookup].artifact
                return artifact
            assert lookup.choose is not None
            document = key_document(step.node.stage, step.config, others, self.store.memo)
            self._chosen[lookup], note = lookup.choose(self.store, self.found[lookup], document)
            self.start = self._chosen[lookup]
            self.note(note)
        return self._chosen[lookup]

    def note(self, text: str) -> None:
        """Add a note for the user, once."""
        if text and text not in self.notes:
            self.notes.append(text)

    def _predict(self, step: Step, stamp_of: Callable[[str], Stamp]) -> None:
        unknown = self.bind(step, stamp_of)
        if unknown:
            step.why = f"waits for {' and '.join(unknown)}"
            self._forecast(step, self._past(step), {"params": step.node.stage.params(step.config)})
            return
        assert step.document is not None and step.key is not None
        # a result of this machine may be another one's, too, which only a job can tell
        if step.is_guess:
            step.why = "runs on another machine, and no job has told yet what its keys are"
            self._forecast(step, self._past(step), step.document)
            return
        lost = self._recorded(step)
        if lost is None:
            return
        past = self._past(step)
        own = [] if lost else self.own(past)
        never = f"never ran for {self.recipe}" if past and self.recipe else "never ran in this store"
        why = lost or nearest_changes(own, step.document, self.told) or never
        if step.node.stage.resumable:
            start = outlook(self.store, step.name, step.key, step.document, self.told, self.recipe)
            why = "; ".join(filter(None, (why, start)))
        kept = kept_steps(step, self.inputs_of(step), self.store.memo, stamp_of)
        if names := [name for name, of in kept.items() if self.store.record(of.name, str(of.key)) is not None]:
            why += f"; its {' and '.join(names).replace('_', ' ')} are kept"
        step.action, step.why = "run", why
        self._forecast(step, past, step.document)

    def _recorded(self, step: Step) -> str | None:
        """Take the store's result, and return None; "" without a record, else why its artifact can't be used."""
        record = self.store.record(step.name, str(step.key))
        if record is None:
            return ""
        recorded = check_record(self.store, record, step.node.stage.kind, self.lost)
        if recorded.artifact is None:
            return f"its artifact is damaged or gone: {recorded.why}"
        step.take(Stored.of_record(self.store, record, recorded.artifact))
        if recorded.changed:  # perhaps undamaged, or made again with the same bytes: stages below are planned with it
            step.action, step.why = "maybe", f"{recorded.changed[0].path} changed on disk, run will check"
            self._forecast(step, self._past(step), step.document or {})
        return None

    def _past(self, step: Step) -> list[Record]:
        return self.store.records(step.name, RECENT)

    def _forecast(self, step: Step, past: list[Record], known: Mapping[str, Any]) -> None:
        step.seconds, step.expected_bytes = forecast(self.store, past, known)
