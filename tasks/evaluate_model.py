"""Evaluate the consolidated weights on a split, and compare the exported model with them.

Costs a forward pass over the split in eager PyTorch, the texts, and the comparison of the export: where jax is
installed one compilation a length, else one a batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from trnflow.tasks.artifact import Artifact, Input, Json, Meta, Source
from trnflow.tasks.config import BatchRows, NonNegativeCount, StageConfig
from trnflow.tasks.data.chunks import open_chunks
from trnflow.tasks.errors import DataError, MissingDependency, ModelError
from trnflow.tasks.evaluation.generation import GenerationConfig
from trnflow.tasks.evaluation.lost_rows import lost_rows, lost_rows_notes
from trnflow.tasks.evaluation.models import load_model
from trnflow.tasks.evaluation.report_page import TEMPLATE, write_page
from trnflow.tasks.evaluation.scores import (
    SCORES,
    RowSums,
    accuracy,
    f1_weighted,
    intervals_of,
    majority,
    values_of,
    values_of_texts,
)
from trnflow.tasks.stage import Keyed, Known, Workdir, identities, stage, write_json
from trnflow.tasks.system.devices import cores, device_kind
from trnflow.tasks.system.model_process import model_environ
from trnflow.tasks.system.optional_packages import export_runner
from trnflow.tasks.training.batches.sampler import Split

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from transformers import PreTrainedModel

    from trnflow.tasks.evaluation.forward import Predictions
    from trnflow.tasks.evaluation.generated_rows import Generations
    from trnflow.tasks.export.agreement import ExampleCall

Result = TypeVar("Result")

WORST, LONGEST = 10, 500
"""Predictions that the report shows, and characters of their texts."""

MAJORITY = f"{f1_weighted.name}_majority"
"""The metric of a baseline that predicts the most frequent class."""

SHOWN = 3
"""Generations in the report; generations.jsonl has all."""


class EvaluateConfig(StageConfig):
    """Settings of the stage `evaluate_model`."""

    split: Literal["train", "validation", "test"] = "test"
    """The split to evaluate on. Where the data has no test split, validation is used, and the report says so."""
    device: Literal["cpu", "cuda"] | None = None
    """The device that evaluates. Default: `cuda` where `train.device` is `cuda`, else `cpu`."""
    batch: BatchRows = 32
    """The rows of a forward pass."""
    export_rows: NonNegativeCount | None = None
    """The rows on which the exported model is compared with the trained one. Default: 256, or as many as are estimated to
    take 10 minutes; without the extra `jax` as many as are estimated to take a second, but at least one call of each
    length. 0 skips the comparison."""
    prompts: tuple[str | tuple[dict[str, Any], ...], ...] = ()
    """Further prompts for a language model: texts, or lists of messages (`role`, `content`), which the tokenizer's chat
    template turns into texts."""
    generation: GenerationConfig = GenerationConfig()
    """The texts that a language model generates for the report."""

    def on_device_of(self, training: str) -> EvaluateConfig:
        """Return a copy with `device` filled in. training: `train.device`."""
        follows: Literal["cpu", "cuda"] = "cuda" if training == "cuda" else "cpu"
        return self.model_copy(update={"device": self.device or follows})

    def generates_before(self, task: str) -> bool:
        """Return whether the report shows texts of the model that training started from, if there is one."""
        return task == "causal_lm" and self.generation.before and bool(self.prompts or self.generation.prompts)


def environ(config: EvaluateConfig) -> dict[str, str]:
    """Return the environment of the evaluating process."""
    return model_environ()


def accelerator(config: EvaluateConfig) -> Meta:
    """Return the part `accel` of the key."""
    # the last bits of sums depend on both: else two machines would make different artifacts under one key
    return {"device": device_kind(config.device or "cpu"), "threads": cores()}


def evaluate_inputs(config: EvaluateConfig, inputs: Keyed) -> Meta:
    """Return the table `inputs` of the key, with the weights that training started from if they generate texts."""
    base, start, packed = inputs.get("base"), inputs.get("warm_start"), inputs["packed"]
    assert isinstance(packed, Artifact) and not isinstance(base, Artifact) and not isinstance(start, Source)
    keyed = identities(config, {name: item for name, item in inputs.items() if name not in ("base", "warm_start")})
    weights = _base_weights(base, start)
    return {**keyed, "base": weights} if weights and config.generates_before(packed.meta["task"]) else keyed


def _base_weights(base: Source | None, warm_start: Artifact | Input | None) -> Json:
    """Return the identity of the weights that training started from, or None."""
    return warm_start.digest if warm_start is not None else base and base.identity["weights"]


def needs(config: EvaluateConfig, known: Known) -> Iterator[str]:
    """Yield nothing; raise DataError if the split to evaluate on is missing, MissingDependency if no program runs the
    export."""
    if known.here is not None and known.of("export").get("target") == "stablehlo":
        export_runner()
    chunks = known.of("chunks")
    if "rows" in chunks or "splits" in chunks:
        rows = chunks.get("rows") or {name: {"": 1} for name in chunks["splits"]}
        _split(config, rows)
    yield from ()


@stage(
    kind="evaluation",
    role="evaluation",
    plots=True,
    inputs=evaluate_inputs,
    accel=accelerator,
    environ=environ,
    assets=(TEMPLATE,),
    needs=needs,
)
def evaluate_model(
    config: EvaluateConfig,
    texts: Input,
    packed: Input,
    weights: Input,
    exported: Input | None = None,
    base: Source | None = None,
    warm_start: Input | None = None,
    *,
    out: Workdir,
) -> Meta:
    """Write report.json, report.html, predictions.parquet; the plots, or generations.jsonl.

    Args:
        exported: Compared with `weights`, unless there is none.
        base, warm_start: The model that training started from.

    Returns metadata: task, split, metrics.

    Raises:
        DataError: The split is missing or empty.
        ModelError: The loss is not finite.
    """
    from trnflow.tasks.evaluation.forward import single_row_seconds

    task, name = packed.meta["task"], _split(config, packed.meta["rows"])
    _check_device(config)
    before = []
    if base is not None and _base_weights(base, warm_start) and config.generates_before(task):
        # first, so that one model at a time is in memory
        before = _prompted(config, texts, name, weights).before(base, warm_start, config.device or "cpu", out)
    model = load_model(weights.path, task).to(config.device or "cpu")
    split, rows = Split(packed, name), texts.path / f"{name}.parquet"
    if task == "classification":
        report = _classification(config, packed, name, rows, model, out)
    else:
        from trnflow.tasks.evaluation.generated_rows import write_rows

        report = _language(config, packed, name, rows, weights, model, out)
        made = _prompted(config, texts, name, weights).of(model, out, "generations")
        made = write_rows(made, before, out.path / "generations.jsonl")
        report["metrics"] |= _answered(made)
        report["answered"] = sum(one["answer"] is not None for one in made)
        report["generations"] = made[:SHOWN]
    out.figures(**_latency("", single_row_seconds(model, split)))
    calls = _calls(config, split, exported, model, out)
    del model  # the exported model brings weights of its own
    report["export"], found = _exported(exported, calls, out)
    metrics = report["metrics"] | found
    report |= {"task": task, "split": name, "asked": config.split, "rows": sum(split.rows.values()), "metrics": metrics}
    report |= {"data": lost_rows(texts, packed), "max_length": packed.meta.get("max_length")}
    report["notes"] = _notes(report)
    for note in report["notes"]:
        out.warn(note)
    write_json(out.path / "report.json", report)
    write_page(out.path)
    hidden = {score.name for score in SCORES if score.report_only}
    return {"task": task, "split": name, "metrics": {key: metrics[key] for key in metrics if key not in hidden}}


def _split(config: EvaluateConfig, chunks: Mapping[str, Mapping[str, int]]) -> str:
    """Return the split to evaluate on: the configured one, or validation where test is missing.

    chunks: {split: {length: chunks}}."""
    there = [name for name, counts in chunks.items() if any(counts.values())]
    if config.split in there:
        return config.split
    if config.split == "test" and "validation" in there:
        return "validation"
    raise DataError(
        f"evaluate.split: the data has no rows in its {config.split} split (it has: "
        f"{', '.join(sorted(there)) or 'none'})",
        "let load_data make a test split by ratio, or set evaluate.split to one that is there",
    )


def _check_device(config: EvaluateConfig) -> None:
    import torch

    if config.device == "cuda" and not torch.cuda.is_available():
        raise MissingDependency("evaluate.device=cuda, but PyTorch finds no GPU here", "set evaluate.device=cpu")


def _classification(
    config: EvaluateConfig, packed: Input, split_name: str, texts: Path, model: PreTrainedModel, out: Workdir
) -> Meta:
    """Write predictions.parquet and the plots; return the report's entries, with all metrics."""
    from trnflow.tasks.evaluation import classification, plots
    from trnflow.tasks.evaluation.forward import classify
    from trnflow.tasks.evaluation.predictions import source_rows, write_classes

    labels, split = _labels(packed, model), Split(packed, split_name)
    predictions = _timed(lambda seen: classify(model, split, config.batch, seen), split, out)
    _check_finite(float(predictions.loss.sum()))
    rows = source_rows(packed, split_name)
    write_classes(predictions, labels, rows, texts, out.path / "predictions.parquet")
    metrics = values_of("classification", predictions)
    always = majority(_training_labels(packed, predictions.expected), predictions, len(labels))
    matrix, bins = classification.confusion(predictions, len(labels)), classification.calibration(predictions)
    title = f"accuracy {metrics[accuracy.name]:.3f}, weighted F1 {metrics[f1_weighted.name]:.3f}"
    plots.confusion_matrix(matrix, labels, title, out.path / "confusion_matrix.png")
    plots.calibration(
        bins, f"expected calibration error {classification.calibration_error(bins):.3f}", out.path / "calibration.png"
    )
    metrics[MAJORITY] = always[f1_weighted.name]
    return {
        "metrics": metrics,
        "majority": always,
        "intervals": intervals_of("classification", predictions, matrix),
        "classes": classification.class_report(predictions, labels),
        "confusion": matrix.tolist(),
        "calibration": bins,
        "worst": _worst(predictions, labels, rows, texts),
    }


def _worst(predictions: Predictions, labels: list[str], rows: NDArray[np.int64], texts: Path) -> list[Meta]:
    """Return the wrong predictions with the highest loss, with the beginnings of their texts."""
    from trnflow.tasks.evaluation.classification import worst
    from trnflow.tasks.evaluation.predictions import text_of

    return [
        {
            "row": int(rows[at]),
            "label": labels[predictions.expected[at]],
            "predicted": labels[predictions.predicted[at]],
            "probability": float(predictions.probabilities[at, predictions.predicted[at]]),
            "loss": float(predictions.loss[at]),
            "text": text_of(texts, int(rows[at]))[:LONGEST],
        }
        for at in worst(predictions, WORST)
    ]


def _notes(report: Meta) -> list[str]:
    """Return what a reader of the report should know."""
    notes = []
    if report["split"] != report["asked"]:
        notes.append("there is no test split: evaluated on validation, which training may have watched")
    if report["split"] in report["data"]:
        notes += lost_rows_notes(report["split"], report["data"][report["split"]], report["max_length"])
    if report["task"] == "classification":
        labels, metrics = [entry["label"] for entry in report["classes"]], report["metrics"]
        true, predicted = (
            [label for label, counts in zip(labels, rows, strict=True) if any(counts)]
            for rows in (report["confusion"], zip(*report["confusion"], strict=True))
        )
        if len(true) == 1:
            notes.append(f"all rows of the split have the label {true[0]}: F1, MCC and AUC tell nothing")
        elif len(predicted) == 1:
            notes.append(f"the model predicts {predicted[0]} for every row")
        elif metrics[f1_weighted.name] <= metrics[MAJORITY]:
            notes.append("the model's weighted F1 is no better than that of always predicting the most frequent class")
    return notes


def _language(
    config: EvaluateConfig,
    packed: Input,
    split_name: str,
    texts: Path,
    weights: Input,
    model: PreTrainedModel,
    out: Workdir,
) -> Meta:
    """Write predictions.parquet; return the report's entries, with all metrics."""
    from trnflow.tasks.data.tokenization.tokenizer import read_tokenizer
    from trnflow.tasks.evaluation.forward import token_losses
    from trnflow.tasks.evaluation.predictions import row_losses, write_losses

    split = Split(packed, split_name)
    losses = _timed(lambda seen: token_losses(model, split, config.batch, seen), split, out)
    if not losses.tokens.any():
        raise DataError("the split has no supervised tokens", "check which parts of a row format_prompts trains on")
    _check_finite(losses.loss)
    rows = row_losses(losses, packed, split_name, read_tokenizer(weights.path))
    write_losses(rows, texts, out.path / "predictions.parquet")
    # the total is that of segments: summed by row, the last digit may differ
    sums = RowSums(rows.nll, rows.tokens, rows.bytes, float(losses.nll.sum()))
    return {
        "metrics": values_of("causal_lm", sums),
        "intervals": intervals_of("causal_lm", sums),
        "tokens": int(rows.tokens.sum()),
        "bytes": int(rows.bytes.sum()),
        "cut": int(rows.cut.sum()),
    }


def _prompted(config: EvaluateConfig, texts: Input, split: str, weights: Input) -> Generations:
    """Return the recipe's prompts, then those of the split."""
    from trnflow.tasks.evaluation.generated_rows import Generations
    from trnflow.tasks.evaluation.generation import given_prompts, prompts

    asked = given_prompts(config.prompts, weights.path, texts.meta)
    asked += prompts(texts.path / f"{split}.parquet", config.generation.prompts)
    return Generations(asked, config.generation, weights.path, texts.meta)


def _answered(lines: list[Meta]) -> Meta:
    """Return the metrics of the greedy texts whose prompts have answers."""
    return dict(values_of_texts([(line["generated"], line["answer"]) for line in lines if line["answer"] is not None]))


def _calls(
    config: EvaluateConfig, split: Split, exported: Input | None, model: PreTrainedModel, out: Workdir
) -> list[ExampleCall]:
    """Return the calls to compare the exported model on."""
    if exported is None or exported.meta["target"] != "stablehlo" or config.export_rows == 0:
        return []
    from trnflow.tasks.export.agreement import eager_calls

    report = partial(out.progress, unit="calls of the weights")
    return eager_calls(model.to("cpu"), split, exported, config.export_rows, report)


def _exported(exported: Input | None, calls: list[ExampleCall], out: Workdir) -> tuple[Meta, Meta]:
    """Return (entry of the report, metrics) of the comparison with PyTorch; report how long the export's calls took."""
    target = exported.meta["target"] if exported else "none"
    if exported is None or not calls:
        why = {"stablehlo": "evaluate.export_rows is 0", "none": "there is no export (export.target)"}
        return {"target": target, "note": f"not compared: {why.get(target, 'a Neuron export runs on Neuron only')}"}, {}
    from trnflow.tasks.export.agreement import call_seconds, compare

    begun = time.perf_counter()
    about, metrics = compare(exported, calls, partial(out.progress, unit="calls of the export"))
    out.figures(export_seconds=round(time.perf_counter() - begun, 2))  # compiling included
    if seconds := call_seconds(exported, calls):
        rate = exported.meta["batch"] * len(seconds) / sum(seconds)
        out.figures(**_latency("export_", seconds), export_samples_per_second=round(rate, 1))
    return {"target": target, "lengths": exported.meta["lengths"], **about}, metrics


def _labels(packed: Input, model: PreTrainedModel) -> list[str]:
    """Return the names of the classes by index."""
    labels = packed.meta["labels"] or [model.config.id2label[index] for index in range(model.config.num_labels)]
    return [str(label) for label in labels]


def _training_labels(packed: Input, expected: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the labels of the train split; `expected` without one."""
    import numpy as np

    rows = packed.meta["rows"].get("train", {})
    labels = [open_chunks(packed, "train", int(length))["labels"] for length, count in rows.items() if count]
    return np.concatenate(labels).astype(np.int64) if labels else expected


def _timed(run: Callable[[Callable[[int], None]], Result], split: Split, out: Workdir) -> Result:
    """Call `run` with a progress bar over the split's rows, and report samples per second."""
    rows = sum(split.rows.values())
    start = time.perf_counter()
    result = run(lambda done: out.progress(done, rows))
    out.figures(samples_per_second=round(rows / (time.perf_counter() - start), 1))
    return result


def _latency(prefix: str, seconds: list[float]) -> Meta:
    """Return median and 95th percentile in milliseconds."""
    import numpy as np

    middle, high = (round(1000 * float(value), 2) for value in np.percentile(seconds, [50, 95]))
    return {f"{prefix}latency_p50_ms": middle, f"{prefix}latency_p95_ms": high}


def _check_finite(loss: float) -> None:
    if not math.isfinite(loss):
        raise ModelError(f"the evaluation loss is {loss}", "the weights are broken: look at the training's loss curve")
