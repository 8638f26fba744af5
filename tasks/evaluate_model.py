"""Score the consolidated weights' predictions on a split, and report them: what `predict_rows` made, run before or now."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trnflow.tasks.artifact import Artifact, Input, Meta, Source
from trnflow.tasks.data.chunks import open_chunks
from trnflow.tasks.evaluation.baselines.config import BASELINE, BEFORE, before_inputs, has_baseline, is_told_before
from trnflow.tasks.evaluation.baselines.measured import (
    baseline_columns,
    ended,
    measure_baselines,
    metrics_of,
    model_columns,
)
from trnflow.tasks.evaluation.config import (
    GENERATIONS,
    PredictConfig,
    SplitConfig,
    accelerator,
    environ,
    predict_inputs,
)
from trnflow.tasks.evaluation.evaluated_rows import WORST, EvaluatedRows
from trnflow.tasks.evaluation.harness import PACKAGES, HarnessConfig
from trnflow.tasks.evaluation.lost_rows import lost_rows
from trnflow.tasks.evaluation.metrics.row_sums import RowSums
from trnflow.tasks.evaluation.own_metrics import OwnMetric, own_values, sorted_seen
from trnflow.tasks.evaluation.report_page import TEMPLATE, write_page
from trnflow.tasks.evaluation.scores import (
    SCORES,
    accuracy,
    f1_weighted,
    intervals_of,
    majority,
    values_of,
    values_of_texts,
)
from trnflow.tasks.evaluation.verdicts.facts import Facts
from trnflow.tasks.evaluation.verdicts.verdict import verdict
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.stage import Kept, Keyed, Workdir, read_json, stage, write_json

if TYPE_CHECKING:
    from trnflow.tasks.evaluation.columns import ClassPredictions
    from trnflow.tasks.evaluation.report_document import BaselineReport, Generation, Report, TaskReport, WrongRow
    from trnflow.tasks.metadata import Task
    from trnflow.tasks.system.arrays import Ints

PREDICTING = "trnflow.tasks.predict_rows:predict_rows"
HARNESS = "trnflow.tasks.run_harness:run_harness"
FITTING = "trnflow.tasks.fit_baseline:fit_baseline"
BEFORE_TRAINING = "trnflow.tasks.predict_before:predict_before"

MAJORITY = f"{f1_weighted.name}_majority"
"""The metric of a baseline that predicts the most frequent class."""

SHOWN = 3
"""Generations in the report; generations.jsonl has all."""


class EvaluateConfig(PredictConfig):
    """Settings of the stage `evaluate_model`."""

    metrics: tuple[OwnMetric, ...] = ()
    """Metrics of your own, beside the built-in ones."""
    harness: HarnessConfig | None = None
    """Tasks of lm-evaluation-harness, on which a language model is evaluated, too."""
    baseline: Literal["auto"] | None = "auto"
    """What a simple method gets on the same rows, and where that tells something, the model before training: `auto`, or
    null for nothing."""

    def predicting(self) -> PredictConfig:
        """Return the settings of `predict_rows`."""
        return PredictConfig.model_validate({name: getattr(self, name) for name in PredictConfig.model_fields})

    def harnessing(self) -> HarnessConfig | None:
        """Return the settings of `run_harness`; None without tasks."""
        device = self.harness and (self.harness.device or self.device)
        return self.harness and self.harness.model_copy(update={"device": device})

    def fitting(self) -> SplitConfig | None:
        """Return the settings of `fit_baseline`."""
        return SplitConfig(split=self.split) if self.baseline else None

    def before(self) -> PredictConfig | None:
        """Return the settings of `predict_before`."""
        return self.predicting() if self.baseline else None


def evaluate_inputs(config: EvaluateConfig, inputs: Keyed) -> Meta:
    """Return the table `inputs` of the key document: the inputs of `predict_rows`, and the texts of every task."""
    texts = inputs["texts"]
    assert isinstance(texts, Artifact)
    before = {"before": before_inputs(config, inputs)} if config.baseline and is_told_before(inputs) else {}
    return {**predict_inputs(config, inputs), "texts": texts.digest, **before}


def evaluate_accelerator(config: EvaluateConfig) -> Meta:
    """Return the part `accel` of the key: the versions of the harness's libraries only where it runs."""
    return accelerator(config) | ({"versions": [*PACKAGES]} if config.harness else {})


@stage(
    kind="evaluation",
    role="evaluation",
    aside=("rows",),
    plots=True,
    meta_only=("shards",),
    inputs=evaluate_inputs,
    accel=evaluate_accelerator,
    environ=environ,
    assets=(TEMPLATE,),
    kept={
        "predictions": Kept(PREDICTING, EvaluateConfig.predicting),
        "harness_results": Kept(HARNESS, EvaluateConfig.harnessing),
        "baseline_predictions": Kept(FITTING, EvaluateConfig.fitting, has_baseline),
        "starting_predictions": Kept(BEFORE_TRAINING, EvaluateConfig.before, is_told_before),
    },
)
def evaluate_model(
    config: EvaluateConfig,
    texts: Input,
    packed: Input,
    predictions: Input,
    rows: Input | None = None,
    code: Source | None = None,
    harness_results: Input | None = None,
    baseline_predictions: Input | None = None,
    starting_predictions: Input | None = None,
    shards: Input | None = None,
    *,
    out: Workdir,
) -> Meta:
    """Write report.json, report.html and predictions.parquet; of classes and numbers the plots, of texts generations.jsonl; of
    what the model is compared with baseline.parquet and before.parquet.

    rows: `load_data`'s; code: the functions that `metrics` names, None without any; shards: what train made, of which the
    metadata is read.

    Returns metadata: task, split, metrics; own, the names of the user's metrics, and of those of tasks of the harness; notes,
    the verdict, which a run prints last.
    """
    made, task = predictions.meta, task_of(predictions, packed)
    given = EvaluatedRows(texts, made["split"], rows)
    kind = kind_of(task)
    score = (
        _classification if kind.one_class else _targets if kind.reads_targets else _pairs if kind.pairs else _language
    )
    measured = score(packed, predictions, given, out)
    compared = {BASELINE: baseline_predictions, BEFORE: starting_predictions}
    baselines = measure_baselines(compared, predictions, packed, task, out.path)
    metrics, own = measured["metrics"] | made["export_metrics"], dict[str, list[str]]()
    if harness_results is not None:
        metrics, own = metrics | harness_results.meta["metrics"], {"own": harness_results.meta["own"]}
    if rows is not None and code is not None:
        values = own_values(
            config.metrics, code, _seen(texts, packed, predictions, rows, out.scratch / "seen"), metrics, out.scratch
        )
        metrics, own = metrics | values, {"own": [*values, *own.get("own", ())]}
    report: Report = {
        **measured, "task": task, "split": made["split"], "asked": config.split, "rows": made["rows"], "metrics": metrics,
        "data": lost_rows(texts, packed), "max_length": packed.meta.get("max_length"), "export": made["export"],
        "notes": [],
    }  # fmt: skip
    if own:
        report["own"] = own["own"]
    if harness_results is not None:
        report["harness"] = read_json(harness_results.path / "harness.json")
    if baselines:
        report["baselines"] = baselines
        _say_left_out(baselines, out)
    if shards is not None and "curves" in shards.meta:
        report["curves"] = shards.meta["curves"]
    report["notes"] = verdict(_facts(report, texts, packed, predictions, compared, shards, out.path))
    write_json(out.path / "report.json", report)
    write_page(out.path)
    hidden = {score.name for score in SCORES if score.report_only}
    shown = metrics_of(baselines) | {key: metrics[key] for key in metrics if key not in hidden}
    return {"task": task, "split": made["split"], "metrics": shown, **own, "notes": report["notes"]}


def _say_left_out(baselines: list[BaselineReport], out: Workdir) -> None:
    for entry in baselines:
        if "left_out" in entry:
            out.info(f"no {entry['name']} to compare with: {entry['left_out']}")


def _facts(
    report: Report,
    texts: Input,
    packed: Input,
    predicted: Input,
    compared: Mapping[str, Input | None],
    shards: Input | None,
    folder: Path,
) -> Facts:
    """Return what the verdict is made of. compared: {name: what made a baseline}; folder: of the evaluation."""
    from trnflow.tasks.data.tokenization.tokenizer import read_tokenizer
    from trnflow.tasks.evaluation.row_losses import source_rows
    from trnflow.tasks.evaluation.verdicts.rows import known_rows
    from trnflow.tasks.evaluation.verdicts.script import token_counts, unknown_share

    split, task, tokenizer = report["split"], report["task"], read_tokenizer(packed.path / "tokenizer")
    goes_on = texts.meta.get("rows", {}).get("settings", {}).get("task") == "text"  # it may go on for ever
    others = [(name, each) for name, each in compared.items() if each is not None and "left_out" not in each.meta]
    columns, labels = model_columns(predicted, task), predicted.meta.get("labels") or ()
    return Facts(
        report,
        columns,
        {name: baseline_columns(each, predicted, task) for name, each in others},
        labels,
        {} if shards is None else shards.meta,
        packed.meta,
        known_rows(texts, split),
        source_rows(packed, split),
        _taught(packed, columns, len(labels)) if kind_of(task).one_class else None,
        unknown_share(tokenizer, token_counts(packed, split, tokenizer.vocab_size)),
        _generations(folder) if (folder / GENERATIONS).exists() and not goes_on else (),
        predicted.meta.get("temperature"),
    )


def _taught(packed: Input, columns: ClassPredictions, classes: int) -> Ints:
    import numpy as np

    return np.bincount(_training_labels(packed, columns.expected), minlength=classes)


def _seen(texts: Input, packed: Input, predicted: Input, rows: Input, folder: Path) -> Meta:
    """Write the predictions as the user's metrics read them, in the order of the rows."""
    import numpy as np

    from trnflow.tasks.evaluation.columns import ClassPredictions, RowLosses, load_columns
    from trnflow.tasks.evaluation.row_losses import source_rows
    from trnflow.tasks.kinds.targets import Outputs

    task, split, generations = task_of(predicted, packed), predicted.meta["split"], None
    kind, arrays = kind_of(task), dict[str, Any]()
    if kind.pairs:
        pairs, order = load_columns(kind.rewards, predicted.path), source_rows(packed, split)
        arrays = {"probabilities": np.stack([pairs.chosen, pairs.rejected], axis=1), "loss": pairs.loss}
    elif kind.per_row:
        order = source_rows(packed, split)
        if kind.reads_targets:
            found = load_columns(Outputs, predicted.path)
            arrays = {
                "expected": found.expected,
                "predicted": found.decided,
                "probabilities": found.values,
                "loss": found.loss,
            }
        else:
            arrays = load_columns(ClassPredictions, predicted.path)._asdict()
    else:
        arrays, generations = load_columns(RowLosses, predicted.path)._asdict(), predicted.path / GENERATIONS
        order = arrays.pop("row")
        del arrays["cut"]
    labels = predicted.meta.get("labels", ())
    return sorted_seen(folder, packed, texts, rows, split, order, arrays, labels, generations, task=task)


def _generations(folder: Path) -> list[Generation]:
    with (folder / GENERATIONS).open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _classification(packed: Input, predicted: Input, given: EvaluatedRows, out: Workdir) -> TaskReport:
    """Write predictions.parquet and the plots; return the report's entries, with all metrics."""
    from trnflow.tasks.evaluation import classification, plots
    from trnflow.tasks.evaluation.columns import ClassPredictions, load_columns
    from trnflow.tasks.evaluation.metrics import ece
    from trnflow.tasks.evaluation.predictions import write_classes
    from trnflow.tasks.evaluation.row_losses import source_rows

    labels, predictions = predicted.meta["labels"], load_columns(ClassPredictions, predicted.path)
    rows = source_rows(packed, predicted.meta["split"])
    write_classes(predictions, labels, rows, given, out.path / "predictions.parquet")
    metrics = values_of("classification", predictions)
    always = majority(_training_labels(packed, predictions.expected), predictions, len(labels))
    matrix, bins = classification.confusion(predictions, len(labels)), ece.calibration(predictions)
    title = f"accuracy {metrics[accuracy.name]:.3f}, weighted F1 {metrics[f1_weighted.name]:.3f}"
    plots.confusion_matrix(matrix, labels, title, out.path / "confusion_matrix.png")
    plots.calibration(
        bins, f"expected calibration error {ece.calibration_error(bins):.3f}", out.path / "calibration.png"
    )
    metrics[MAJORITY] = always[f1_weighted.name]
    return {
        "metrics": metrics,
        "majority": always,
        "intervals": intervals_of("classification", predictions, matrix),
        "classes": classification.class_report(predictions, labels),
        "confusion": matrix.tolist(),
        "calibration": bins,
        "confused": classification.confused(predictions, matrix, labels, rows, given),
        "worst": _worst(predictions, labels, rows, given),
    }


def _targets(packed: Input, predicted: Input, given: EvaluatedRows, out: Workdir) -> TaskReport:
    """Write predictions.parquet and the plots; return the report's entries, with all metrics."""
    from trnflow.tasks.evaluation.columns import load_columns
    from trnflow.tasks.evaluation.report_outputs import report_outputs
    from trnflow.tasks.kinds.targets import Outputs

    found = load_columns(Outputs, predicted.path)
    return report_outputs(found, packed, predicted.meta["split"], given, out.path)


def task_of(predicted: Input, packed: Input) -> Task:
    """Return what the model learnt of the rows; predictions of earlier versions do not say it."""
    task: Task = predicted.meta.get("task", packed.meta["task"])
    return task


def _pairs(packed: Input, predicted: Input, given: EvaluatedRows, out: Workdir) -> TaskReport:
    """Write predictions.parquet and generations.jsonl; return the report's entries, with all metrics."""
    from trnflow.tasks.evaluation.columns import load_columns
    from trnflow.tasks.evaluation.report_outputs import report_pairs

    task = task_of(predicted, packed)
    found = load_columns(kind_of(task).rewards, predicted.path)
    report = report_pairs(found, packed, task, predicted.meta["split"], given, out.path)
    if kind_of(task).per_row:
        return report
    shutil.copyfile(predicted.path / GENERATIONS, out.path / GENERATIONS)
    return {**report, "generations": _generations(out.path)[:SHOWN]}


def _worst(predictions: ClassPredictions, labels: list[str], rows: Ints, given: EvaluatedRows) -> list[WrongRow]:
    """Return the wrong predictions with the highest loss."""
    from trnflow.tasks.evaluation.classification import worst

    return [
        {
            **given.wrong(
                int(rows[at]),
                labels[predictions.expected[at]],
                labels[predictions.predicted[at]],
                float(predictions.loss[at]),
            ),
            "probability": float(predictions.probabilities[at, predictions.predicted[at]]),
        }
        for at in worst(predictions, WORST)
    ]


def _language(packed: Input, predicted: Input, given: EvaluatedRows, out: Workdir) -> TaskReport:
    """Write predictions.parquet and generations.jsonl; return the report's entries, with all metrics."""
    from trnflow.tasks.evaluation.columns import RowLosses, load_columns
    from trnflow.tasks.evaluation.predictions import write_losses

    rows = load_columns(RowLosses, predicted.path)
    write_losses(rows, given, out.path / "predictions.parquet")
    shutil.copyfile(predicted.path / GENERATIONS, out.path / GENERATIONS)
    made = _generations(out.path)
    sums = RowSums(rows.nll, rows.tokens, rows.bytes, predicted.meta["total"])
    return {
        "metrics": values_of("causal_lm", sums) | _answered(made),
        "intervals": intervals_of("causal_lm", sums),
        "tokens": int(rows.tokens.sum()),
        "bytes": int(rows.bytes.sum()),
        "cut": int(rows.cut.sum()),
        "answered": sum(one["answer"] is not None for one in made),
        "generations": made[:SHOWN],
    }


def _answered(lines: list[Generation]) -> dict[str, float]:
    """Return the metrics of the greedy texts whose prompts have answers."""
    answered = [(line, line["answer"]) for line in lines if line["answer"] is not None]
    metrics = dict(values_of_texts([(line["generated"], answer) for line, answer in answered]))
    return metrics | ended([line for line, _ in answered], "ended")


def _training_labels(packed: Input, expected: Ints) -> Ints:
    """Return the labels of the train split; `expected` without one."""
    import numpy as np

    rows = packed.meta["rows"].get("train", {})
    labels = [open_chunks(packed, "train", int(length))["labels"] for length, count in rows.items() if count]
    return np.concatenate(labels).astype(np.int64) if labels else expected
