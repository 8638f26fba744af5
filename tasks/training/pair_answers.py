"""Compute what a model says of pairs of answers that are packed as documents of its rows, and an objective's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trnflow.tasks.training.batches.sampler import IGNORED
from trnflow.tasks.training.chunked_loss import logps_in_chunks
from trnflow.tasks.training.model.build import logits_of
from trnflow.tasks.training.preference_losses import PREFERENCES, Answers, metrics_of
from trnflow.tasks.training.shared_types import Built

if TYPE_CHECKING:
    from trnflow.tasks.training.config import TrainConfig


def numbers_of(config: TrainConfig, found: Answers, surprise_share: float | Tensor, kl: Tensor | float = 0.0) -> Tensor:
    """Return the sums over pairs of the loss, which has a gradient, and of each metric, in the order of `metrics_of`.

    surprise_share: `Batch.surprise_share`, perhaps on the device; kl: what to add to `Answers.kl`.
    """
    found = found._replace(surprise=found.surprise * surprise_share, kl=found.kl + kl)
    entry = PREFERENCES[config.objective]
    loss, rewards = entry.loss(config, found)
    chosen, rejected = rewards.unbind(-1)
    means, margins = found.means, chosen - rejected
    likelier = means[..., 0] * found.marks if entry.marked else (means[..., 0] > means[..., 1]).float()
    # of marked answers a batch holds one text of each pair: either the KL is known, or this is what it is made of
    gain = found.kl + (found.logps - found.reference)[..., 1]
    # in the order of the tasks, of whose metrics others have some
    values = [(margins > 0).float(), margins, likelier, chosen, rejected, gain]
    named = dict(zip(metrics_of(config.objective if entry.marked else "dpo"), values, strict=False))
    columns = [loss, *(named[name] for name in metrics_of(config.objective))]
    return torch.stack([column.where(found.there, column.new_zeros(())).sum() for column in columns])


def answers(
    built: Built,
    columns: Sequence[Tensor],
    reference: Tensor,
    marks: Tensor | None = None,
    *,
    whole: bool = False,
    chunk: int = 0,
) -> Answers:
    """Run the model on packed pairs, and return what it says of each answer.

    Args:
        columns: As of `loss_in_chunks`, of all positions.
        reference: As of `Batch`.
        marks: As of `Batch`; None for pairs, of which the first is preferred.
        whole: Also compute `Answers.surprise`.
        chunk: Positions whose logits are held at once (`chunk_positions`); 0 for all.
    """
    ids, targets, segments, *_ = columns
    numbers = torch.arange(1, reference.shape[1] + 1, device=segments.device, dtype=segments.dtype)
    is_member = segments[:, None] == numbers[:, None]
    if built.kind.per_row:
        return _rewarded(built, columns, is_member)
    wanted = _next_ids(ids, segments) if whole else targets
    logps = _logps(built, (ids, wanted, *columns[2:]), chunk)
    # products instead of a scatter, whose order of sums varies on cuda
    member = is_member.to(logps.dtype)
    answered = (targets != IGNORED).to(logps.dtype)

    def sums(values: Tensor) -> Tensor:
        return _in_pairs((member * values[:, None]).sum(-1))

    tokens, there = sums(answered), sums(torch.ones_like(logps)).sum(-1) > 0
    none = tokens.new_zeros(there.shape)
    all_tokens = -sums(logps)[..., 0] if whole else none
    marks = none if marks is None else marks
    return Answers(sums(logps * answered), tokens, _in_pairs(reference), there, all_tokens, marks, none)


def _rewarded(built: Built, columns: Sequence[Tensor], is_member: Tensor) -> Answers:
    """Return the outputs of a model with the head `score`. is_member: bool [rows, documents, length]."""
    ids, _, *others = columns
    order = torch.arange(ids.shape[1], device=ids.device)
    # as transformers: at the last token of a text that is no padding, even if that is also what ends texts
    read = is_member & (ids != built.model.config.get_text_config().pad_token_id)[:, None]
    last = (read * order).argmax(-1)
    picks = (order == last[..., None]).float()
    head = built.model.score
    kept, plain = vars(head).get("forward"), head.forward  # engine xla has its own

    # the model picks one position of a row: each holds the rewards of all documents
    def forward(hidden: Tensor) -> Tensor:
        rewards: Tensor = (picks @ plain(hidden).float()).squeeze(-1)
        return rewards[:, None].expand(-1, ids.shape[1], -1)

    head.forward = forward
    try:
        rewards = _in_pairs(logits_of(built, ids, *others))
    finally:
        del head.forward
        if kept is not None:
            head.forward = kept
    there, none = _in_pairs(is_member.any(-1))[..., 1], torch.zeros_like(rewards[..., 0])
    return Answers(rewards, torch.ones_like(rewards), torch.zeros_like(rewards), there, none, none, none)


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
