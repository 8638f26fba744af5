"""What each command does: reads the recipe, asks the flow or the store, prints. Heavy imports wait until needed."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path

import yaml

from flows import report, settings
from flows.call import Outcome
from flows.forecast import dollars, total
from flows.memory import outlook
from flows.recipes import read_recipe, recipe_names
from flows.run import Options, Result, check_stage, execute, look, new_run_id, nothing_to_do, open_store
from tasks.artifact import Artifact, Json, Meta
from tasks.errors import BlobLost, ConfigError, TrnflowError
from tasks.explain import nearest_record
from tasks.store import Store


def run(options: Namespace) -> int:
    recipe = settings.load(options.recipe, options.overrides)
    store = open_store(recipe)
    store.prepare()
    what = Options(options.until, frozenset(options.force), options.offline)
    result = nothing_to_do(recipe, store, what)
    idle = result is not None
    if result is None:
        result = _run_stages(options, recipe, store, what)
    if options.json:
        emit_json(result.to_json())
    else:
        _print_result(recipe, result, idle)
    if result.error is not None:
        say_error(result.error)
        if options.debug:
            sys.stderr.write(result.error.details)
        return result.error.exit_code
    return 0


def _run_stages(options: Namespace, recipe: settings.Recipe, store: Store, what: Options) -> Result:
    progress = report.Progress()
    try:
        if options.direct:
            from flows.track import Tracking

            with Tracking(recipe, store.home, new_run_id()) as tracking:
                return tracking.finish(execute(recipe, store, what, run=tracking.run, listeners=(progress, tracking)))
        from flows.local import run_here

        return run_here(options.recipe, options.overrides, what, (progress,), store.home)
    finally:
        progress.close()


def _print_result(recipe: settings.Recipe, result: Result, idle: bool) -> None:
    out = sys.stdout
    out.write(f"\n{report.table(result.outcomes)}\n\n")
    for note in result.notes:
        out.write(f"note: {note}\n")
    if idle:
        out.write(f"nothing to do: every stage of {recipe.name} was a hit ({result.seconds:.2f} s)\n")
    elif result.error is None:
        cost = f" (${result.dollars:.2f} on {recipe.hardware.name})" if result.dollars else ""
        out.write(f"{recipe.name} done in {report.seconds(result.seconds)} s{cost}; run {result.run}\n")
    out.write(_pages(recipe))


def _pages(recipe: settings.Recipe) -> str:
    from flows.pages import pages

    return "".join(f"{line}\n" for line in pages(settings.home_folder(), recipe.tracking))


def plan(options: Namespace) -> int:
    recipe = settings.load(options.recipe, options.overrides)
    planner = look(recipe, open_store(recipe))
    outcomes, held = list(planner.outcomes.values()), outlook(recipe, planner)
    price = recipe.price_per_hour
    if options.json:
        stages = [_plan_json(outcome, price) for outcome in outcomes]
        emit_json(
            {
                "schema": 1,
                "recipe": recipe.name,
                "stages": stages,
                "expected": total(outcomes, price),
                "memory": held.to_json(),
                "notes": planner.notes,
                **({"error": held.error.to_json()} if held.error else {}),
            }
        )
    else:
        sys.stdout.write(f"{report.plan_table(outcomes, price)}\n{held}\n")
        for note in planner.notes:
            sys.stdout.write(f"note: {note}\n")
    if held.error is not None:
        say_error(held.error)
        return held.error.exit_code
    return 0


def _plan_json(outcome: Outcome, price_per_hour: float) -> Meta:
    return {
        "stage": outcome.stage,
        "action": outcome.action,
        "why": outcome.why,
        "key": None if outcome.action == "maybe" else outcome.key,
        "artifact": outcome.artifact.digest if outcome.artifact else None,
        "seconds": outcome.seconds,
        "bytes": outcome.bytes,
        "dollars": None if outcome.seconds is None else dollars(outcome.seconds, price_per_hour),
    }


def explain(options: Namespace) -> int:
    """A hit: which attempt made it. A miss: every value that differs from the nearest past record."""
    recipe = settings.load(options.recipe, options.overrides)
    stage = check_stage(options.stage)
    store = open_store(recipe)
    planner = look(recipe, store)
    outcome = planner.outcomes[stage]
    document = planner.documents.get(stage)
    near = nearest_record(store.records(stage), document) if document and outcome.action != "hit" else None
    changes = near[1] if near else []
    if options.json:
        listed = [change._asdict() for change in changes]
        emit_json(
            {
                "schema": 1,
                **_plan_json(outcome, recipe.price_per_hour),
                "changes": listed,
                "document": document,
            }
        )
        return 0
    sys.stdout.write(f"{stage}: {outcome.action} ({outcome.why})\n")
    if outcome.key:
        sys.stdout.write(f"key {outcome.key}\n")
    if near:
        sys.stdout.write(f"compared with the record of {near[0]['created']}:\n")
        sys.stdout.write("".join(f"  {change}\n" for change in changes))
    return 0


def show(options: Namespace) -> int:
    recipe = settings.load(options.recipe, options.overrides)
    store = open_store(recipe)
    if options.stage is None:
        outcomes = list(look(recipe, store).outcomes.values())
        if options.json:
            emit_json(
                {
                    "schema": 1,
                    "recipe": recipe.name,
                    "stages": [_plan_json(o, recipe.price_per_hour) | {"metrics": o.metrics} for o in outcomes],
                }
            )
        else:
            sys.stdout.write(f"{report.table(outcomes)}\n")
        return 0
    outcome, artifact = _made(recipe, store, check_stage(options.stage))
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
    if options.json:
        emit_json(described)
    else:
        sys.stdout.write(yaml.safe_dump(described, sort_keys=False, width=120))
    return 0


def get(options: Namespace) -> int:
    recipe = settings.load(options.recipe, options.overrides)
    store = open_store(recipe)
    destination = Path(options.dest).expanduser()
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise ConfigError(f"{destination} exists and is not an empty folder", "name a new folder")
    outcome, artifact = _made(recipe, store, check_stage(options.stage))
    aside = destination.with_name(f".{destination.name}.partial")
    try:
        store.copy_out(artifact, aside)
    except BlobLost:
        store.retract(outcome.stage, str(outcome.key))
        raise
    if destination.exists():
        destination.rmdir()
    aside.rename(destination)
    if options.json:
        emit_json({"schema": 1, "stage": options.stage, "artifact": artifact.digest, "path": str(destination)})
    else:
        sys.stdout.write(f"{len(artifact.files)} files, {artifact.size / 1e6:.1f} MB, in {destination}\n")
    return 0


def _made(recipe: settings.Recipe, store: Store, stage: str) -> tuple[Outcome, Artifact]:
    outcome = look(recipe, store).outcomes[stage]
    if outcome.artifact is None:
        raise ConfigError(
            f"{stage} of {recipe.name} has no artifact for these settings: {outcome.why}",
            f"`trnflow run {recipe.name} --until {stage}` makes it",
        )
    return outcome, outcome.artifact


def config(options: Namespace) -> int:
    document = settings.load(options.recipe, options.overrides).to_json()
    if options.json:
        emit_json(document)
    else:
        sys.stdout.write(yaml.safe_dump(document, sort_keys=False, width=120, allow_unicode=True))
    return 0


def recipes(options: Namespace) -> int:
    found = {name: str(read_recipe(name)[0].get("description", "")) for name in recipe_names()}
    if options.json:
        emit_json({"schema": 1, "recipes": [{"name": name, "description": text} for name, text in found.items()]})
    else:
        sys.stdout.write("".join(f"{name:<24} {text}\n" for name, text in found.items()))
    return 0


def doctor(options: Namespace) -> int:
    from flows.doctor import checkup

    checks = checkup(settings.home_folder())
    if options.json:
        emit_json({"schema": 1, "checks": [check._asdict() for check in checks]})
    else:
        sys.stdout.write("".join(f"{check}\n" for check in checks))
    return 0 if all(check.ok for check in checks) else 1


def up(options: Namespace) -> int:
    from flows.server import ensure_server

    url = ensure_server(settings.home_folder())
    emit_json({"schema": 1, "url": url}) if options.json else sys.stdout.write(f"Prefect: {url.removesuffix('/api')}\n")
    return 0


def down(options: Namespace) -> int:
    from flows.server import stop_server

    stopped = stop_server(settings.home_folder())
    said = "stopped the local Prefect server" if stopped else "no local Prefect server was running"
    emit_json({"schema": 1, "stopped": bool(stopped)}) if options.json else sys.stdout.write(f"{said}\n")
    return 0


def ui(options: Namespace) -> int:
    from flows.pages import pages

    lines = pages(settings.home_folder(), settings.TrackingConfig())
    emit_json({"schema": 1, "pages": lines}) if options.json else sys.stdout.write(
        "".join(f"{line}\n" for line in lines)
    )
    return 0


def emit_json(document: Json) -> None:
    sys.stdout.write(f"{json.dumps(document)}\n")


def say_error(error: TrnflowError) -> None:
    where = f" in {error.stage}" if error.stage else ""
    sys.stderr.write(f"error{where}: {error.message}\n")
    if error.fix:
        sys.stderr.write(f"  fix: {error.fix}\n")
