"""Add an evaluation to a model card, in the hub's form (`model-index`)."""

from __future__ import annotations

from typing import Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.evaluation.scores import SCORES

TASKS = {"classification": "text-classification", "causal_lm": "text-generation"}
HUB_TYPES = {entry.name: entry.hub for entry in SCORES if entry.hub}
"""{metric: the hub's name of its type}"""


def with_results(card: str, name: str, evaluation: Meta) -> str:
    """Return the text of a model card with an evaluation's results, of metrics that have a type of the hub.

    name: under which the model is published; evaluation: metadata of `evaluate_model`.
    """
    from huggingface_hub import EvalResult, ModelCard

    model_card: Any = ModelCard(card)
    data = (model_card.data.to_dict().get("datasets") or ["custom"])[0]
    model_card.data.model_name = name
    model_card.data.eval_results = [
        EvalResult(
            task_type=TASKS[evaluation["task"]], dataset_type=data, dataset_name=data, dataset_split=evaluation["split"],
            metric_type=HUB_TYPES[metric], metric_name=metric, metric_value=value,
        )
        for metric, value in evaluation["metrics"].items()
        if metric in HUB_TYPES
    ]  # fmt: skip
    return str(model_card)
