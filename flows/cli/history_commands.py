"""The commands about past runs: `diff`, `report`, `lineage`. They need a store, but no recipe, and import no large
library."""

from __future__ import annotations

import sys
import webbrowser
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict, cast

from trnflow.flows.champions.forced import forced_champion
from trnflow.flows.champions.serving import Serving, serving_beside
from trnflow.flows.cli.arguments import OR_RECIPE, RUN_NAMES, add_command, add_run
from trnflow.flows.cli.output import emit
from trnflow.flows.cli.past_store import past_run, past_store
from trnflow.flows.display import report
from trnflow.flows.finetune import ROLES
from trnflow.flows.recipes.names import is_recipe, model_name
from trnflow.tasks.artifact import Meta
from trnflow.tasks.documents import RunRecord
from trnflow.tasks.errors import BlobLost, StoreError
from trnflow.tasks.keys.explain import leaves
from trnflow.tasks.keys.lineage import Descendant, Family, FromSource, Made, RunDifference, compare_runs
from trnflow.tasks.store import Store
from trnflow.tasks.store.ledger import read_ledger
from trnflow.tasks.store.model_names import NEWEST, artifact_of_run, artifacts_of, find_artifact
from trnflow.tasks.system.redaction import hide_secrets
from trnflow.tasks.system.whole_file import write_whole


def add_commands(sub: Any, store: ArgumentParser) -> None:
    ancestry = add_command(sub, "lineage", lineage, store, "print what a model was made of, and what was made of it")
    names = "a recipe, RECIPE@champion, a run or `last`; a digest or its beginning"
    ancestry.add_argument("artifact", metavar="MODEL", help=names)
    pair = add_command(sub, "diff", diff, store, "print how two runs differ: settings, data, code, metrics")
    pair.add_argument("before", metavar="RUN", help=f"{RUN_NAMES}; {OR_RECIPE}")
    pair.add_argument("after", metavar="RUN")
    written = add_command(sub, "report", write_report, store, "write the page of a run and open it in a browser")
    add_run(written, f"{RUN_NAMES}; {OR_RECIPE}")
    written.add_argument("--no-open", action="store_true", help="write the page only")


class RunSummary(TypedDict):
    """A run's main facts; hit, ran and skip count stages, and None is what is not known yet."""

    run: str
    recipe: str | None
    outcome: str | None
    ended: str | None
    seconds: float | None
    hit: int | None
    ran: int | None
    skip: int | None
    metrics: Meta


def run_summary(run: str, document: Mapping[str, Any]) -> RunSummary:
    """Return a past run's facts. document: its record."""
    stages = document.get("stages", [])
    acted = Counter(stage["action"] for stage in stages)
    return RunSummary(
        run=run, recipe=document.get("recipe"), outcome=document.get("outcome"), ended=document.get("ended"),
        seconds=document.get("seconds"), hit=acted["hit"], ran=acted["ran"], skip=acted["skip"],
        metrics={name: value for stage in stages for name, value in stage.get("metrics", {}).items()},
    )  # fmt: skip


def lineage(options: Namespace) -> int:
    """Print what an artifact was made from, what was made from it, and the runs that made or used it."""
    store = past_store(options.store, options.artifact)
    family = Family(store.all_records())
    documents = {run: store.run(run) or {} for run in store.run_ids()}
    name = options.artifact
    artifact = find_artifact(store, model_name(f"{name}@{NEWEST}" if is_recipe(name) else name))
    in_runs = [run for run, document in documents.items() if artifact in artifacts_of(document)]
    try:
        kind = store.artifact(artifact).kind
    except BlobLost:
        kind = None
    up, down = family.up(artifact), family.down(artifact)
    emit(
        options,
        {"artifact": artifact, "kind": kind, "up": up, "down": down, "runs": in_runs},
        f"{artifact}: {kind or 'its manifest is gone'}",
        *([_first_made(in_runs[-1], hide_secrets(documents[in_runs[-1]]))] if in_runs else []),
        *_up_lines(up, ""),
        "made of it:" if down else "nothing was made of it",
        *_down_lines(down, "  "),
        f"runs: {', '.join(in_runs) or 'none'}",
    )
    return 0


def _first_made(run: str, document: Mapping[str, Any]) -> str:
    """Return which data, model and code a run had, by its record."""
    resolved, checkout = document.get("resolved", {}), document.get("checkout")
    sources = [f"{part} {source}" for part in ("data", "model") if (source := resolved.get(part, {}).get("source"))]
    code = (
        f"commit {checkout['commit'][:12]}{' with uncommitted edits' * bool(checkout['dirty'])}"
        if checkout
        else "installed"
    )
    return f"first in run {run} of {document.get('recipe')}: {', '.join([*sources, f'code {code}'])}"


def _up_lines(node: Made | FromSource, indent: str, name: str = "") -> Iterator[str]:
    head = f"{indent}{name + ': ' if name else ''}"
    if "source" in node:
        yield f"{head}{_listed(node['source'])}"
        return
    brief = str(node["artifact"])[:19]
    if node["stage"] is None:
        yield f"{head}{brief}: no record says how it was made"
        return
    if node["repeated"]:
        yield f"{head}{brief} made by {node['stage']} (see above)"
        return
    adopted = f", adopted from {adoption['from'][:12]}" if (adoption := node["adopted"]) else ""
    yield f"{head}{brief} made by {node['stage']} {node['created']}, key {node['key'][:12]}{adopted}"
    below = f"{indent}  "
    yield f"{below}params: {_listed(node['params'])}"
    yield f"{below}code: {len(node['code'])} modules; env: {_listed(node['env'])}"
    if node["shards"]:
        yield f"{below}put together from shards: {node['shards']}"
    for other in node["also"]:
        yield f"{below}also made under key {other[:12]}"
    for inner, item in node["inputs"].items():
        yield from _up_lines(item, below, inner)


def _down_lines(nodes: list[Descendant], indent: str) -> Iterator[str]:
    for node in nodes:
        yield f"{indent}{node['stage']} {node['artifact'][:19]} {node['created']}, key {node['key'][:12]}"
        yield from _down_lines(node["down"], f"{indent}  ")


def _listed(value: Any) -> str:
    return ", ".join(f"{name} {str(item)[:60]}" for name, item in leaves(value)) or "none"


def diff(options: Namespace) -> int:
    """Print how two past runs differ in settings, data, code, libraries, artifacts and metrics."""
    found = differences(past_store(options.store, options.before), options.before, options.after)
    lines = [
        f"{sign} {head['run']} {head['recipe']} {head['outcome']} {head['ended']}"
        for sign, head in zip("-+", (found["before"], found["after"]), strict=True)
    ]
    for part in report.DIFFERENCES:
        lines.append(f"{part}:" if found[part] else f"{part}: the same")
        for change in found[part]:
            name, before, after = report.change_cells(change)
            where = f"  ({', '.join(change['stages'])})" if change.get("stages") else ""
            lines.append(f"  {name}: {before} -> {after}{where}")
    if found["unknown"]:
        lines.append(f"not in both runs, or no longer on record: {', '.join(found['unknown'])}")
    emit(options, found, *lines)
    return 0


class RunDiff(RunDifference):
    """What `trnflow diff --json` prints."""

    before: RunSummary
    after: RunSummary


def differences(store: Store, before: str, after: str) -> RunDiff:
    """Return how two runs differ. before, after: names of runs. Raises ConfigError."""
    runs = [past_run(store, text) for text in (before, after)]
    documents = [hide_secrets(store.run(run) or {}) for run in runs]  # earlier versions recorded secrets
    heads = [run_summary(run, document) for run, document in zip(runs, documents, strict=True)]
    return {"before": heads[0], "after": heads[1], **_compared(store, documents[0], documents[1])}


def write_report(options: Namespace) -> int:
    """Write a run's page to `<home>/reports/<run>.html`, and open it if stdout is a terminal. Raises StoreError."""
    store = past_store(options.store, options.run)
    run = past_run(store, options.run)
    path = page_of(store, run)
    serving = _serving(store, store.run(run) or {})
    document = {"run": run, "path": str(path), "champion": serving.champion if serving else None}
    emit(options, document, path, *(f"note: {note}" for note in _serving_notes(serving)))
    if not options.json and not options.no_open and sys.stdout.isatty() and not webbrowser.open(path.as_uri()):
        sys.stderr.write("no browser was found: open the file in one\n")
    return 0


def _serving(store: Store, document: Mapping[str, Any]) -> Serving | None:
    """Return the champion beside a run's model. document: the run's record."""
    recipe, model = str(document.get("recipe")), artifact_of_run(cast(RunRecord, document), ROLES["model"])
    return serving_beside(store, recipe, model, recipe)


def _serving_notes(serving: Serving | None) -> list[str]:
    return [f"this run's model is {serving}"] if serving and serving.is_other else []


def page_of(store: Store, run: str) -> Path:
    """Write the page of a run to `<home>/reports/<run>.html`, and return its path. Raises StoreError without record."""
    from trnflow.flows.display.run_page import run_page, verdict_on

    document = store.run(run)
    if not document:
        raise StoreError(f"the record of run {run} can't be read", "`trnflow verify` says what is damaged")
    made = artifacts_of(document)
    lineage = Family(store.all_records()).up(made[-1]) if made else None
    ledger, notes = read_ledger(store, str(document["recipe"])), _serving_notes(_serving(store, document))
    first = [verdict_on(run, ledger.entries()), *notes, forced_champion(ledger)]
    html = run_page(store, run, document, [*filter(None, first)], _previous(store, run, document), lineage)
    path = store.home / "reports" / f"{run}.html"
    write_whole(path, html)
    return path


def _previous(store: Store, run: str, document: RunRecord) -> tuple[str, RunDifference] | None:
    """Return the recipe's run before `run`, and what changed since."""
    ids = store.run_ids()
    # ids are sorted by time, so the first of the recipe is the one before
    for earlier in ids[ids.index(run) + 1 :]:
        before = store.run(earlier) or {}
        if before.get("recipe") == document.get("recipe"):
            return earlier, _compared(store, hide_secrets(before), hide_secrets(document))
    return None


def _compared(store: Store, before: RunRecord, after: RunRecord) -> RunDifference:
    keys = [
        {stage["stage"]: stage["key"] for stage in run.get("stages", []) if stage["key"]} for run in (before, after)
    ]
    found = [{stage: store.record(stage, key) for stage, key in each.items()} for each in keys]
    was, now_is = ({stage: record["document"] for stage, record in each.items() if record} for each in found)
    return compare_runs(before, after, (was, now_is))
