"""Add the results of an evaluation to a model card, in the hub's form (`model-index`)."""

from __future__ import annotations

from typing import Any

from trnflow.tasks.artifact import Meta

TASKS = {"classification": "text-classification", "causal_lm": "text-generation"}
METRICS = {
    "accuracy": "accuracy",
    "f1_weighted": "f1",
    "f1_macro": "f1",
    "loss": "loss",
    "perplexity": "perplexity",
    "bits_per_byte": "bits_per_byte",
}
"""Metric of an evaluation -> the hub's name of its type."""


def with_results(card: str, name: str, evaluation: Meta) -> str:
    """Return the text of a model card, with the results of an evaluation in its metadata (`model-index`). No file is
    written.

    Only these metrics are added: accuracy, f1_weighted, f1_macro, loss, perplexity and bits_per_byte.

    Args:
        card: The card's text, with or without metadata.
        name: The name under which the model is published.
        evaluation: Metadata of the artifact that the stage `evaluate_model` made: task, split, metrics.
    """
    from huggingface_hub import EvalResult, ModelCard

    found: Any = ModelCard(card)
    data = (found.data.to_dict().get("datasets") or ["custom"])[0]
    found.data.model_name = name
    found.data.eval_results = [
        EvalResult(
            task_type=TASKS[evaluation["task"]], dataset_type=data, dataset_name=data, dataset_split=evaluation["split"],
            metric_type=METRICS[metric], metric_name=metric, metric_value=value,
        )
        for metric, value in evaluation["metrics"].items()
        if metric in METRICS
    ]  # fmt: skip
    return str(found)
