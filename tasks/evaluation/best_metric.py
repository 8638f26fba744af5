"""Measure a built-in `train.best_metric` in training, as evaluate_model measures it on the same weights and split."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import Input, Source
from trnflow.tasks.evaluation.columns import ClassPredictions
from trnflow.tasks.evaluation.metrics.row_sums import RowSums
from trnflow.tasks.kinds.kind import Kind
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.kinds.targets import TargetKind

if TYPE_CHECKING:
    from trnflow.tasks.training.selection import Validated

SPLIT = "validation"


def measure(metric: Source, *, packed: Input, **unused: Any) -> Callable[[Validated], float | None]:
    """Return what computes a metric of an evaluation. metric: a `chosen_source`, whose `function` is "module:name"."""
    kind, name = kind_of(packed.meta["task"]), metric.location["name"]
    if isinstance(kind, TargetKind):
        return lambda seen: kind.values(predictions_of(kind, seen)).get(name)
    module, _, attribute = metric.location["function"].partition(":")
    function: Callable[[Any], float | None] = getattr(import_module(module), attribute)
    if kind.per_row:
        return lambda seen: function(predictions_of(kind, seen))
    spelled = _spelled(packed) if name == "bits_per_byte" else 0
    return lambda seen: function(_sums(seen, spelled))


def predictions_of(kind: Kind, seen: Validated) -> Any:
    """Return `ClassPredictions`, or of a task with targets in columns `Outputs`, with what the task chooses on validation."""
    import numpy as np
    import torch

    logits, targets = torch.from_numpy(seen.logits), torch.from_numpy(seen.expected)
    if isinstance(kind, TargetKind):
        outputs = kind.outputs(logits, targets)
        # consolidate chooses the same of the same weights, before evaluate_model decides
        return outputs._replace(decided=kind.decided(outputs.decided, kind.decide(outputs)))
    # the operations and dtypes of evaluate_model's forward pass
    loss = torch.nn.functional.cross_entropy(logits, targets.long(), reduction="none").double().numpy()
    return ClassPredictions(seen.expected.astype(np.int64), logits.argmax(-1).numpy(), logits.softmax(-1).numpy(), loss)


def _sums(seen: Validated, spelled: int) -> RowSums:
    import numpy as np

    return RowSums(np.array([seen.loss]), np.array([seen.targets]), np.array([spelled]), seen.loss)


def _spelled(packed: Input) -> int:
    """Return the UTF-8 bytes of the supervised tokens of the validation split."""
    from trnflow.tasks.data.tokenization.tokenizer import read_tokenizer
    from trnflow.tasks.evaluation.row_losses import spelled_bytes

    return sum(spelled_bytes(packed, SPLIT, read_tokenizer(packed.path / "tokenizer")))
