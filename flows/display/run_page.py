"""Make the page of a run: evaluation, stages, training curves, data, lineage, differences from the run before."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnflow.flows.display.report import DIFFERENCES, change_cells, number, seconds
from trnflow.flows.finetune import ROLES, STAGES
from trnflow.flows.runner.attempts import run_of
from trnflow.flows.runner.forecast import dollars
from trnflow.flows.runner.metadata_check import checked_artifact
from trnflow.tasks.artifact import Meta
from trnflow.tasks.documents import RecordedStage, RunRecord
from trnflow.tasks.errors import BlobLost
from trnflow.tasks.evaluation.curves import drawn_curves
from trnflow.tasks.evaluation.report_page import evaluation_part, page, subtitle_of, table
from trnflow.tasks.events import Event, log_file, parse_events
from trnflow.tasks.events.event_types import Metrics
from trnflow.tasks.events.log_copy import CopiedLogs
from trnflow.tasks.keys.lineage import FromSource, Made, RunDifference
from trnflow.tasks.stage import read_json
from trnflow.tasks.store import Store
from trnflow.tasks.store.layout import document_name
from trnflow.tasks.store.ledger.entries import OUT_OF_BOUNDS, REFUSED, Entry
from trnflow.tasks.store.model_names import artifact_of_run
from trnflow.tasks.system.redaction import hide_secrets, scrub_all

if TYPE_CHECKING:
    from trnflow.tasks.evaluation.report_document import Report


def run_page(
    store: Store,
    run: str,
    document: RunRecord,
    first: list[str],
    previous: tuple[str, RunDifference] | None,
    lineage: Made | None,
) -> str:
    """Return the page of a run as HTML, without secrets. A note says if the store has lost the evaluation.

    Args:
        document: The run record.
        first: What was decided about its model, and what serves; these sentences stand first.
        previous: (id of the recipe's run before, how the two differ by `compare_runs`); None for the first.
        lineage: `Family.up` of the run's last artifact, None without one.
    """
    document = hide_secrets(document)
    notes, report, evaluation = _evaluation(store, document)
    head = f"{document['outcome']} {document['ended']}, {seconds(document['seconds'])} s"
    price = float(document.get("resolved", {}).get("hardware", {}).get("price_per_hour", 0.0))  # USD
    price *= bool(document.get("dollars"))
    spent = f", {document['dollars']:.2f} USD" if price else ""
    about = f"; {subtitle_of(report)}" if report else ""
    error = document.get("error")
    wrong = [f"{error['stage'] or 'the run'} failed: {error['message']}"] if error else []
    ran, reused = ([one["stage"] for one in document["stages"] if one["action"] == action] for action in ("ran", "hit"))
    counts = (
        f"{len(ran)} stages ran, {len(reused)} were reused from the store{': ' if reused else ''}{', '.join(reused)}."
    )
    part = {
        "stages": _stages(document, price),
        "reused": counts,
        "curves": drawn_curves(_training_metrics(store, document)),
        **_data(store, document),
        "figures": _figures(document),
        **_difference(previous),
        "lineage": _tree(lineage, "") if lineage else None,
    }
    title, subtitle = f"{document['recipe']}: run {run}", f"{head}{spent}{about}"
    said = dict.fromkeys([*first, *wrong, *notes, *document.get("notes", [])])
    html = page(title, subtitle, scrub_all([*said]), evaluation, scrub_all(part))
    return html.encode(errors="replace").decode()  # halves of pairs, which JSON may hold, are no UTF-8


def verdict_on(run: str, entries: Iterable[Entry]) -> str | None:
    """Return the newest decision about a run's model; None without one. entries: of a ledger, newest first."""
    by_number = {entry["n"]: entry for entry in entries}
    decided = (entry for entry in by_number.values() if entry["run"] == run and entry["by"] in ("retrain", "promote"))
    entry = next(decided, None)
    if entry is None:
        return None
    pair, stands = entry["comparison"], entry["stands"]
    if pair is None or entry["forced"] is not None:
        return f"{entry['outcome']}: {entry['why']}"
    number = stands["champions"][0]["number"] - (entry["outcome"] == "promoted")
    frozen = (each for each in by_number.values() if each["outcome"] == "frozen" and each["n"] < entry["n"])
    rows = next((each for each in frozen if each["frozen"] == entry["frozen"]), None)
    parts = [
        f"{entry['outcome']}: {pair['metric']} {pair['challenger']:.4g} against {pair['champion']:.4g} of champion {number}",
        f"difference {pair['difference']:+.4g}, interval {pair['low']:+.4g} to {pair['high']:+.4g}",
        f"{pair['rows']} frozen rows" + (f" of {rows['created'][:10]}" if rows else ""),
    ]
    if entry["why"].startswith((REFUSED, OUT_OF_BOUNDS)):
        parts.append(entry["why"])
    if pair.get("spent"):
        parts.append(f"budget spent {pair['spent']:.1%}")
    return "; ".join(parts)


def _evaluation(store: Store, document: RunRecord) -> tuple[list[str], Report | None, Meta | None]:
    """Return (notes, report.json, the page's part about the evaluation); None for what is not there."""
    digest = artifact_of_run(document, ROLES["evaluation"])
    if digest is None:
        return [], None, None
    with tempfile.TemporaryDirectory() as folder:
        try:
            store.copy_files(store.artifact(digest), Path(folder))
        except BlobLost as error:
            return [f"the evaluation is no longer in the store: {error.message}"], None, None
        report: Report = read_json(Path(folder) / "report.json")
        return report["notes"], report, evaluation_part(Path(folder), report)


def _stages(document: RunRecord, price: float) -> Meta:
    columns = ("stage", "action", "seconds", *(("USD",) if price else ()), "artifact", "why")
    rows = []
    for one in document["stages"]:
        took = one["seconds"] or 0.0
        cost = (f"{dollars(took, price):.4f}",) if price else ()
        rows.append((one["stage"], one["action"], seconds(took), *cost, (one["artifact"] or "")[:19], one["why"]))
    if not any(row[-1] for row in rows):  # the recipe's first run
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return table(columns, rows, ("seconds", "USD"))


def _training_metrics(store: Store, document: RunRecord) -> dict[int, dict[str, float]]:
    """Return {step: {metric: value}} of all attempts of the training's key; the latest attempt counts."""
    key = next((stage["key"] for stage in document["stages"] if stage["stage"] == ROLES["training"]), None)
    found: dict[int, dict[str, float]] = {}
    attempts = sorted(document_name(name) for name in store.backend.names(f"attempts/{key}")) if key else []
    for run in dict.fromkeys(map(run_of, attempts)):
        for event in _metrics_of(_events(store, run), ROLES["training"], key):
            finite = {metric: value for metric, value in event["values"].items() if math.isfinite(value)}
            found.setdefault(event["step"], {}).update(finite)
    return found


def _events(store: Store, run: str) -> Iterator[Event]:
    """Yield the events of a run: of its log on this machine, else of the store's copy."""
    file = log_file(store.home, run)
    if file.exists():
        yield from parse_events(file.read_bytes(), str(file))
        return
    yield from CopiedLogs(store.backend, run).events()


def _metrics_of(events: Iterable[Event], stage: str, key: str | None) -> Iterator[Metrics]:
    """Yield the metrics of a stage while it makes this key."""
    is_wanted = False
    for event in events:
        if event["event"] == "stage_begun" and event["stage"] == stage:
            is_wanted = event["key"] == key
        elif event["event"] == "metrics" and event["stage"] == stage and is_wanted:
            yield event


def _data(store: Store, document: RunRecord) -> Meta:
    """Return the table of splits and lines about the data; None and [] if the store has lost the rows."""
    names = (ROLES["rows"], ROLES["texts"], ROLES["tokens"], ROLES["chunks"])
    rows, texts, tokens, packed = (_meta(store, document, name) for name in names)
    if not rows:
        return {"data": None, "data_lines": []}
    columns = ("split", "rows", "texts", "tokens", "too long", "chunks")
    found = [
        (
            split, f"{count:,}", _of(texts, "splits", split), _of(tokens, "tokens", split), _of(tokens, "overlong", split),
            f"{sum(packed['rows'].get(split, {}).values()):,}" if packed else "",
        )
        for split, count in rows["splits"].items()
    ]  # fmt: skip
    lines = [
        f"Dropped by {stage}: {_counts(meta['dropped'])}"
        for stage, meta in (
            (ROLES["rows"], rows),
            (ROLES["texts"], texts),
            (f"{ROLES['tokens']} and {ROLES['chunks']}", packed or tokens),
        )
        if meta.get("dropped")
    ]
    lines += [f"Duplicates: {rows['duplicates']}"] if rows.get("duplicates") else []
    leakage = {pair: count for pair, count in (rows.get("leakage") or {}).items() if count}
    lines += [f"Rows that stand in two splits: {_counts(leakage)}" if leakage else "No row stands in two splits."]
    lines += [f"Labels of {split}: {_counts(counts)}" for split, counts in (rows.get("label_counts") or {}).items()]
    return {"data": table(columns, found, columns[1:]), "data_lines": lines}


def _counts(counts: Meta) -> str:
    return ", ".join(f"{name} {number(count)}" for name, count in counts.items())


def _meta(store: Store, document: RunRecord, stage: str) -> Meta:
    """Return the metadata of a stage's artifact; {} if the run has none or the store lost it."""
    digest = artifact_of_run(document, stage)
    try:
        return checked_artifact(store, stage, digest).meta if digest else {}
    except BlobLost:
        return {}


def _of(meta: Meta, name: str, split: str) -> str:
    return f"{meta[name][split]:,}" if split in meta.get(name, {}) else ""


def _figures(document: RunRecord) -> Meta | None:
    """Return the table of what stages measured, and of the metrics of the user's own."""
    rows = [
        (one["stage"], name, f"{number(value)}{_share(one, name, value)}")
        for one in document["stages"]
        for name, value in sorted((one.get("figures", {}) | ({} if one["stage"] in STAGES else one["metrics"])).items())
    ]
    return table(("stage", "figure", "value"), rows, ("value",)) if rows else None


def _share(stage: RecordedStage, figure: str, value: Any) -> str:
    """Return what a figure in seconds is of its stage's time, or "": a stage that did not run took none."""
    return f" ({value / stage['seconds']:.0%} of the stage)" if figure.endswith("_seconds") and stage["seconds"] else ""


def _difference(previous: tuple[str, RunDifference] | None) -> Meta:
    if previous is None:
        return {"before": "the run before", "changes": None, "unchanged": "This is the recipe's first run on record."}
    before, found = previous
    rows = [(part, *change_cells(change)) for part in DIFFERENCES for change in found[part]]
    changes = table(("part", "name", "before", "after"), rows, ()) if rows else None
    return {"before": before, "changes": changes, "unchanged": "Nothing differs."}


def _tree(node: Made | FromSource, name: str) -> Meta:
    """Return a node of `Family.up` for the template. name: under which the stage above reads it."""
    head = f"{name}: " if name else ""
    if "source" in node:
        return {"line": f"{head}source {_source(node['source'])}", "below": []}
    brief = f"{head}{node['artifact'][:19]}"
    if node["stage"] is None:
        return {"line": f"{brief}: a file of the source, or an artifact whose record is gone", "below": []}
    line = f"{brief} made by {node['stage']} {node['created']}"
    if node["repeated"]:
        return {"line": f"{line} (see above)", "below": []}
    known = {name: item for name, item in node["inputs"].items() if item.get("source", "") is not None}
    return {"line": line, "below": [_tree(item, inner) for inner, item in known.items()]}


def _source(identity: Any) -> str:
    text = json.dumps(identity, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:199]}…"
