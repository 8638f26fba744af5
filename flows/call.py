"""A stage called with its config and inputs: what `run`, `plan` and `explain` have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tasks.artifact import Artifact, Meta, Source
from tasks.config import StageConfig
from tasks.resolve import Resolver
from tasks.stage import Stage, of

Function = Callable[..., Meta]


@dataclass(frozen=True)
class Unknown:
    """The output of a stage that `plan` can't know before it runs."""

    stage: str


Value = Artifact | Source | Unknown


@dataclass(frozen=True)
class Call:
    """inputs: by parameter name; after: order-only, kept out of the key; asked for only when the stage runs."""

    stage: Stage
    config: StageConfig
    inputs: dict[str, Any]
    after: dict[str, Call] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.stage.name

    @property
    def unknown(self) -> list[str]:
        """The stages whose outputs this call waits for."""
        return [item.stage for item in self.inputs.values() if isinstance(item, Unknown)]


@dataclass
class Outcome:
    """What became of a call. action: run: `hit`, `ran`, `skip`; plan: `hit`, `run`, `maybe`, `skip`.

    seconds: this run's (plan: expected, from the past, or None); figures: of the attempt that made the artifact;
    bytes: of the artifact (plan: expected, or None).
    """

    stage: str
    action: str
    why: str = ""
    key: str | None = None
    artifact: Artifact | None = None
    seconds: float | None = 0.0
    figures: Meta = field(default_factory=dict)
    expected_bytes: int | None = None

    @property
    def bytes(self) -> int | None:
        return self.artifact.size if self.artifact else self.expected_bytes

    @property
    def metrics(self) -> Meta:
        """The deterministic results a stage states in its metadata: f1_weighted, train_loss, perplexity ..."""
        return dict(self.artifact.meta.get("metrics", {})) if self.artifact else {}


class Stages(Protocol):
    """What a pipeline is written against: run it for real, in Prefect, or only ask what would run."""

    def resolve(self, find: Callable[[Any, Resolver], Source], config: StageConfig) -> Source: ...
    def earlier(self, text: str | None, setting: str) -> Artifact | None: ...
    def __call__(
        self, function: Function, config: StageConfig, *inputs: Value | None, after: Call | None = None
    ) -> Any: ...
    def later(self, function: Function, config: StageConfig, *inputs: Value) -> Call: ...


def bind(function: Function, config: StageConfig, inputs: tuple[Value | None, ...], after: Call | None = None) -> Call:
    """Name the inputs by the function's parameters (after `config`); the last one may be order-only. An input that is None is
    left to its default."""
    code = function.__code__
    names = [name for name in code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount] if name != "out"]
    order_only = {names[len(inputs)]: after} if after else {}
    if len(names) != len(inputs) + len(order_only):
        raise TypeError(f"{function.__name__} takes the inputs {names}, and was given {len(inputs)}")
    given = {name: item for name, item in zip(names, inputs, strict=False) if item is not None}
    return Call(of(function), config, given, order_only)


class Stop(Exception):
    """`--until`: the stage asked for is done."""
