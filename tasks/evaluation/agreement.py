"""The exported model against eager PyTorch, on real rows.

In two halves, so that the two copies of the weights need not be in memory at once: `eager` first, then `compare`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from tasks.artifact import Input, Meta
from tasks.errors import ModelError
from tasks.evaluation.forward import plain_inputs
from tasks.stablehlo import load_stablehlo
from tasks.training.batches import Address, Split

if TYPE_CHECKING:
    from torch import Tensor


class Call(NamedTuple):
    """input_ids, attention_mask: int64 [batch, length]; logits: of eager PyTorch."""

    input_ids: Tensor
    attention_mask: Tensor
    logits: Tensor


def eager(model: Any, split: Split, exported: Input, rows: int) -> list[Call]:
    """Calls of the exported shapes, on about `rows` rows of each length and at least one."""
    import torch

    batch, found = exported.meta["batch"], []
    with torch.inference_mode():
        for length in exported.meta["lengths"] if rows else []:
            for input_ids, attention_mask in _inputs(split, length, batch, max(rows // batch, 1)):
                logits = model(input_ids=input_ids, attention_mask=attention_mask).logits
                found.append(Call(input_ids, attention_mask, logits))
    return found


def compare(exported: Input, calls: list[Call]) -> tuple[Meta, Meta]:
    """(for the report, metrics): the largest absolute difference of the logits and the share of equal choices, padding
    left out. ModelError when the exported model makes what is not a number."""
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
    """The first rows as (input_ids, attention_mask) of exactly [batch, length]: those packed to that length where there
    are any, else others, cut or padded; repeated if the split has fewer."""
    import numpy as np
    import torch

    packed = length if length in split.rows else max(split.rows)
    for start in range(0, calls * batch, batch):
        rows = np.arange(start, start + batch) % split.rows[packed]
        whole = plain_inputs(split.read(Address(packed, rows)))
        input_ids, attention_mask = (torch.nn.functional.pad(item, (0, max(length - packed, 0))) for item in whole)
        yield input_ids[:, :length].contiguous(), attention_mask[:, :length].contiguous()
