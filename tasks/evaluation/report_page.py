"""Make the report page: one HTML file that loads nothing and runs no script. The template's engine escapes all
texts."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Meta
from trnflow.tasks.evaluation.baselines.config import BASELINE, BEFORE
from trnflow.tasks.evaluation.curves import drawn_curves, number
from trnflow.tasks.evaluation.lost_rows import COLUMNS
from trnflow.tasks.evaluation.plots import FRAMED, short, short_names
from trnflow.tasks.evaluation.scores import MAIN
from trnflow.tasks.kinds.registry import KINDS, kind_of
from trnflow.tasks.stage import read_json

if TYPE_CHECKING:
    from trnflow.tasks.evaluation.report_document import (
        BaselineReport,
        ConfusedPair,
        Generation,
        HarnessReport,
        LostRows,
        Report,
        Retrieval,
        WrongRow,
    )

TEMPLATE = "trnflow/tasks/evaluation/report.html.jinja"

PLOTS = {"confusion_matrix.png": "confusion matrix", "calibration.png": "calibration curve"}
PLOTS |= {file: shows for kind in KINDS.values() for file, shows in kind.plots.items()}

BASELINES = {BASELINE: "simple baseline", BEFORE: "before training"}
"""{name of a baseline: head of its column}"""

CLASSES, LONGEST_NAME = 200, 40
"""The most classes that the page lists, and characters of their names."""


def page(title: str, subtitle: str, notes: Sequence[str], evaluation: Meta | None, run: Meta | None = None) -> str:
    """Return the page of an evaluation, a run or both as HTML.

    notes: sentences that stand first; evaluation: of `evaluation_part`; run: of `trnflow.flows.display.run_page`.
    """
    from jinja2 import Environment, StrictUndefined

    source = Path(__file__).with_name("report.html.jinja").read_text(encoding="utf-8")
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(source)
    return template.render(title=title, subtitle=subtitle, notes=notes, evaluation=evaluation, run=run)


def write_page(folder: Path) -> None:
    """Write report.html into the folder of an evaluation's artifact."""
    report: Report = read_json(folder / "report.json")
    title = f"Evaluation on {report['split']}"
    (folder / "report.html").write_text(
        page(title, subtitle_of(report), report["notes"], evaluation_part(folder, report)), encoding="utf-8"
    )


def subtitle_of(report: Report) -> str:
    """Return one line about an evaluation: task, split, number of rows."""
    unit = "rows" if "tokens" not in report else f"chunks, {report['tokens']:,} supervised tokens"
    cut = f", {report['cut']:,} rows cut" if report.get("cut") else ""
    return f"{report['task'].replace('_', ' ')}, split {report['split']}: {report['rows']:,} {unit}{cut}"


def evaluation_part(folder: Path, report: Report) -> Meta:
    """Return what the template shows of an evaluation. folder: has the plots; report: report.json."""
    metrics, intervals, baselines = report["metrics"], report["intervals"], report.get("baselines", [])
    return {
        "cards": [
            {
                "name": name,
                "value": number(metrics[name]),
                "interval": _between(intervals.get(name)),
                "beside": _beside(name, baselines),
            }
            for name in (*report.get("own", ()), *MAIN)
            if name in metrics
        ],
        "metrics": _metrics(report, [entry for entry in baselines if "metrics" in entry]),
        "about_baselines": [_about(entry) for entry in baselines],
        "about_intervals": f"Intervals: {intervals['confidence']:.0%} of {intervals['resamples']:,} bootstrap resamples; of the "
        "accuracy of classes exact (Clopper and Pearson).",
        "confused": confused_table(report),
        "plots": [
            _plot(
                folder / name, alt, is_full=len(report.get("confusion", ())) >= FRAMED and name.startswith("confusion")
            )
            for name, alt in PLOTS.items()
            if (folder / name).exists()
        ],
        "classes": _classes(report.get("classes", [])),
        "worst": [_error(entry, report["split"]) for entry in report.get("worst", [])],
        "generations": [_generation(entry) for entry in report.get("generations", [])],
        "retrieved": [_retrieval(entry) for entry in report.get("retrieved", [])],
        "curves": drawn_curves({int(row["step"]): row for row in report.get("curves", [])}),
        "export": _export(report),
        "harness": _harness(report.get("harness")),
        "lost_rows": _lost_rows(report.get("data", {})),
    }


def _metrics(report: Report, baselines: list[BaselineReport]) -> Meta:
    """Return the table of the metrics, with a column for each baseline and for the most frequent class."""
    others = {BASELINES[entry["name"]]: entry["metrics"] for entry in baselines}
    majority = report.get("majority", {})
    others |= {"most frequent class": majority} if majority else {}
    rows = (
        (
            name,
            number(value),
            *(number(metrics.get(name, "")) for metrics in others.values()),
            _between(report["intervals"].get(name)),
        )
        for name, value in sorted(report["metrics"].items())
        if name not in {f"{metric}_majority" for metric in majority}  # stands in its own column
    )
    heads = [*others]
    columns = ("metric", "model" if heads else "value", *heads, "interval")
    return table(columns, rows, columns[1:])


def _beside(name: str, baselines: list[BaselineReport]) -> str:
    """Return what baselines have of a metric, as text."""
    known = [(entry["name"], entry.get("metrics", {}).get(name)) for entry in baselines]
    return ", ".join(f"{baseline} {number(value)}" for baseline, value in known if value is not None)


def _about(entry: BaselineReport) -> str:
    """Return a sentence about how a baseline was made, or why there is none."""
    head = BASELINES[entry["name"]]
    if "left_out" in entry:
        return f"Without {head}: {entry['left_out']}."
    learnt = f", learnt from {entry['rows']:,} rows of train" if entry["rows"] else ""
    return f"{head.capitalize()}: {entry['method']}{learnt}."


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    numbers: Sequence[str] = ("value", "interval"),
    *,
    breaks: bool = False,
) -> Meta:
    """Return a table for the template. numbers: columns aligned to the right; breaks: lines may end at `_`."""
    return {"columns": [*columns], "rows": [[*row] for row in rows], "numbers": [*numbers], "breaks": breaks}


def _between(interval: Sequence[float] | None) -> str:
    return f"{number(interval[0])} to {number(interval[1])}" if interval else ""


def _plot(file: Path, alt: str, *, is_full: bool) -> Meta:
    name = file.name if is_full else None
    return {"alt": alt, "full": name, "data": f"data:image/png;base64,{base64.b64encode(file.read_bytes()).decode()}"}


def _classes(classes: list[Meta]) -> Meta | None:
    if not classes:
        return None
    usual = ("precision", "recall", "f1", "support")
    names = [*(n for n in usual if n in classes[0]), *(n for n in classes[0] if n not in (*usual, "label"))]
    labels = short_names([entry["label"] for entry in classes], LONGEST_NAME)
    shown = zip(labels[:CLASSES], classes[:CLASSES], strict=True)
    rows = ([label, *(number(entry[name]) for name in names)] for label, entry in shown)
    # numbers and cosines are no classes
    return table(("class" if names[0] in usual else "output", *names), rows, names, breaks=True)


def confused_table(report: Report) -> Meta | None:
    """Return the table of the pairs of classes that are confused most; None of two classes, of which the matrix says all."""
    pairs = report.get("confused", [])
    if not pairs or len(report["confusion"]) <= 2:
        return None
    labels = [entry["label"] for entry in report["classes"]]
    names = dict(zip(labels, short_names(labels, LONGEST_NAME), strict=True))
    files = {row.get("file", "") for pair in pairs for row in pair["rows"]}
    rows = [
        (names[pair["label"]], names[pair["predicted"]], pair["count"], f"{pair['share']:.1%}", _numbers(pair, files))
        for pair in pairs
    ]
    where = f"of {next(iter(files)) or 'the split ' + report['split']}" if len(files) == 1 else "of the files"
    columns = ("true class", "predicted class", "rows", "share", "row numbers")
    about = f"Share: of the rows of the true class. Row numbers: the first ones {where}, from 1, a header not counted."
    return {**table(columns, rows, ("rows", "share"), breaks=True), "about": about}


def _numbers(pair: ConfusedPair, files: Collection[str]) -> str:
    """Return the numbers of a pair's first rows, with the files' names where there are several."""
    numbers = [
        f"{row['file']} {row['file_row']}" if len(files) > 1 else str(row.get("file_row", row["row"]))
        for row in pair["rows"]
    ]
    return ", ".join([*numbers, *(["…"] if pair["count"] > len(numbers) else [])])


def _harness(found: HarnessReport | None) -> Meta | None:
    if found is None:
        return None
    columns = ("task", "version", "filter", "shots", "documents", "metric", "value", "stderr")
    rows = [["" if (cell := row.get(name)) is None else number(cell) for name in columns] for row in found["rows"]]
    return {"version": found["version"], "rows": table(columns, rows, ("shots", "documents", "value", "stderr"))}


def _lost_rows(data: dict[str, LostRows]) -> Meta | None:
    """Return the table of lost rows by split, or None."""
    kinds = [kind for kind in COLUMNS if any(kind in counts for counts in data.values())]
    columns = ("split", "rows", *(COLUMNS[kind] for kind in kinds))
    rows = [(split, f"{counts['rows']:,}", *(f"{counts[kind]:,}" for kind in kinds)) for split, counts in data.items()]
    lost = any(counts[kind] for counts in data.values() for kind in kinds)
    return table(columns, rows, columns[1:]) if lost else None


def _error(entry: WrongRow, split: str) -> Meta:
    place = f"Row {entry['row']}"
    if "file_row" in entry:
        place = f"Row {entry['file_row']} of {entry['file']} (row {entry['row']} of {split})"
    label, predicted = (short(entry[side], LONGEST_NAME) for side in ("label", "predicted"))
    named = f"{place}: {label}, predicted {predicted}"
    named += f" ({entry['probability']:.1%})" if "probability" in entry else ""
    columns = entry.get("columns", {})
    return {"name": f"{named}, loss {number(entry['loss'])}", "text": entry["text"], "columns": columns}


def _retrieval(entry: Retrieval) -> Meta:
    """Return an anchor's name, its text and the nearest ones."""
    parts = [(f"cosine {number(near['cosine'])}", near["text"]) for near in entry["found"]]
    texts = [("text", entry["asked"]), *parts, (f"its own, place {entry['place']}", entry["positive"])]
    return {"name": f"Row {entry['row']}", "parts": [{"name": name, "text": text} for name, text in texts]}


def _generation(line: Generation) -> Meta:
    """Return a generation's name, its texts, and a table of the texts before and after training."""
    texts = [("prompt", line["prompt"])]
    compared = [
        ("greedy", line.get("before"), line["generated"]),
        ("sampled", line.get("before_sampled"), line["sampled"]),
    ]
    beside = "before" in line  # not from scratch, nor in evaluations of earlier versions
    if not beside:
        texts += [(name, after) for name, _, after in compared]
    name = "A prompt of the recipe" if line["row"] is None else f"Row {line['row']}"
    return {
        "name": name,
        "parts": [{"name": name, "text": text} for name, text in texts],
        "compared": [{"name": name, "before": was, "after": now} for name, was, now in compared] if beside else [],
        "answer": line["answer"],
    }


def _export(report: Report) -> str:
    export = report["export"]
    if "note" in export:
        return f"{export['target']}: {export['note']}"
    metrics = report["metrics"]
    kind = kind_of(report["task"])
    what = f"{export['compared']:,} {'tokens' if kind.per_position else 'rows'}"
    if kind.per_position and "rows" in export:  # absent in evaluations of earlier versions
        what += f" of {export['rows']:,} {'rows' if kind.per_row else 'chunks'}"
    same = f"the same prediction as the weights' for {100 * metrics['export_agreement']:.6g}% of {what}"
    return f"{export['target']}: {same}; the largest difference of two logits is {number(metrics['export_max_difference'])}."
