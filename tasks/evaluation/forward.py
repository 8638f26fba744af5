"""Forward passes over a split in eager PyTorch: predicted classes, or the loss per supervised token.

A language model gets the same attention masks, position ids and targets as in training, so the loss of a packed chunk
equals the loss of its rows computed one by one. A classifier gets only input ids and attention mask, as a user would call
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from tasks.training.batches.sampler import IGNORED, Batch, Split
from tasks.training.model.build import inputs_of
from tasks.training.model.pretrained import first_position
from tasks.training.shared_types import Built

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

ReportRows = Callable[[int], None]
"""Called with the number of rows done so far."""


class Predictions(NamedTuple):
    """The result of `classify`. expected, predicted: true and predicted classes, int64 [rows]; loss: mean cross entropy of
    a row, in nats."""

    expected: Ints
    predicted: Ints
    loss: float


class TokenLoss(NamedTuple):
    """The mean loss over supervised tokens, in nats, and the number of these tokens."""

    loss: float
    tokens: int


def classify(model: Any, split: Split, batch: int, report: ReportRows) -> Predictions:
    """Predict the class of every row of a split. batch: rows per forward pass; report: called with the number of rows
    done."""
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
            report(rows)
    return Predictions(np.concatenate(expected), np.concatenate(predicted), total / rows)


def token_loss(model: Any, split: Split, batch: int, report: ReportRows) -> TokenLoss:
    """Return the loss of a language model over every chunk of a split. batch: chunks per forward pass; report: called with
    the number of chunks done.

    Losses of tokens are summed in single precision within a chunk and in double precision over chunks.
    """
    import torch

    built = Built(model, "causal_lm", causal=True, first_position=first_position(model), config={})
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
            report(rows)
    return TokenLoss(total / max(tokens, 1), tokens)


def plain_inputs(part: Batch, device: Any = "cpu") -> tuple[Any, Any]:
    """Return (input_ids, attention_mask) of a batch, int64 [rows, length]."""
    import torch

    input_ids = torch.from_numpy(part.input_ids).long()
    return input_ids.to(device), torch.from_numpy(part.segment_ids != 0).long().to(device)


def _batches(split: Split, rows: int) -> Iterator[Batch]:
    """Yield the batches of a split in order, without the rows that only fill up the last batch to a static shape."""
    for address in split.in_order(rows):
        yield split.read(address._replace(rows=address.rows[address.rows >= 0]))
