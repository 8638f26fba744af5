"""The graph of a pipeline: its stages, each with its config and inputs, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from trnflow.flows.recipes.files import nearest
from trnflow.tasks.artifact import Artifact, Meta, Source
from trnflow.tasks.config import StageConfig
from trnflow.tasks.documents import KeyDocument
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.stage import Known, Stage, stage_of
from trnflow.tasks.store import Store

Choose = Callable[[Store, Any, KeyDocument], tuple[Artifact | None, str]]


@dataclass(frozen=True, eq=False)
class Lookup:
    """An input that no stage of the graph makes, looked up when the plan is made.

    Attributes:
        find: (store, resolver) -> the source, or what `choose` needs; None for no input.
        choose: (store, what was found, key document of the first stage that reads the input, without it) -> (artifact
            or None, note for the user). None: what was found is the input.
    """

    find: Callable[[Store, Resolver], Any]
    choose: Choose | None = None


def source_of(find: Callable[[Any, Resolver], Source], config: StageConfig) -> Lookup:
    """Return the lookup of the source that a config names, such as `source_of(data_source, recipe.data)`."""
    return Lookup(lambda store, resolver: resolver.ask_once(find, config))


NodeInputs = dict[str, "Node | Artifact | Source | Lookup | None"]
"""By parameter name."""


class Node:
    """A stage with its config and inputs."""

    def __init__(
        self,
        function: Callable[..., Meta] | Stage,
        config: StageConfig,
        inputs: NodeInputs,
        *,
        after: Mapping[str, Node] | None = None,
        check: Callable[[Any], None] = lambda plan: None,
        needs: Callable[[Known], None] = lambda known: None,
        name: str | None = None,
    ) -> None:
        """
        Args:
            inputs: By parameter name. An input that is None leaves its parameter at the default.
            after: Nodes that run only if this one runs (or if the run ends with them), such as precompile for train. This
                stage reads their artifacts, by parameter name; its key does not depend on them.
            check: Called with the `Plan` before the node is bound, in a plan and in a run; raises a TrnflowError if it
                can't run.
            needs: As the stage's `needs`, without remarks, for what is in no key.
            name: Default: the stage's.

        Raises TypeError if `inputs` and `after` don't name the function's parameters.
        """
        self.stage = function if isinstance(function, Stage) else stage_of(function)
        self.config, self.check, self.needs = config, check, needs
        self.name = name or self.stage.name
        given, names = {*inputs, *(after or {})}, self.stage.takes
        if given != names:
            raise TypeError(f"{self.stage.name} takes the inputs {sorted(names)}, and was given {sorted(given)}")
        self.inputs = {name: item for name, item in inputs.items() if item is not None}
        self.after = dict(after or {})


class Elsewhere(Protocol):
    """Interface of what has another machine run stages of a graph, all in one job.

    stages: their names, in order.
    check: (`RunContext`) raises a TrnflowError before anything runs if the job can't be made.
    make: (`Step`, `Plan`, `RunContext`, `Options`, `Around`) returns the result (`Stored`) of a step once the job has ended it.
    submit: (`Plan`, `RunContext`, `Options`) returns what names the job, and the platform's ticket.
    document: returns a stage's key document as it is there; None if that is not known.
    """

    stages: tuple[str, ...]

    def check(self, context: Any) -> None: ...

    def make(self, step: Any, plan: Any, context: Any, options: Any, around: Any) -> Any: ...

    def submit(self, plan: Any, context: Any, options: Any) -> tuple[Any, str | None]: ...

    def document(self, store: Store, stage: str, document: KeyDocument) -> KeyDocument | None: ...


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in the order in which they run.

    Attributes:
        check: (`Plan`, the stage after which the run stops, step name -> its warm parent). Called before the first stage
            runs; raises a TrnflowError if the run is bound to fail.
        remarks: What is known -> sentences for the user.
        elsewhere: Has another machine run some of the stages; None if all run here.
    """

    nodes: tuple[Node, ...]
    check: Callable[[Any, str | None, Callable[[str], Any]], None] = lambda plan, until, parent: None
    remarks: Callable[[Known], Iterable[str]] = lambda known: ()
    elsewhere: Elsewhere | None = None

    @cached_property
    def stages(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes)

    @cached_property
    def deferred(self) -> frozenset[str]:
        """Names of the nodes that run only for another node."""
        return frozenset(needed.name for node in self.nodes for needed in node.after.values())

    def runs_elsewhere(self, stage: str) -> bool:
        return self.elsewhere is not None and stage in self.elsewhere.stages

    def lookups(self, given: Collection[str] = ()) -> Iterator[Lookup]:
        """Yield each lookup once, but for those that only stages of `given` read."""
        items = (item for node in self.nodes if node.name not in given for item in node.inputs.values())
        yield from dict.fromkeys(item for item in items if isinstance(item, Lookup))

    def stage(self, name: str) -> str:
        """Return `name` if a node has this name. Raises ConfigError."""
        return named_stage(name, self.stages)

    def until(self, stage: str | None) -> tuple[str, ...]:
        """Return the names of the stages up to and including `stage`; all for None."""
        return self.stages[: self.stages.index(stage) + 1] if stage else self.stages


def named_stage(name: str, stages: Sequence[str]) -> str:
    """Return `name` if it is one of `stages`; else raise ConfigError, which suggests the nearest."""
    if name not in stages:
        close = nearest(name, stages)
        fix = f"did you mean {close}?" if close else f"stages: {', '.join(stages)}"
        raise ConfigError(f"there is no stage {name}", fix)
    return name
