"""What a command opens once: a recipe, its store, and the answers about its sources."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Protocol

from trnflow.flows.recipes.recipe import Recipe, load, store_root
from trnflow.flows.recipes.sections import TaskRunnerConfig
from trnflow.flows.runner.devices import devices_of, filled_environment, refuse_torchrun
from trnflow.flows.runner.graph import Graph
from trnflow.flows.runner.memory_check import fit_to_machine
from trnflow.flows.runner.plan import Given, Options, Plan, Step
from trnflow.flows.runner.work_folders import make_store, open_home
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError, TrnflowError
from trnflow.tasks.events import EventLog
from trnflow.tasks.launch.call import Call
from trnflow.tasks.sources.model_source import model_source
from trnflow.tasks.sources.resolver import Answers, Resolver
from trnflow.tasks.store import Store
from trnflow.tasks.training.memory.trace_process import trace_in_process


class PartMaker(Protocol):
    """Interface of what makes a stage's parts in other processes, which share the store: Prefect's task runners."""

    def make(self, calls: Iterable[Call]) -> Iterator[Meta]:
        """Yield what `make_part_apart` returns for each call, in their order; meanwhile, other parts are made."""


@dataclass
class RunContext:
    """A recipe that was read once, with all that its runs and plans share.

    Attributes:
        resolver: Asks each source once.
        plan: The plan that the next run settles; None: the run makes one.
        run: The id of the run.
        log: Gets the run's events.
        kind: run, retrain, trial, freeze, check, promote or preview.
        parent: The id of the sweep that the run is a trial or the winner of.
        part_maker: Makes parts of stages in other processes; None: each stage's own process makes them.
        notes: Sentences for the user.
        force: Stages that run although the store has their results; each is forced once.
        lost: Digests of blobs that were found missing or corrupt.
        given: {stage: what stands for its step}, in a job.
    """

    recipe: Recipe
    store: Store
    resolver: Resolver
    plan: Plan | None = None
    run: str = field(default_factory=lambda: new_run_id())
    log: EventLog = field(default_factory=EventLog)
    kind: str = "run"
    parent: str | None = None
    part_maker: PartMaker | None = None
    notes: list[str] = field(default_factory=list)
    force: frozenset[str] = frozenset()
    lost: set[str] = field(default_factory=set)
    given: Mapping[str, Given] = field(default_factory=dict)

    @cached_property
    def environment(self) -> dict[str, str]:
        """The variables of `launch.environment`, filled in. Raises ConfigError if one that they name is not set."""
        return filled_environment(self.recipe.launch)

    def devices_of(self, step: Step) -> tuple[str, ...]:
        """Return the names of the devices that a step's stage uses alone while it runs."""
        return devices_of(step.node.stage, step.config, self.recipe, self.environment)

    def variables_for(self, distributions: Iterable[str]) -> dict[str, str]:
        """Return what a stage's process gets of `launch.environment`. distributions: which the stage's code imports."""
        # only stages that train or run models need anything
        return self.environment if "torch" in distributions else {}

    @property
    def uses_torch_xla(self) -> bool:
        """Whether the recipe trains by torch_xla, or exports StableHLO, which torch_xla makes and perhaps runs."""
        return self.recipe.train.engine == "xla" or self.recipe.export.target == "stablehlo"

    @property
    def offline(self) -> bool:
        """Whether no hub is asked."""
        return self.resolver.offline

    def with_recipe(self, recipe: Recipe) -> RunContext:
        """Return the context of another recipe in the same store; the answers about sources are shared."""
        return replace(self, recipe=recipe, plan=None, run=new_run_id(), notes=[], force=frozenset())

    def for_run(
        self,
        log: EventLog | None = None,
        *,
        run: str | None = None,
        part_maker: PartMaker | None = None,
        kind: str = "run",
    ) -> RunContext:
        """Return the context of one run of this recipe, with the plan that this context has. run: its id; None takes that of
        an open log, which this run is a part of, or a new one."""
        log = log or EventLog()
        run = run or (log.state.run if log.is_open else new_run_id())
        return replace(self, run=run, log=log, kind=kind, part_maker=part_maker, notes=[], force=frozenset())

    def check(self, options: Options) -> None:
        """Raise ConfigError if the run needs what this process does not have: a variable of `launch.environment`, or one
        of Prefect's task runners; or if it is one of several that torchrun started."""
        refuse_torchrun()
        if self.part_maker is None and options.record:
            refuse_task_runners(self.recipe.task_runner)
        filled_environment(self.recipe.launch)

    def note(self, text: str) -> None:
        self.notes.append(text)


def new_run_id() -> str:
    """Return a new run id, such as `20261120T142233Z-3f9a1c`: the UTC time, its microsecond in hexadecimal, and a random
    digit. Sorted as text, ids are in the order of time."""
    now = datetime.now(UTC)
    return f"{now:%Y%m%dT%H%M%SZ}-{now.microsecond:05x}{secrets.randbelow(16):x}"


def open_store(recipe: Recipe) -> Store:
    """Return the recipe's store, which is not created; the home is. Raises ConfigError for a store of another format."""
    store = Store(store_root(recipe), open_home())
    store.is_made()
    return store


def open_context(name: str, overrides: Iterable[str] = (), *, offline: bool = False, create: bool = True) -> RunContext:
    """Read a recipe (see `load`), and open its store. offline: make no requests to a hub, use its last answers; create: the
    store, if it is missing. Raises ConfigError, StoreError."""
    recipe = load(name, overrides)
    return context_of(recipe, open_store(recipe), offline=offline, create=create)


def context_of(
    recipe: Recipe, store: Store, *, offline: bool = False, create: bool = False, answers: Answers | None = None
) -> RunContext:
    """Return the context of a recipe in a store. answers: shared with other contexts; None for answers of its own."""
    if create:
        make_store(store)
    resolver = Resolver(store.home, offline=offline, memo=store.memo, folders=recipe.folders, answers=answers)
    if recipe.leaves_open("train.remat", "train.fsdp") and recipe.train.device == "cuda":
        # a model that can't be found or traced is an error of the plan that follows
        with contextlib.suppress(TrnflowError):
            model = resolver.ask_once(model_source, recipe.model)
            trace = partial(trace_in_process, memory_gib=recipe.launch.memory_gib) if create else None
            recipe = fit_to_machine(recipe, model, store.memo, trace)
    return RunContext(recipe, store, resolver)


def make_plan(graph: Graph, context: RunContext) -> Plan:
    """Find out what a run would do with each stage, without running one. Sources are resolved here alone. Raises ConfigError
    if a source or a model can't be found, or settings don't fit the model or its tokenizer."""
    plan = Plan(graph, context.store, context.resolver, context.lost, context.given, context.recipe.name)
    plan.note(context.recipe.machine)
    return plan


def plan_of(graph: Graph, recipe: Recipe, store: Store) -> Plan:
    """Plan a graph of a recipe in a context of its own, without asking a hub."""
    return make_plan(graph, context_of(recipe, store, offline=True))


def refuse_task_runners(config: TaskRunnerConfig) -> None:
    """Raise ConfigError if a recipe whose run does not use Prefect asks for one of its task runners."""
    if config.kind != "threads":
        raise ConfigError(
            f"task_runner.kind: {config.kind} is one of Prefect's task runners, and this run is without Prefect",
            "leave out --direct, or set task_runner.kind=threads",
        )
