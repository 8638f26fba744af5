"""Run and plan small graphs without a recipe file: the settings are the recipe demo's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from trnflow.flows.finetune import FUNCTIONS
from trnflow.flows.recipes.recipe import Recipe, load
from trnflow.flows.runner.context import PartMaker, RunContext, context_of, make_plan
from trnflow.flows.runner.graph import Graph, Node
from trnflow.flows.runner.plan import Options, Plan, Step
from trnflow.flows.runner.run import run
from trnflow.tasks.artifact import Meta
from trnflow.tasks.config import StageConfig
from trnflow.tasks.events import EventLog, Reader
from trnflow.tasks.stage import stage_of
from trnflow.tasks.store import Store


@dataclass
class Ran:
    run: str
    steps: dict[str, Step]
    notes: list[str]

    @property
    def actions(self) -> dict[str, str]:
        return {name: step.action for name, step in self.steps.items()}


@cache
def _recipe(settings: tuple[str, ...]) -> Recipe:
    return load("demo", ["name=toy", "store.min_free_gb=0", *settings])


def context(
    store: Store,
    *readers: Reader,
    run: str = "r",
    settings: Iterable[str] = (),
    offline: bool = False,
    part_maker: PartMaker | None = None,
    devices: dict[str, tuple[str, ...]] | None = None,
) -> RunContext:
    """devices: {stage: the devices it takes}."""
    opened = context_of(_recipe(tuple(settings)), store, offline=offline)
    opened = opened.for_run(EventLog(*readers), run=run, part_maker=part_maker)
    if devices is not None:
        opened.__dict__["devices_of"] = lambda step: devices.get(step.name, ())
    return opened


def run_graph(graph: Graph, opened: RunContext, *, until: str | None = None, force: Iterable[str] = ()) -> Ran:
    """Run a graph without a run record, and raise the error that ended it."""
    result = run(graph, opened, Options(until, frozenset(force), record=False))
    if result.error is not None:
        raise result.error
    return Ran(result.run, {step.name: step for step in result.steps}, result.notes)


def run_stage(function: Callable[..., Meta], config: StageConfig, opened: RunContext, **inputs: Any) -> Step:
    return run_graph(Graph((Node(function, config, inputs),)), opened).steps[function.__name__]


def plan_graph(graph: Graph, store: Store) -> Plan:
    return make_plan(graph, context(store, offline=True))


def step(stage: str, action: str, why: str = "", **fields: Any) -> Step:
    """A step of the pipeline, as a plan or a run leaves it."""
    function = next(function for function in FUNCTIONS if function.__name__ == stage)
    return Step(Node(function, StageConfig(), dict.fromkeys(stage_of(function).takes)), action, why, **fields)
