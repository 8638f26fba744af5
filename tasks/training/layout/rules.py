"""Tensor parallel plans for models without a `tp_plan`: {module pattern: style}. Of each pair of layers the first is
split by columns, the second by rows, so that only its result is summed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trnflow.tasks.errors import ModelError
from trnflow.tasks.training.model.lora import adapted_rules, base_layer
from trnflow.tasks.training.partition_specs import Shape, covers


def _as_bert(base: str) -> dict[str, str]:
    layer = f"{base}.encoder.layer.*"
    return {
        f"{base}.embeddings.word_embeddings": "embedding_rowwise",
        f"{layer}.attention.self.query": "colwise",
        f"{layer}.attention.self.key": "colwise",
        f"{layer}.attention.self.value": "colwise",
        f"{layer}.attention.output.dense": "rowwise",
        f"{layer}.intermediate.dense": "colwise",
        f"{layer}.output.dense": "rowwise",
    }


DISTILBERT = {
    "distilbert.embeddings.word_embeddings": "embedding_rowwise",
    "distilbert.transformer.layer.*.attention.q_lin": "colwise",
    "distilbert.transformer.layer.*.attention.k_lin": "colwise",
    "distilbert.transformer.layer.*.attention.v_lin": "colwise",
    "distilbert.transformer.layer.*.attention.out_lin": "rowwise",
    "distilbert.transformer.layer.*.ffn.lin1": "colwise",
    "distilbert.transformer.layer.*.ffn.lin2": "rowwise",
}

RULES: dict[str, dict[str, str]] = {"bert": _as_bert("bert"), "roberta": _as_bert("roberta"), "distilbert": DISTILBERT}
"""{model_type: its tensor parallel plan}."""


def tp_rules(model: Any, shapes: Mapping[str, Shape], given: Mapping[str, str]) -> dict[str, str]:
    """Return a model's plan: `given` (train.tensor_parallel_rules), else its `tp_plan`, else RULES, with LoRA's layers;
    {} if none is known.

    Raises ModelError when a pattern of `given` or RULES matches no layer; a `tp_plan` may list what this model lacks.
    """
    own = dict(getattr(model, "tp_plan", None) or {})
    if own and not given:
        return adapted_rules(own)
    rules = dict(given) or RULES.get(model.config.model_type, {})
    modules = {base_layer(name.rpartition(".")[0]) for name in shapes}
    for pattern in rules:
        if not any(covers(pattern, module) for module in modules):
            where = "train.tensor_parallel_rules" if given else "the rules of tasks/training/layout/rules.py"
            raise ModelError(
                f"{where}: {pattern} names no layer with weights of {type(model).__name__}",
                f"name layers as the model does, such as {max(modules, key=len)} (* stands for a number)",
            )
    return adapted_rules(rules)
