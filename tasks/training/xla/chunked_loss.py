"""The loss of a language model in chunks, as `trnflow.tasks.training.chunked_loss`, in a traced graph.

All positions are computed, supervised or not, so that one graph serves every batch. The chunks are written out, since AWS
lists no loop among Trainium's operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from trnflow.tasks.training.chunked_loss import Score, at_head
from trnflow.tasks.training.shared_types import Built
from trnflow.tasks.training.xla.gspmd import WHOLE_ROWS, Mark

Split = Callable[[Tensor], Tensor]
"""[positions, ...] -> [shares, positions of a share, ...]; a share is what one device of this process computes."""


def by_shares(shares: int, mark: Mark) -> Split:
    return lambda flat: mark(flat.reshape(shares, -1, *flat.shape[1:]).clone(), WHOLE_ROWS[: flat.dim() + 1])


def loss_in_chunks(built: Built, columns: Sequence[Tensor], split: Split, score: Score, size: int) -> Tensor:
    """Return the sum of `score`, a scalar of logits in the model's dtype, over all positions.

    columns: Input ids, targets, segment ids and position ids, [rows, length]. size: A share's positions in a chunk.
    """
    head = vars(built.model.get_output_embeddings())

    def summed(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
        leaves = [head.get(f"{name}_apart") for name in ("weight", "bias")]
        given = (split(hidden), weight, bias, *leaves, split(targets), score, size)
        loss: Tensor = ChunkedLoss.apply(*given)  # type: ignore[no-untyped-call]
        return loss

    return at_head(built, columns, summed)


def scores_in_chunks(built: Built, columns: Sequence[Tensor], split: Split, score: Score, size: int) -> Tensor:
    """Return the sum of `score`, a vector of fp32 logits, over all positions. Computes no gradients."""

    def summed(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
        scores = list[Tensor]()
        for chunk in zip(*(torch.split(split(one), size, 1) for one in (hidden, targets)), strict=True):
            given, to = _after([scores[-1].sum()] if scores else [], *chunk)
            scores.append(score(_logits(given, weight, bias).float().flatten(0, 1), to.flatten()))
        return torch.stack(scores).sum(0)

    return at_head(built, columns, summed)


class ChunkedLoss(torch.autograd.Function):
    """(hidden [shares, positions, width], weight, bias or None, the leaf of each or None, targets [shares, positions],
    score, size) -> loss.

    A leaf, [shares, ...], gets its parameter's gradient by share (`GradientLeaves`).
    """

    @staticmethod
    def forward(context: Any, hidden: Any, *others: Any) -> Any:
        weight, bias, *leaves, targets, score, size = others
        needs = context.needs_input_grad
        below, of_weight, of_bias = list[Tensor](), None, None
        loss, results = torch.zeros((), device=hidden.device), list[Tensor]()
        for chunk in zip(hidden.split(size, 1), targets.split(size, 1), strict=True):
            given, to = _after(results, *chunk)
            logits = _logits(given, weight, bias).requires_grad_()
            with torch.enable_grad():  # type: ignore[no-untyped-call]
                part = score(logits.flatten(0, 1), to.flatten())
            (change,) = torch.autograd.grad(part, logits)
            loss = loss + part.detach()
            results = [loss]
            if needs[0]:
                below.append(torch.einsum("spo,oi->spi", change, weight))
                results.append(below[-1])
            if needs[1] or needs[3]:
                of_weight = _plus(of_weight, torch.einsum("spo,spi->soi", change, given))
                results.append(of_weight)
            if needs[2] or needs[4]:
                of_bias = _plus(of_bias, change.sum(1))
        sums = [(of_weight, weight, leaves[0]), (of_bias, bias, leaves[1])]
        context.gradients = [
            torch.cat(below, 1) if below else None,
            *(None if total is None or leaf is not None else total.sum(0).to(to.dtype) for total, to, leaf in sums),
            *(None if total is None or leaf is None else total.to(leaf.dtype) for total, _, leaf in sums),
        ]
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(context: Any, scale: Any) -> Any:
        gradients = [None if gradient is None else gradient * scale for gradient in context.gradients]
        context.gradients = None
        return *gradients, None, None, None


def _after(results: Sequence[Tensor], given: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return a chunk's hidden states and targets, which XLA can compute with only after the `results`, scalars or matrices by
    share."""
    # else XLA computes parts of all chunks before it frees any. It drops barriers before it orders operations, but not zero
    # times a number; one that is not finite is in the loss or in a gradient already, and its update is refused
    for result in results:
        zero = 0 * (result[:, :1, :1] if result.dim() else result.reshape(1, 1, 1)).float()
        given, targets = given + zero.to(given.dtype), targets + zero[..., 0].to(targets.dtype)
    return given, targets


def _logits(given: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    logits = torch.einsum("spi,oi->spo", given, weight)
    return logits if bias is None else logits + bias


def _plus(total: Tensor | None, product: Tensor) -> Tensor:
    return product.float() if total is None else total + product
