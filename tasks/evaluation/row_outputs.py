"""Batches of a split for a text classifier, and what one with targets in columns (`TargetKind`) gives for each row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.kinds.targets import Outputs, TargetKind, joined
from trnflow.tasks.training.batches.sampler import Batch, Split


def row_outputs(
    model: Any, split: Split, task: str, batch: int, decision: Meta, report: Callable[[int], None]
) -> Outputs:
    """Run a model on every row of a split, `batch` rows a forward pass. decision: from its `trnflow.json`."""
    import torch

    kind = kind_of(task)
    assert isinstance(kind, TargetKind)
    parts: list[Outputs] = []
    rows = 0
    with torch.inference_mode():
        for part in whole_batches(split, batch):
            input_ids, attention_mask = plain_inputs(part, model.device)
            logits = model(input_ids=input_ids, attention_mask=attention_mask).logits.float()
            parts.append(kind.outputs(logits, torch.from_numpy(part.targets).to(model.device)))
            rows += part.samples
            report(rows)
    found = joined(parts)
    return found._replace(decided=kind.decided(found.decided, decision))


def plain_inputs(part: Batch, device: Any = "cpu") -> tuple[Any, Any]:
    """Return (input_ids, attention_mask) of a batch, int64 [rows, length] on `device`."""
    import torch

    input_ids = torch.from_numpy(part.input_ids).long()
    return input_ids.to(device), torch.from_numpy(part.segment_ids != 0).long().to(device)


def whole_batches(split: Split, rows: int) -> Iterator[Batch]:
    """Yield the batches of a split in order, without rows that only fill up the last one."""
    for address in split.in_order(rows):
        yield split.read(address._replace(rows=address.rows[address.rows >= 0]))
