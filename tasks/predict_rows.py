"""Run a model over a split: what `evaluate_model` scores, kept under a key of its own.

Costs a forward pass over the split in eager PyTorch, the texts, and the comparison of the export: where jax is
installed one compilation a length, else one a batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.errors import DataError, MissingDependency, ModelError
from trnflow.tasks.evaluation.config import (
    GENERATIONS,
    PredictConfig,
    accelerator,
    base_weights,
    environ,
    predict_inputs,
    split_of,
)
from trnflow.tasks.evaluation.models import load_model
from trnflow.tasks.export.targets import TARGETS
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.stage import Known, Workdir, stage
from trnflow.tasks.training.batches.sampler import Split
from trnflow.tasks.training.devices import check_gpu

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from trnflow.tasks.evaluation.generated_rows import Generations
    from trnflow.tasks.export.agreement import ExampleCall

Result = TypeVar("Result")


def needs(config: PredictConfig, known: Known) -> Iterator[str]:
    """Yield nothing; raise DataError if the split to evaluate on is missing, ModelError if its GPU is, MissingDependency
    if no program runs the export."""
    target = TARGETS.get(str(known.of("export").get("target")))
    if known.here is not None and target is not None and target.runs_here:
        target.check_runner()
    if known.here is not None and config.device == "cuda":
        check_gpu(known.here, "evaluate")
    chunks = known.of("chunks")
    if "rows" in chunks or "splits" in chunks:
        rows = chunks.get("rows") or {name: {"": 1} for name in chunks["splits"]}
        split_of(config, rows)
    yield from ()


@stage(kind="evaluation.shard", inputs=predict_inputs, accel=accelerator, environ=environ, needs=needs)
def predict_rows(
    config: PredictConfig,
    texts: Input,
    packed: Input,
    weights: Input,
    exported: Input | None = None,
    base: Source | None = None,
    warm_start: Input | None = None,
    reference: Input | None = None,
    *,
    out: Workdir,
) -> Meta:
    """Write the columns of `ClassPredictions`, each as a `.npy` file; of a task with targets those of `Outputs`, of a
    language model those of `RowLosses`, or of pairs `Rewards`; of models that write, generations.jsonl.

    exported: compared with `weights`. base, warm_start: the model that training started from. reference: of
    compute_reference, for an objective that compares with it. Returns metadata: task (the model's), split, rows (chunks), the
    model's `temperature`, labels or `total` (nats), export_metrics, and export as in the report. Raises DataError when the split
    is missing or empty, ModelError when the loss is not finite.
    """
    import torch

    from trnflow.tasks.evaluation.forward import single_row_seconds

    task, name = weights.meta["task"], split_of(config, packed.meta["rows"])
    if config.device == "cuda" and not torch.cuda.is_available():
        raise MissingDependency("evaluate.device=cuda, but PyTorch finds no GPU here", "set evaluate.device=cpu")
    before = []
    if base is not None and base_weights(base, warm_start) and config.generates_before(task):
        # first, so that one model at a time is in memory
        before = _prompted(config, texts, name, weights).before(base, warm_start, config.device or "cpu", out)
    model = load_model(weights.path, task).to(config.device or "cpu")
    split = Split(packed, name, reference=reference)
    kind = kind_of(task)
    if kind.one_class:
        found = _classes(config, packed, split, model, out)
    elif kind.reads_targets:
        found = _targets(config, packed, split, weights, model, out)
    elif kind.pairs:
        found = _pairs(config, split, weights, model, out)
    else:
        found = _losses(config, packed, split, name, weights, model, out)
    if not kind.per_row:
        from trnflow.tasks.evaluation.generated_rows import write_rows

        made = _prompted(config, texts, name, weights).of(model, out, "generations")
        write_rows(made, before, out.path / GENERATIONS)
    out.figures(**_latency("", single_row_seconds(model, split)))
    calls = _calls(config, split, exported, model, out)
    del model  # the exported model brings weights of its own
    export, metrics = _exported(exported, calls, out)
    return {
        **found,
        "task": task,
        "split": name,
        "rows": sum(split.rows.values()),
        "temperature": weights.meta.get("temperature"),
        "export": export,
        "export_metrics": metrics,
    }


def _classes(config: PredictConfig, packed: Input, split: Split, model: PreTrainedModel, out: Workdir) -> Meta:
    from trnflow.tasks.evaluation.columns import save_columns
    from trnflow.tasks.evaluation.forward import classify

    labels = packed.meta["labels"] or [model.config.id2label[index] for index in range(model.config.num_labels)]
    predictions = _timed(lambda seen: classify(model, split, config.batch, seen), split, out)
    _check_finite(float(predictions.loss.sum()))
    save_columns(predictions, out.path)
    return {"labels": [str(label) for label in labels]}


def _targets(
    config: PredictConfig, packed: Input, split: Split, weights: Input, model: PreTrainedModel, out: Workdir
) -> Meta:
    from trnflow.tasks.data.format.row_format import decision_of
    from trnflow.tasks.evaluation.columns import save_columns
    from trnflow.tasks.evaluation.row_outputs import row_outputs

    task, decision = packed.meta["task"], decision_of(weights.path)
    found = _timed(lambda seen: row_outputs(model, split, task, config.batch, decision, seen), split, out)
    _check_finite(float(found.loss.sum()))
    save_columns(found, out.path)
    return {"labels": packed.meta["labels"]}


def _losses(
    config: PredictConfig, packed: Input, split: Split, name: str, weights: Input, model: PreTrainedModel, out: Workdir
) -> Meta:
    from trnflow.tasks.data.tokenization.tokenizer import read_tokenizer
    from trnflow.tasks.evaluation.columns import save_columns
    from trnflow.tasks.evaluation.forward import token_losses
    from trnflow.tasks.evaluation.row_losses import row_losses

    losses = _timed(lambda seen: token_losses(model, split, config.batch, seen), split, out)
    if not losses.tokens.any():
        raise DataError("the split has no supervised tokens", "check which parts of a row format_prompts trains on")
    _check_finite(losses.loss)
    save_columns(row_losses(losses, packed, name, read_tokenizer(weights.path)), out.path)
    # the total is that of segments: summed by row, the last digit may differ
    return {"total": float(losses.nll.sum())}


def _pairs(config: PredictConfig, split: Split, weights: Input, model: PreTrainedModel, out: Workdir) -> Meta:
    from trnflow.tasks.evaluation.columns import save_columns
    from trnflow.tasks.evaluation.pair_rewards import pair_rewards

    task, settings = weights.meta["task"], weights.meta["preference"]
    found = _timed(lambda seen: pair_rewards(model, split, task, settings, config.batch, seen), split, out)
    _check_finite(float(found.loss.sum()))
    save_columns(found, out.path)
    return {}


def _prompted(config: PredictConfig, texts: Input, split: str, weights: Input) -> Generations:
    """Return the recipe's prompts, then those of the split."""
    from trnflow.tasks.evaluation.generated_rows import Generations
    from trnflow.tasks.evaluation.generation import given_prompts, prompts

    asked = given_prompts(config.prompts, weights.path, texts.meta)
    asked += prompts(texts.path / f"{split}.parquet", config.generation.prompts)
    return Generations(asked, config.generation, weights.path, texts.meta)


def _calls(
    config: PredictConfig, split: Split, exported: Input | None, model: PreTrainedModel, out: Workdir
) -> list[ExampleCall]:
    if exported is None or not TARGETS[exported.meta["target"]].runs_here or config.export_rows == 0:
        return []
    from trnflow.tasks.export.agreement import eager_calls

    report = partial(out.progress, unit="calls of the weights")
    return eager_calls(model.to("cpu"), split, exported, config.export_rows, report)


def _exported(exported: Input | None, calls: list[ExampleCall], out: Workdir) -> tuple[Meta, Meta]:
    """Return (entry of the report, metrics) of the comparison with PyTorch; report how long the export's calls took."""
    target = exported.meta["target"] if exported else "none"
    if exported is None or not calls:
        why = {
            "neuron": "a Neuron export runs on Neuron only",
            "gguf": "llama.cpp runs a GGUF export",
            "none": "there is no export (export.target)",
        }
        return {"target": target, "note": f"not compared: {why.get(target, 'evaluate.export_rows is 0')}"}, {}
    from trnflow.tasks.export.agreement import call_seconds, compare

    begun = time.perf_counter()
    about, metrics = compare(exported, calls, partial(out.progress, unit="calls of the export"))
    out.figures(export_seconds=round(time.perf_counter() - begun, 2))  # compiling included
    if seconds := call_seconds(exported, calls):
        rate = exported.meta["batch"] * len(seconds) / sum(seconds)
        out.figures(**_latency("export_", seconds), export_samples_per_second=round(rate, 1))
    return {"target": target, "lengths": exported.meta["lengths"], **about}, metrics


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
