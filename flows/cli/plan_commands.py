"""The commands that run no stage: `plan`, `explain`, `show` and `get`."""

from __future__ import annotations

import argparse
from argparse import Namespace
from pathlib import Path
from typing import Any

import yaml

from trnflow.flows.champions.frozen_rows import other_model
from trnflow.flows.cli.output import emit, say_error
from trnflow.flows.display import report
from trnflow.flows.finetune import FINETUNE
from trnflow.flows.models import find_model, result_of_recipe
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.recipes.suggested_command import complete
from trnflow.flows.runner.call import Outcome
from trnflow.flows.runner.planning.forecast import dollars, total
from trnflow.flows.runner.planning.memory_check import report_memory
from trnflow.flows.runner.planning.planner import Planner
from trnflow.flows.runner.run import look, open_store
from trnflow.flows.runner.vocabulary import refuse_unknown_vocabulary
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import BlobLost, ConfigError
from trnflow.tasks.keys.explain import nearest_record
from trnflow.tasks.store import Store
from trnflow.tasks.training.memory.trace_process import trace_in_process


def add_commands(sub: Any, recipe: argparse.ArgumentParser) -> None:
    expected = sub.add_parser(
        "plan", parents=[recipe], help="print what would run, why, and what it is expected to cost"
    )
    expected.add_argument("--trace", action="store_true", help="trace the memory that training needs: takes seconds")
    expected.set_defaults(command=plan)
    why = sub.add_parser("explain", parents=[recipe], help="print what changed since the nearest past run of a stage")
    why.add_argument("stage")
    why.set_defaults(command=explain)
    made = sub.add_parser("show", parents=[recipe], help="print the artifacts of a recipe, or one of them in full")
    made.add_argument("stage", nargs="?")
    made.set_defaults(command=show)
    copy = sub.add_parser(
        "get", parents=[recipe], help="copy a stage's artifact, of a recipe or any model, into a new folder"
    )
    copy.add_argument("stage")
    copy.add_argument("dest")
    copy.set_defaults(command=get)


def plan(options: Namespace) -> int:
    """Print what a run would do with each stage, why, the expected seconds, dollars and bytes, and the memory of
    training (measured now only with --trace). The exit code is the error's when training can't run."""
    recipe = settings.load(options.recipe, options.overrides)
    store = open_store(recipe)
    planner = look(recipe, store, FINETUNE)
    refuse_unknown_vocabulary(recipe, planner.outcomes)
    outcomes = list(planner.outcomes.values())
    memory = report_memory(recipe, planner, trace_in_process if options.trace else None)
    if memory.error is not None:
        complete(memory.error, options)
    price = recipe.price_per_hour
    notes = _notes(recipe, store, planner)
    document = {
        "recipe": recipe.name,
        "stages": [_plan_json(outcome, price) for outcome in outcomes],
        "expected": total(outcomes, price),
        "memory": memory.to_json(),
        "notes": notes,
        **({"error": memory.error.to_json()} if memory.error else {}),
    }
    emit(options, document, report.plan_table(outcomes, price), memory, *(f"note: {note}" for note in notes))
    if memory.error is not None:
        say_error(memory.error)
        return memory.error.exit_code
    return 0


def _notes(recipe: settings.Recipe, store: Store, planner: Planner) -> list[str]:
    """Return a plan's notes, and that a retrain made a model which a run would not find."""
    other = other_model(recipe, store, planner)
    return [*planner.notes, *([other] if other else [])]


def _plan_json(outcome: Outcome, price_per_hour: float) -> Meta:
    return {
        "stage": outcome.stage,
        "action": outcome.action,
        "why": outcome.why,
        "key": outcome.key,
        "artifact": outcome.artifact.digest if outcome.artifact else None,
        "seconds": outcome.seconds,
        "bytes": outcome.bytes,
        "dollars": None if outcome.seconds is None else dollars(outcome.seconds, price_per_hour),
    }


def explain(options: Namespace) -> int:
    """Print whether a stage is cached, or how its key document differs from the nearest of its past ones."""
    recipe = settings.load(options.recipe, options.overrides)
    stage = FINETUNE.stage(options.stage)
    store = open_store(recipe)
    planner = look(recipe, store, FINETUNE)
    outcome = planner.outcomes[stage]
    document = planner.documents.get(stage)
    near = nearest_record(store.records(stage), document) if document and outcome.action != "hit" else None
    changes = near[1] if near else []
    lines = [f"{stage}: {outcome.action} ({outcome.why})", *([f"key {outcome.key}"] if outcome.key else [])]
    if near:
        lines += [f"compared with the record of {near[0]['created']}:", *(f"  {change}" for change in changes)]
    notes = _notes(recipe, store, planner)
    lines += [f"note: {note}" for note in notes]
    listed = {"changes": [change._asdict() for change in changes], "document": document, "notes": notes}
    emit(options, _plan_json(outcome, recipe.price_per_hour) | listed, *lines)
    return 0


def show(options: Namespace) -> int:
    """Print the results for a recipe's present data and settings: a table of stages, or one stage's artifact. Raises
    ConfigError when a named stage has none."""
    recipe = settings.load(options.recipe, options.overrides)
    store = open_store(recipe)
    if options.stage is None:
        outcomes = list(look(recipe, store, FINETUNE).outcomes.values())
        stages = [_plan_json(o, recipe.price_per_hour) | {"metrics": o.metrics} for o in outcomes]
        emit(options, {"recipe": recipe.name, "stages": stages}, report.table(outcomes))
        return 0
    outcome, artifact = result_of_recipe(recipe, store, FINETUNE.stage(options.stage))
    described = {
        "schema": 1,
        "stage": options.stage,
        "key": outcome.key,
        "made": outcome.why,
        "artifact": artifact.digest,
        "kind": artifact.kind,
        "bytes": artifact.size,
        "meta": artifact.meta,
        "figures": outcome.figures,
        "files": [list(file) for file in artifact.files],
    }
    emit(options, described, yaml.safe_dump(described, sort_keys=False, width=120).rstrip("\n"))
    return 0


def get(options: Namespace) -> int:
    """Copy a stage's artifact into a new folder, which appears when it is complete.

    Raises:
        ConfigError: The folder is not empty, or the recipe, run or champion has no artifact of the stage.
        BlobLost: Files are missing or corrupt; the next run makes them again.
    """
    destination = Path(options.dest).expanduser()
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise ConfigError(f"{destination} exists and is not an empty folder", "name a new folder")
    model = find_model(options.recipe, options.overrides, want=(FINETUNE.stage(options.stage),))
    artifact = model.artifact
    aside = destination.with_name(f".{destination.name}.partial")
    try:
        model.store.copy_out(artifact, aside)
    except BlobLost:
        model.retract()
        raise
    if destination.exists():
        destination.rmdir()
    aside.rename(destination)
    document = {"stage": options.stage, "artifact": artifact.digest, "path": str(destination)}
    emit(options, document, f"{len(artifact.files)} files, {artifact.size / 1e6:.1f} MB, in {destination}")
    return 0
