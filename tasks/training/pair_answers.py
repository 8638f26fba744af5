"""Compute what a model says of pairs of answers that are packed as documents of its rows, and an objective's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trnflow.tasks.training.batches.sampler import IGNORED
from trnflow.tasks.training.chunked_loss import logps_in_chunks
from trnflow.tasks.training.model.build import logits_of
from trnflow.tasks.training.preference_losses import PREFERENCES, Answers
from trnflow.tasks.training.shared_types import Built

if TYPE_CHECKING:
    from trnflow.tasks.training.config import TrainConfig


def numbers_of(config: TrainConfig, found: Answers, surprise_share: float) -> Tensor:
    """Return the sums over pairs of [loss, *METRICS]; the loss has a gradient.

    surprise_share: `Batch.surprise_share`.
    """
    loss, rewards = PREFERENCES[config.objective].loss(config, found._replace(surprise=found.surprise * surprise_share))
    chosen, rejected = rewards.unbind(-1)
    means, margins = found.means, chosen - rejected
    # in the order of METRICS
    columns = [loss, (margins > 0).float(), margins, (means[..., 0] > means[..., 1]).float(), chosen, rejected]
    return torch.stack([column.where(found.there, column.new_zeros(())).sum() for column in columns])


def answers(
    built: Built, columns: Sequence[Tensor], reference: Tensor, *, whole: bool = False, chunk: int = 0
) -> Answers:
    """Run the model on packed pairs.

    Args:
        columns: As of `loss_in_chunks`, of all positions.
        reference: [rows, documents], as `Batch.reference`.
        whole: Compute `Answers.surprise`.
        chunk: `chunk_positions`.
    """
    ids, targets, segments, *_ = columns
    wanted = _next_ids(ids, segments) if whole else targets
    logps = _logps(built, (ids, wanted, *columns[2:]), chunk)
    numbers = torch.arange(1, reference.shape[1] + 1, device=segments.device, dtype=segments.dtype)
    # products instead of a scatter, whose order of sums varies on cuda
    member = (segments[:, None] == numbers[:, None]).to(logps.dtype)
    answered = (targets != IGNORED).to(logps.dtype)

    def sums(values: Tensor) -> Tensor:
        return _in_pairs((member * values[:, None]).sum(-1))

    tokens, there = sums(answered), sums(torch.ones_like(logps))[..., 1] > 0
    all_tokens = -sums(logps)[..., 0] if whole else tokens.new_zeros(there.shape)
    return Answers(sums(logps * answered), tokens, _in_pairs(reference), there, all_tokens)


def _in_pairs(documents: Tensor) -> Tensor:
    return documents.view(len(documents), -1, 2)


def _next_ids(ids: Tensor, segments: Tensor) -> Tensor:
    """Return each position's next id in its segment, IGNORED for none: int [rows, length]."""
    same = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] != 0)
    return torch.nn.functional.pad(ids[:, 1:].where(same, ids.new_full((), IGNORED)), (0, 1), value=IGNORED)


def _logps(built: Built, columns: Sequence[Tensor], chunk: int) -> Tensor:
    """Return the log-probability of each wanted id, 0 for IGNORED: float32 [rows, length]."""
    ids, wanted, *others = columns
    if 0 < chunk < ids.numel():
        return logps_in_chunks(built, columns, chosen_logps, chunk)
    return chosen_logps(logits_of(built, ids, *others), wanted)


def chosen_logps(logits: Tensor, wanted: Tensor) -> Tensor:
    """Return the log-probability of each wanted id, 0 for IGNORED. logits: [..., vocabulary]; wanted: [...]."""
    flat = torch.nn.functional.cross_entropy(
        logits.flatten(0, -2), wanted.flatten().long(), ignore_index=IGNORED, reduction="none"
    )
    return -flat.view(wanted.shape)
