"""Add the results of an evaluation to a model card, in the hub's form (`model-index`)."""

from __future__ import annotations

from typing import Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.evaluation.scores import SCORES

TASKS = {"classification": "text-classification", "causal_lm": "text-generation"}
HUB_TYPES = {entry.name: entry.hub for entry in SCORES if entry.hub}
"""Metric of an evaluation -> the hub's name of its type."""


def with_results(card: str, name: str, evaluation: Meta) -> str:
    """Return the text of a model card, with the results of an evaluation in its metadata (`model-index`). No file is
    written.

    Only metrics with a type of the hub are added.

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
            metric_type=HUB_TYPES[metric], metric_name=metric, metric_value=value,
        )
        for metric, value in evaluation["metrics"].items()
        if metric in HUB_TYPES
    ]  # fmt: skip
    return str(found)
