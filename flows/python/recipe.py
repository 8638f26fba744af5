"""Recipes from Python: set their data and settings, plan, rehearse and run them."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trnflow.flows.display import report
from trnflow.flows.display.live_block import html_table, shown
from trnflow.flows.finetune import ROLES, finetune
from trnflow.flows.python.run import Run
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.recipes.files import ON, RecipeTree, read_tree, tree_of
from trnflow.flows.recipes.schema import Tree
from trnflow.flows.runner.context import RunContext, context_of, make_plan, open_store
from trnflow.flows.runner.mlflow_log import trackers
from trnflow.flows.runner.plan import Options
from trnflow.flows.runner.plan import Plan as RunPlan
from trnflow.flows.runner.run import run as run_graph
from trnflow.flows.runner.vocabulary import refuse_unknown_vocabulary
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import Interrupted, TrnflowError
from trnflow.tasks.events import EventLog
from trnflow.tasks.events.event_types import PlannedStage
from trnflow.tasks.keys.notebook_functions import named_functions
from trnflow.tasks.sources.frames import data_settings, given_rows, is_written
from trnflow.tasks.system.home import home_folder
from trnflow.tasks.system.terminal import one_line

if TYPE_CHECKING:
    import pandas as pd

Value = TypeVar("Value")


def recipe(source: str | os.PathLike[str] | Tree) -> Recipe:
    """Read a recipe: a name of `trnflow recipes`, a YAML file, or a dict with the same sections, whose relative paths belong
    to the working directory. Raises ConfigError, which names the setting."""
    if isinstance(source, dict):
        return Recipe(tree_of(source, str(source.get("name", "notebook")), settings.Recipe))
    return Recipe(read_tree(os.fspath(source), settings.Recipe))


class Recipe:
    """A recipe that was read and checked. It never changes: `set` returns another one."""

    def __init__(self, read: RecipeTree) -> None:
        self._read = read
        self._recipe = settings.validated(read, read.name)

    @property
    def name(self) -> str:
        return self._recipe.name

    @property
    def settings(self) -> Meta:
        """All settings with defaults, by section; secrets are hidden."""
        return self._recipe.to_json()

    def set(self, data: Any = None, on: str | None = None, **changes: Any) -> Recipe:
        """Return this recipe with other settings.

        Args:
            data: A DataFrame, a datasets.Dataset, a list of dicts, a path, or a dict of these by split.
            on: The hardware, as `--on` takes it.
            changes: Settings such as `train__learning_rate=1e-4`, or sections such as `train={"learning_rate": 1e-4}`.
                A hook may be a function, also of a notebook.

        Raises:
            ConfigError: There is no such setting, or the value does not fit.
            DataError: A column of the data has values of several types.
        """
        pairs: list[tuple[tuple[str, ...], Any]] = [] if on is None else [(ON, on)]
        if data is not None:
            pairs.append((("data",), data_settings(data, home_folder())))
        own: list[tuple[tuple[str, ...], Any, Path]] = []
        for name, value in changes.items():
            path = tuple(name.replace("__", ".").split("."))
            text, folder = named_functions(value, ".".join(path), home_folder())
            if folder is None:
                pairs.append((path, text))
            else:
                own.append((path, text, folder))
        read = self._read.with_settings(pairs, Path.cwd())
        for path, text, folder in own:
            read = read.with_settings([(path, text)], folder)
        return Recipe(read)

    def plan(self) -> Plan:
        """Find out what a run would do with each stage, and why, without running one or asking a hub.

        Raises a TrnflowError if a run is bound to fail.
        """
        with self._given_rows():
            context = context_of(self._recipe, open_store(self._recipe), offline=True)
            found = make_plan(finetune(self._recipe), context)
            refuse_unknown_vocabulary(self._recipe, found)
            found.check_needs(Options())
            return Plan(self._recipe, found)

    def rehearse(self) -> list[str]:
        """Run all stages on a few rows with a small model, and return what to look at. Raises the error that a run would
        end with."""
        from trnflow.flows.rehearsal.rehearse import rehearse

        with self._given_rows():
            with shown() as reader:
                rehearsal = rehearse(self._context(offline=False), reader)
            if rehearsal.fault is not None:
                raise rehearsal.fault
            return rehearsal.remarks

    def run(
        self, until: str | None = None, force: Iterable[str] = (), *, offline: bool = False, rehearse: bool = True
    ) -> Run:
        """Run what is not in the store, and show it; without Prefect, recorded in MLflow as the recipe says.

        Args:
            until: The stage after which the run stops.
            force: Stages to run although the store has their results.
            offline: Whether to make no requests to a hub.
            rehearse: Whether a long run of a large model is rehearsed first.

        Raises:
            TrnflowError: Of the recipe, a stage or the store.
            KeyboardInterrupt: The run was interrupted; training has saved its state, and the next run goes on from it.
        """
        from trnflow.flows.rehearsal.before_run import rehearse_first

        with self._given_rows():
            what, context = Options(until, frozenset(force), offline), self._context(offline=offline)
            graph = finetune(context.recipe)
            what.check(graph)
            context.plan = make_plan(graph, context)
            context.plan.check_needs(what, here=context.environment)
            with shown() as reader:
                rehearsal = rehearse_first(context, what, (reader,)) if rehearse and until is None else None
                if rehearsal is not None and rehearsal.fault is not None:
                    raise rehearsal.fault
                log = EventLog(reader, *trackers(context.recipe, context.store))
                result = run_graph(graph, context.for_run(log), what)
            if isinstance(result.error, Interrupted):
                raise KeyboardInterrupt(str(result.error)) from result.error
            if result.error is not None:
                # frames of the runner say nothing to a notebook: the stage's own are in the error's text or its cause
                raise result.error.with_traceback(None)
            return Run(context.store, result.run)

    async def run_async(
        self, until: str | None = None, force: Iterable[str] = (), *, offline: bool = False, rehearse: bool = True
    ) -> Run:
        """As `run`, without holding up the event loop. Cancelled, it waits until training has saved its state."""
        return await _in_thread(lambda: self.run(until, force, offline=offline, rehearse=rehearse))

    @contextlib.contextmanager
    def _given_rows(self) -> Iterator[None]:
        """Let an error about data in memory name its rows: the user has not seen the file that holds them."""
        try:
            yield
        except TrnflowError as error:
            if is_written(self._recipe.data.source, home_folder()):
                error.message, error.fix = given_rows(error.message), given_rows(error.fix)
                error.args = (error.message,)
            raise

    def _context(self, *, offline: bool) -> RunContext:
        return context_of(self._recipe, open_store(self._recipe), offline=offline, create=True)

    def __repr__(self) -> str:
        return f"Recipe({self.name}: {self._recipe.description or 'no description'})"

    def _repr_html_(self) -> str:
        from html import escape

        import yaml

        text = yaml.safe_dump(self.settings, sort_keys=False)
        return f"<details><summary>{escape(repr(self))}</summary><pre>{escape(text)}</pre></details>"


class Plan:
    """What a run would do.

    Attributes:
        stages: A dict for each stage: stage, action (hit, run, maybe, skip), why, key, artifact, seconds, bytes.
        notes: Sentences for the user.
    """

    def __init__(self, recipe: settings.Recipe, plan: RunPlan) -> None:
        steps = list(plan.steps.values())
        self.stages: list[PlannedStage] = [step.to_json() for step in steps]
        chosen = report.chosen(plan.roles["training"], ROLES["chunks"])
        self.notes: list[str] = [*plan.notes, *[f"auto: {chosen}"] * bool(chosen)]
        self._lines = report.plan_table(steps, recipe.price_per_hour)

    @property
    def due(self) -> list[str]:
        """The names of the stages that run, or may have to."""
        return [stage["stage"] for stage in self.stages if stage["action"] in ("run", "maybe")]

    def to_frame(self) -> pd.DataFrame:
        """Return `stages` as a table."""
        import pandas as pd

        return pd.DataFrame(self.stages)

    def __repr__(self) -> str:
        return "\n".join([*self._lines, *(one_line(f"note: {note}") for note in self.notes)])

    def _repr_html_(self) -> str:
        columns = ("stage", "action", "seconds", "bytes", "why")
        shown: list[Meta] = [{**stage} for stage in self.stages]
        rows = [["" if stage[name] is None else stage[name] for name in columns] for stage in shown]
        return html_table(columns, rows) + html_table(("notes",), [(note,) for note in self.notes]) * bool(self.notes)


async def _in_thread(work: Callable[[], Value]) -> Value:
    """Return what `work` returns in a thread. Cancelled, the thread gets a KeyboardInterrupt, and is waited for."""
    ident: list[int] = []

    def call() -> Value:
        ident.append(threading.get_ident())
        return work()

    future = asyncio.get_running_loop().run_in_executor(None, call)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        for thread in ident:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(KeyboardInterrupt))
        await asyncio.wait([future])
        future.exception()  # taken notice of: it is the interruption
        raise
