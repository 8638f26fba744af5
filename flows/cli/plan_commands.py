"""The commands that run no stage: `plan`, `explain`, `show` and `get`."""

from __future__ import annotations

import os
import secrets
import shutil
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from trnflow.flows.champions.frozen_rows import newest_frozen, other_model
from trnflow.flows.cli.arguments import add_command
from trnflow.flows.cli.output import complete, emit, print_error
from trnflow.flows.display import report
from trnflow.flows.finetune import ROLES, finetune
from trnflow.flows.runner.context import RunContext, make_plan, open_context
from trnflow.flows.runner.expected_time import expect_training
from trnflow.flows.runner.forecast import dollars, total
from trnflow.flows.runner.memory_check import report_memory
from trnflow.flows.runner.plan import Options, Plan, Step
from trnflow.flows.runner.vocabulary import refuse_unknown_vocabulary
from trnflow.tasks.errors import BlobLost, ConfigError, TrnflowError
from trnflow.tasks.events.event_types import PlannedStage
from trnflow.tasks.keys.explain import nearest_record
from trnflow.tasks.training.automatic import open_settings
from trnflow.tasks.training.memory.trace_process import trace_in_process


def add_commands(sub: Any, recipe: ArgumentParser) -> None:
    expected = add_command(sub, "plan", plan, recipe, "print what would run, why, and what it is expected to cost")
    expected.add_argument("--trace", action="store_true", help="trace the memory that training needs: takes seconds")
    why = add_command(sub, "explain", explain, recipe, "print why a stage runs: what changed since its last run")
    why.add_argument("stage")
    made = add_command(sub, "show", show, recipe, "print the artifacts of a recipe, or one of them in full")
    made.add_argument("stage", nargs="?")
    copy = add_command(sub, "get", get, recipe, "copy a model, or a stage's artifact, into a new folder")
    copy.add_argument("stage")
    copy.add_argument("dest")


def plan(options: Namespace) -> int:
    """Print what a run would do with each stage, why, and what it takes. The exit code is that of what prevents it."""
    context = open_context(options.recipe, options.overrides, offline=True, create=False)
    found = make_plan(finetune(context.recipe), context)
    recipe, steps = context.recipe, list(found.steps.values())
    refuse_unknown_vocabulary(recipe, found)
    error = _refusal(found)
    trace = partial(trace_in_process, memory_gib=recipe.launch.memory_gib)
    memory = report_memory(recipe, found, trace if options.trace and not error else None)
    is_here = found.graph.elsewhere is None  # else what fits, and how long it takes, is not this machine's to say
    error = error or (memory.error if is_here else None)
    if error is not None:
        complete(error, options)
    price, expected = recipe.price_per_hour, expect_training(recipe, found) if is_here else ""
    notes = [*_notes(context, found), *_promise(context)]
    training = found.roles["training"]
    chosen = report.chosen(training, ROLES["chunks"])
    document = {
        "recipe": recipe.name,
        "stages": [_plan_json(step, price) for step in steps],
        "expected": total((step.to_json() for step in steps), price),
        "memory": memory.to_json(),
        "auto": {f"train.{name}": getattr(training.config, name) for name in open_settings(recipe.train)},
        "notes": notes,
        **({"error": error.to_json()} if error else {}),
    }
    lines = [*report.plan_table(steps, price), *[f"time     {expected}"] * bool(expected)]
    lines += [str(memory), *[f"auto     {chosen}"] * bool(chosen)]
    emit(options, document, *lines, *(f"note: {note}" for note in notes))
    return print_error(error, options) if error else 0


def _refusal(found: Plan) -> TrnflowError | None:
    """Return why a run is bound to fail, as far as is known; else note what the stages remark."""
    try:
        found.check_needs(Options())
    except TrnflowError as error:
        return error
    return None


def _notes(context: RunContext, plan: Plan) -> list[str]:
    """Return a plan's notes, and that a retrain made a model which a run would not find."""
    other = other_model(context.recipe, context.store, plan)
    return [*plan.notes, *([other] if other else [])]


def _promise(context: RunContext) -> list[str]:
    """Return the note on the smallest gain that can win on the newest frozen rows, if there are any."""
    with suppress(BlobLost):
        if frozen := newest_frozen(context.recipe, context.store):
            # its statistics and schedules take time to import, and most recipes have no frozen rows
            from trnflow.flows.champions.budget import promise

            sentence = promise(context.recipe, frozen.artifact.meta["rows"], context.store.memo).text
            return [sentence] if sentence else []
    return []


class PricedStage(PlannedStage):
    dollars: float | None


def _plan_json(step: Step, price_per_hour: float) -> PricedStage:
    cost = None if step.seconds is None else dollars(step.seconds, price_per_hour)
    return {**step.to_json(), "dollars": cost}


def explain(options: Namespace) -> int:
    """Print whether a stage is cached, or how its key document differs from the nearest of the recipe's past ones."""
    context = open_context(options.recipe, options.overrides, offline=True, create=False)
    graph = finetune(context.recipe)
    stage = graph.stage(options.stage)
    found = make_plan(graph, context)
    step = found.steps[stage]
    document = step.document
    past = found.own(context.store.records(stage)) if document and step.action != "hit" else []
    near = nearest_record(past, document) if document else None
    changes = near[1] if near else []
    lines = [f"{stage}: {step.action} ({step.why})", *([f"key {step.key}"] if step.key else [])]
    if near:
        lines += [f"compared with the record of {near[0]['created']}:", *(f"  {text}" for text in found.told(*near))]
    notes = _notes(context, found)
    lines += [f"note: {note}" for note in notes]
    listed = {"changes": [change._asdict() for change in changes], "document": document, "notes": notes}
    emit(options, _plan_json(step, context.recipe.price_per_hour) | listed, *lines)
    return 0


def show(options: Namespace) -> int:
    """Print the results for a recipe's present settings: a table, or one stage's artifact. Raises ConfigError."""
    from trnflow.flows.models import result_of_recipe

    context = open_context(options.recipe, options.overrides, offline=True, create=False)
    recipe, graph = context.recipe, finetune(context.recipe)
    if options.stage is None:
        steps = list(make_plan(graph, context).steps.values())
        stages = [_plan_json(step, recipe.price_per_hour) | {"metrics": step.metrics} for step in steps]
        emit(options, {"recipe": recipe.name, "stages": stages}, *report.table(steps))
        return 0
    step, artifact = result_of_recipe(recipe, context.store, graph.stage(options.stage))
    described = {
        "schema": 1,
        "stage": options.stage,
        "key": step.key,
        "made": step.why,
        "artifact": artifact.digest,
        "kind": artifact.kind,
        "bytes": artifact.size,
        "meta": artifact.meta,
        "figures": step.figures,
        "files": [list(file) for file in artifact.files],
    }
    emit(options, described, *yaml.safe_dump(described, sort_keys=False, width=120).rstrip("\n").split("\n"))
    return 0


def get(options: Namespace) -> int:
    """Copy a stage's artifact into a new folder, which appears when it is complete.

    Raises ConfigError if the folder is not empty or there is no artifact, BlobLost if its files are lost or corrupt.
    """
    from trnflow.flows.models import find_model

    named = Path(options.dest).expanduser()
    destination = Path(os.path.realpath(named))  # a link stays, and its target is written
    exists = destination.exists()
    if exists and (not destination.is_dir() or any(destination.iterdir())):
        raise ConfigError(f"{named} exists and is not an empty folder", "name a new folder")
    model = find_model(options.recipe, options.overrides, want=(options.stage,))
    artifact = model.artifact
    aside = (destination if exists else destination.parent) / f".{secrets.token_hex(8)}.partial"
    try:
        model.store.copy_files(artifact, aside)
        if exists:  # it may be a mount, which can't be replaced
            for entry in [*aside.iterdir()]:
                entry.rename(destination / entry.name)
        else:
            aside.rename(destination)
    except BlobLost:
        model.retract()
        raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    document = {"stage": options.stage, "artifact": artifact.digest, "path": str(named), "champion": model.champion}
    copied = f"{len(artifact.files)} files, {artifact.size / 1e6:.1f} MB, in {named}"
    emit(options, document, copied, *(f"note: {note}" for note in model.notes))
    return 0
