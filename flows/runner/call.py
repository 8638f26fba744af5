"""The types `Call` (a stage with its config and its inputs), `Outcome` (what a run did with the stage, or would do) and
`Stages` (the interface through which a pipeline function calls its stages).

The commands `run`, `plan` and `explain` share these types. A stage's key is the hash of everything that decides its
result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from trnflow.flows.runner.warm_start import EarlierModel
from trnflow.tasks.artifact import Artifact, Meta, Source
from trnflow.tasks.config import StageConfig
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.stage import Stage, of

Function = Callable[..., Meta]


@dataclass(frozen=True)
class Unknown:
    """A placeholder, in a plan (the prediction of what a run would do), for the artifact of a stage that has yet to
    run. stage: the name of that stage."""

    stage: str


Value = Artifact | Source | Unknown


@dataclass(frozen=True)
class Call:
    """A stage with the config and the inputs that a pipeline gives it.

    Attributes:
        stage: The description of the stage function.
        inputs: The artifacts and sources that the stage reads, by parameter name; in a plan an input may be `Unknown`.
        config: The stage's config.
        after: {parameter name: call} of stages that are run, before this stage, only if this stage has to run (or if
            the run is to end with them), such as precompile for train. This stage reads their artifacts, but its key
            (the hash of everything that decides its result) does not depend on them.
    """

    stage: Stage
    config: StageConfig
    inputs: dict[str, Any]
    after: dict[str, Call] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.stage.name

    @property
    def unknown(self) -> list[str]:
        """Return the names of the stages that have yet to run before the inputs of this call are known (only in a plan)."""
        return [item.stage for item in self.inputs.values() if isinstance(item, Unknown)]


@dataclass
class Outcome:
    """What a run did with a stage, or what a plan expects a run to do with the stage.

    Attributes:
        stage: The stage's name.
        action: In a run: `hit` (the artifact was in the store), `ran` or `skip` (no other stage needed it). In a plan:
            `hit`, `run`, `maybe` (not known before another stage has run or a file was checked) or `skip`.
        why: The reason for the action, as text for the user; may be empty.
        key: The stage's key (the hash of everything that decides its result); None in a plan in which the stage's
            inputs are not known yet.
        artifact: What the stage made, or what was found in the store; None if there is none.
        seconds: How long the stage took in this run, 0 for a hit. In a plan: how long it is expected to take, or None.
        figures: What the attempt (try to run the stage) that made the artifact measured, such as samples_per_second.
        expected_bytes: In a plan, the expected size of the artifact, or None.
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
        """Return {name: value} of the metrics in the artifact's metadata, such as f1_weighted, train_loss or
        perplexity.

        The same inputs always give the same metrics; values that vary from run to run are in `figures`. Empty if there
        is no artifact.
        """
        return dict(self.artifact.meta.get("metrics", {})) if self.artifact else {}


class Stages(Protocol):
    """The interface through which a pipeline function, such as `trnflow.flows.finetune.finetune`, calls its stages.

    `Runner` runs the stages, `PrefectRunner` runs each stage as a Prefect task, and `Planner` only finds out what a run
    would do. `stage(function, config, *inputs)` returns the stage's artifact (in a plan perhaps an `Unknown`, the
    placeholder for an artifact that is yet to be made). The other methods are described in `trnflow.flows.runner.inputs.Inputs`
    and `trnflow.flows.runner.runner.Runner`.
    """

    def resolve(self, find: Callable[[Any, Resolver], Source], config: StageConfig) -> Source: ...
    def find_model(self, text: str | None, setting: str) -> EarlierModel | None: ...
    def check_vocabulary(self, start: EarlierModel | None, tokens: Any) -> None: ...
    def starting_model(
        self,
        earlier: EarlierModel | None,
        function: Function,
        config: StageConfig,
        *inputs: Value | None,
        after: Call | None,
    ) -> Artifact | None: ...
    def __call__(
        self, function: Function, config: StageConfig, *inputs: Value | None, after: Call | None = None
    ) -> Any: ...
    def defer(self, function: Function, config: StageConfig, *inputs: Value) -> Call: ...


def bind(function: Function, config: StageConfig, inputs: tuple[Value | None, ...], after: Call | None = None) -> Call:
    """Make the `Call` of a stage function: assign the inputs, in order, to the function's parameters after `config`.

    Args:
        function: A function with the decorator `stage`. Its parameters `parts` (pieces of work) and `out` (the folder
            to write to) are no inputs.
        inputs: An input that is None leaves its parameter at the default.
        after: The call of a stage that must run first, and whose artifact becomes the parameter that follows the
            inputs.

    Raises:
        TypeError: The number of inputs is not the number of parameters.
    """
    code = function.__code__
    names = [
        name for name in code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount] if name not in ("parts", "out")
    ]
    order_only = {names[len(inputs)]: after} if after else {}
    if len(names) != len(inputs) + len(order_only):
        raise TypeError(f"{function.__name__} takes the inputs {names}, and was given {len(inputs)}")
    given = {name: item for name, item in zip(names, inputs, strict=False) if item is not None}
    return Call(of(function), config, given, order_only)


class Stop(Exception):
    """Raised by `Runner` to leave the pipeline function when the stage that the option `--until` names is done. The
    caller does not treat the exception as an error."""
