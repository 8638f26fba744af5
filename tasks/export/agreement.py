"""Compare an exported model with the same model in eager PyTorch, on rows of a split.

The comparison has two steps, so that the two copies of the weights need not be in memory at once: `eager_calls` runs the
PyTorch model, then `compare` runs the exported one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from tasks.artifact import Input, Meta
from tasks.errors import ModelError
from tasks.evaluation.forward import plain_inputs
from tasks.export.stablehlo import load_stablehlo
from tasks.training.batches.sampler import BatchAddress, Split

if TYPE_CHECKING:
    from torch import Tensor


class Call(NamedTuple):
    """The inputs of one call of a model, and the logits that eager PyTorch computed for them.

    input_ids, attention_mask: int64 [batch, length]; logits: float, [batch, labels] (classifier) or [batch, length,
    vocabulary].
    """

    input_ids: Tensor
    attention_mask: Tensor
    logits: Tensor


def eager_calls(model: Any, split: Split, exported: Input, rows: int) -> list[Call]:
    """Call the PyTorch model with rows of a split, in the shapes that the export has graphs for; return inputs and logits.

    exported: the artifact of export_neuron; rows: about how many rows of each length to run, at least one call each; 0 runs
    none.
    """
    import torch

    batch, found = exported.meta["batch"], []
    with torch.inference_mode():
        for length in exported.meta["lengths"] if rows else []:
            for input_ids, attention_mask in _inputs(split, length, batch, max(rows // batch, 1)):
                logits = model(input_ids=input_ids, attention_mask=attention_mask).logits
                found.append(Call(input_ids, attention_mask, logits))
    return found


def compare(exported: Input, calls: list[Call]) -> tuple[Meta, Meta]:
    """Call the exported model with the inputs of `calls` and compare its logits with theirs. Return (what was compared,
    metrics).

    Padding is not compared. The metrics are `export_max_difference`, the largest absolute difference of two logits, and
    `export_agreement`, the share of rows or tokens for which both models predict the same class. ModelError when a logit of
    the exported model is not finite.
    """
    program = load_stablehlo(exported.path)
    worst, agreed, compared = 0.0, 0, 0
    for call in calls:
        ran = program(call.input_ids, call.attention_mask)
        if not ran.isfinite().all():
            raise ModelError("the exported model's logits are not finite", "export again; check the weights' dtype")
        real = call.attention_mask.bool() if ran.ndim == 3 else slice(None)
        worst = max(worst, float((ran[real].float() - call.logits[real].float()).abs().max()))
        same = ran[real].argmax(-1) == call.logits[real].argmax(-1)
        agreed, compared = agreed + int(same.sum()), compared + same.numel()
    metrics = {"export_max_difference": worst, "export_agreement": agreed / compared}
    return {"calls": len(calls), "batch": exported.meta["batch"], "compared": compared}, metrics


def _inputs(split: Split, length: int, batch: int, calls: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the first rows of a split as (input_ids, attention_mask) of shape [batch, length]: rows packed to that length,
    else rows of the greatest length, cut or padded. A split with fewer rows repeats them."""
    import numpy as np
    import torch

    packed = length if length in split.rows else max(split.rows)
    for start in range(0, calls * batch, batch):
        rows = np.arange(start, start + batch) % split.rows[packed]
        whole = plain_inputs(split.read(BatchAddress(packed, rows)))
        input_ids, attention_mask = (torch.nn.functional.pad(item, (0, max(length - packed, 0))) for item in whole)
        yield input_ids[:, :length].contiguous(), attention_mask[:, :length].contiguous()
