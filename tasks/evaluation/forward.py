"""A split through a model in eager PyTorch, in order: class predictions, or the loss of each supervised token.

Masks, positions and targets of language models are those of training (tasks.training), so that a packed chunk loses
exactly what its rows lose one by one. Classification uses the plain call that a user makes: ids and attention mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from tasks.training.batches import IGNORED, Batch, Split
from tasks.training.model import Built, inputs_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

Seen = Callable[[int], None]


class Predictions(NamedTuple):
    """expected, predicted: int64 [rows]; loss: mean cross entropy of a row."""

    expected: Ints
    predicted: Ints
    loss: float


class TokenLoss(NamedTuple):
    """loss: mean over supervised tokens, in nats; tokens: how many these are."""

    loss: float
    tokens: int


def classify(model: Any, split: Split, batch: int, seen: Seen) -> Predictions:
    """Every row once, `batch` at a time; `seen` is told how many rows are done."""
    import numpy as np
    import torch

    expected, predicted, total, rows = [], [], 0.0, 0
    with torch.inference_mode():
        for part in _batches(split, batch):
            input_ids, attention_mask = plain_inputs(part, model.device)
            targets = torch.from_numpy(part.targets).long().to(model.device)
            logits = model(input_ids=input_ids, attention_mask=attention_mask).logits.float()
            total += float(torch.nn.functional.cross_entropy(logits, targets, reduction="sum"))
            expected.append(part.targets.astype(np.int64))
            predicted.append(logits.argmax(-1).cpu().numpy())
            rows += part.samples
            seen(rows)
    return Predictions(np.concatenate(expected), np.concatenate(predicted), total / rows)


def token_loss(model: Any, split: Split, batch: int, seen: Seen) -> TokenLoss:
    """Every chunk once. Sums run in double precision over chunks, whose own sums are single."""
    import torch

    built = Built(model, "causal_lm", causal=True, first_position=0, config={})
    total, tokens, rows = 0.0, 0, 0
    with torch.inference_mode():
        for part in _batches(split, batch):
            columns = (part.input_ids, part.segment_ids, part.position_ids)
            tensors = [torch.from_numpy(column).long().to(model.device) for column in columns]
            logits = model(**inputs_of(built, *tensors)).logits
            targets = torch.from_numpy(part.targets).long().to(model.device)
            for chunk, wanted in zip(logits, targets, strict=True):
                loss = torch.nn.functional.cross_entropy(chunk.float(), wanted, ignore_index=IGNORED, reduction="sum")
                total += float(loss)
            tokens += part.supervised
            rows += part.samples
            seen(rows)
    return TokenLoss(total / max(tokens, 1), tokens)


def plain_inputs(part: Batch, device: Any = "cpu") -> tuple[Any, Any]:
    """(input_ids, attention_mask), int64 [rows, length]."""
    import torch

    input_ids = torch.from_numpy(part.input_ids).long()
    return input_ids.to(device), torch.from_numpy(part.segment_ids != 0).long().to(device)


def _batches(split: Split, rows: int) -> Iterator[Batch]:
    """The split in order, without the masked rows that fill up a last batch for the accelerators' sake."""
    for address in split.in_order(rows):
        yield split.read(address._replace(rows=address.rows[address.rows >= 0]))
