"""Forward passes over a split in eager PyTorch: probabilities of classes, or losses of supervised tokens."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from trnflow.tasks.evaluation.columns import ClassPredictions
from trnflow.tasks.evaluation.row_outputs import plain_inputs, whole_batches
from trnflow.tasks.training.batches.sampler import IGNORED, Split
from trnflow.tasks.training.model.build import inputs_of
from trnflow.tasks.training.model.pretrained import first_position
from trnflow.tasks.training.shared_types import Built

if TYPE_CHECKING:
    from trnflow.tasks.system.arrays import Floats, Ints

ReportRows = Callable[[int], None]
"""Called with the number of rows so far."""

LOGITS = 1 << 29
"""The most bytes of a language model's logits in a forward pass (float32), unless one chunk takes more."""

TIMED = 10**12
"""Floating point operations that timing single rows may take: two for each parameter and position."""

SLICE = 256
"""Positions whose losses are computed at once."""


class TokenLosses(NamedTuple):
    """A language model's losses by segment, in the order of chunk length, chunk and segment id. All are [segments].

    nll: float64, in nats; tokens: int64, supervised ones; sizes: int64, all tokens.
    """

    nll: Floats
    tokens: Ints
    sizes: Ints

    @property
    def loss(self) -> float:
        """The mean loss of a supervised token in nats; NaN without one."""
        tokens = int(self.tokens.sum())
        return float(self.nll.sum()) / tokens if tokens else float("nan")


def classify(model: Any, split: Split, batch: int, report: ReportRows) -> ClassPredictions:
    """Predict the class of every row of a split. batch: rows a forward pass."""
    import numpy as np
    import torch

    expected, predicted, probabilities, losses, rows = [], [], [], [], 0
    with torch.inference_mode():
        for part in whole_batches(split, batch):
            targets = torch.from_numpy(part.targets).long().to(model.device)
            logits = model(**plain_inputs(part, model)).logits.float()
            losses.append(torch.nn.functional.cross_entropy(logits, targets, reduction="none").double().cpu().numpy())
            probabilities.append(logits.softmax(-1).cpu().numpy())
            expected.append(part.targets.astype(np.int64))
            predicted.append(logits.argmax(-1).cpu().numpy())
            rows += part.samples
            report(rows)
    return ClassPredictions(*(np.concatenate(column) for column in (expected, predicted, probabilities, losses)))


def token_losses(model: Any, split: Split, batch: int, report: ReportRows) -> TokenLosses:
    """Return a language model's losses for every segment of a split. batch: the most chunks a forward pass."""
    import numpy as np
    import torch

    built = Built(model, "causal_lm", causal=True, first_position=first_position(model), config={})
    losses: list[tuple[Any, Any, Any]] = []
    rows = 0
    with torch.inference_mode():
        for part in whole_batches(split, fitting(model, split, batch)):
            # masks, positions and targets of training: the loss of a packed chunk equals that of its rows one by one
            columns = (part.input_ids, part.segment_ids, part.position_ids)
            tensors = [torch.from_numpy(column).long().to(model.device) for column in columns]
            logits = model(**inputs_of(built, *tensors)).logits
            targets = torch.from_numpy(part.targets).long().to(model.device)
            for chunk, wanted, segments in zip(logits, targets, part.segment_ids, strict=True):
                losses.append(_by_segment(_position_losses(chunk, wanted), wanted.cpu().numpy(), segments))
            rows += part.samples
            report(rows)
    return TokenLosses(*(np.concatenate(column) for column in zip(*losses, strict=True)))


def fitting(model: Any, split: Split, batch: int) -> int:
    """Return the number of chunks of a forward pass, at most `batch`."""
    vocabulary = int(model.config.get_text_config().vocab_size)
    return max(min(batch, LOGITS // (4 * max(split.rows) * vocabulary)), 1)


def _position_losses(logits: Any, targets: Any) -> Any:
    """Return the loss at each position of a chunk, 0 without target: float64 [positions]."""
    import torch

    pairs = zip(logits.split(SLICE), targets.split(SLICE), strict=True)
    losses = [
        torch.nn.functional.cross_entropy(scores.float(), to, ignore_index=IGNORED, reduction="none")
        for scores, to in pairs
    ]
    return torch.cat(losses).double().cpu().numpy()


def _by_segment(losses: Any, targets: Any, segments: Any) -> tuple[Any, Any, Any]:
    """Return (nll, tokens, sizes) of the segments of a chunk."""
    import numpy as np

    most = int(segments.max()) + 1
    supervised = targets != IGNORED
    nll = np.bincount(segments[supervised], weights=losses[supervised], minlength=most)
    return nll[1:], np.bincount(segments[supervised], minlength=most)[1:], np.bincount(segments, minlength=most)[1:]


def single_row_seconds(model: Any, split: Split) -> list[float]:
    """Return the wall-clock seconds of forward passes of one row each, over 3 to 50 rows taken evenly from a split."""
    import torch

    length = max(split.rows)
    count = min(max(TIMED // (2 * model.num_parameters() * length), 3), 50)
    every = max(sum(split.rows.values()) // count, 1)
    addresses = list(islice(split.in_order(1), 0, every * count, every))
    seconds = []
    with torch.inference_mode():
        # the first pass is a warm-up, and not counted
        for address in [addresses[0], *addresses]:
            inputs = plain_inputs(split.read(address), model)
            begun = time.perf_counter()
            model(**inputs).logits.sum().item()  # waits for the device
            seconds.append(time.perf_counter() - begun)
    return seconds[1:]
