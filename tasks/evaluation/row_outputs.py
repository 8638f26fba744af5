"""Batches of a split for a text classifier, and what one with targets in columns (`TargetKind`) gives for each row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.evaluation.models import input_names
from trnflow.tasks.kinds.kind import Kind
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.kinds.targets import Outputs, TargetKind, joined
from trnflow.tasks.training.batches.sampler import Batch, Split

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trnflow.tasks.system.arrays import Ints


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
            logits = torch.cat(
                [model(**plain_inputs(text, model)).logits for text in texts_apart(part, kind)], -1
            ).float()
            parts.append(kind.outputs(logits, torch.from_numpy(part.targets).to(model.device)))
            rows += part.samples
            report(rows)
    found = joined(parts)
    return found._replace(decided=kind.decided(found.decided, decision))


def some_logits(model: Any, split: Split, batch: int, most: int) -> tuple[NDArray[np.float32], Ints]:
    """Return logits [rows, classes] and classes [rows] of a split, of more than about `most` rows of batches taken evenly."""
    import numpy as np
    import torch

    parts = [*split.in_order(batch)]
    logits, expected = [], []
    with torch.inference_mode():
        for address in parts[:: -(-len(parts) * batch // max(most, batch))]:
            part = split.read(address._replace(rows=address.rows[address.rows >= 0]))
            logits.append(model(**plain_inputs(part, model)).logits.float().cpu().numpy())
            expected.append(part.targets.astype(np.int64))
    return np.concatenate(logits), np.concatenate(expected)


def plain_inputs(part: Batch, model: Any) -> dict[str, Any]:
    """Return a batch as the model's arguments, int64 [rows, length] on its device."""
    import torch

    segments = torch.from_numpy(part.segment_ids).long()
    columns = (torch.from_numpy(part.input_ids).long(), (segments != 0).long(), (segments - 1).clamp(min=0))
    return {name: column.to(model.device) for name, column in zip(input_names(model), columns, strict=False)}


def texts_apart(part: Batch, kind: Kind) -> Iterator[Batch]:
    """Yield a batch as it is, or of texts that are read apart a batch of each text."""
    import numpy as np

    for text in range(1, int(part.segment_ids.max()) + 1) if kind.apart else ():
        here = part.segment_ids == text
        sizes = here.sum(1)
        ids = np.zeros((len(here), sizes.max()), np.int32)
        real = np.arange(sizes.max()) < sizes[:, None]
        ids[real] = part.input_ids[here]
        yield replace(part, input_ids=ids, segment_ids=real.astype(np.int32))
    if not kind.apart:
        yield part


def whole_batches(split: Split, rows: int) -> Iterator[Batch]:
    """Yield the batches of a split in order, without rows that only fill up the last one."""
    for address in split.in_order(rows):
        yield split.read(address._replace(rows=address.rows[address.rows >= 0]))
