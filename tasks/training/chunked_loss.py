"""The loss of a language model in chunks: output layer and cross entropy of some positions at a time.

So the fp32 logits of all positions are never held. Gradients are computed in the forward pass. A loss whose logits fit
into one chunk is computed plainly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.device_kinds import KINDS
from trnflow.tasks.training.model.build import inputs_of
from trnflow.tasks.training.model.lora import unwrapped
from trnflow.tasks.training.shared_types import Built

Score = Callable[[Tensor, Tensor], Tensor]
"""(fp32 logits [positions, vocabulary], targets [positions]) -> what is summed over chunks."""


def chunk_positions(config: TrainConfig, built: Built) -> int:
    """Return how many positions make a chunk; 0 for a model whose loss is not computed in chunks."""
    # of pairs engine xla has no chunks yet
    whole = config.engine == "xla" and built.kind.pairs
    # under tensor parallelism a rank holds a part of the vocabulary
    if whole or config.tensor_parallel_size > 1 or not ends_in_linear(built):
        return 0
    vocabulary, width = unwrapped(built.model.get_output_embeddings()).weight.shape
    # each chunk adds to the weight's whole gradient: with fewer positions that would cost more than their products
    return max(1, int(width) // 4, KINDS[config.device].logits // (4 * int(vocabulary)))


def ends_in_linear(built: Built) -> bool:
    """Return whether the model's logits are the output of a linear layer, unchanged: not scaled, capped or cut.

    Runs the model on "meta" tensors, without computing; False for a model that needs values.
    """
    head: Any = None if built.kind.per_row else built.model.get_output_embeddings()
    linear_head = type(unwrapped(head)) is torch.nn.Linear  # not LoRA's
    if not linear_head:
        return False
    blank = torch.zeros((1, 8), dtype=torch.int32, device="meta")
    output = torch.zeros((), device="meta")
    # by module: torch would not put back what a module that two others share holds, as peft's rows of new tokens
    weights = {
        f"{name}.{leaf}".removeprefix("."): tensor.detach().to("meta")
        for name, module in built.model.named_modules()
        for leaf, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    }
    training, head.forward = built.model.training, lambda hidden: output
    try:
        inputs = inputs_of(built, blank, blank, blank)
        logits = torch.func.functional_call(built.model.eval(), weights, (), inputs, tie_weights=False).logits
        return bool(logits is output)
    except (RuntimeError, IndexError, TypeError):  # RuntimeError: also NotImplementedError
        return False
    finally:
        del head.forward
        built.model.train(training)


def loss_in_chunks(built: Built, columns: Sequence[Tensor], at: Tensor, score: Score, size: int) -> Tensor:
    """Return the sum of `score`, a scalar of logits in the model's dtype, over the positions `at` of the flattened targets.

    columns: Input ids, targets, segment ids and position ids, [rows, length]; perhaps `bounds_of`. size: `chunk_positions`.
    """

    def summed(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
        loss: Tensor = ChunkedLoss.apply(hidden[at], weight, bias, targets[at], score, size)  # type: ignore[no-untyped-call]
        return loss

    return at_head(built, columns, summed)


def scores_in_chunks(built: Built, columns: Sequence[Tensor], at: Tensor, score: Score, size: int) -> Tensor:
    """Return the sum of `score`, a tensor of any shape, over the positions `at`. Computes no gradients."""

    def summed(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
        # an empty chunk gives the zero of the right shape
        parts = torch.split(at, size) if len(at) else (at,)
        scores = [score(linear(hidden[some], weight, bias).float(), targets[some]) for some in parts]
        return torch.stack(scores).sum(0)

    return at_head(built, columns, summed)


def logps_in_chunks(built: Built, columns: Sequence[Tensor], score: Score, size: int) -> Tensor:
    """Return `score` of all positions, a number each: [rows, length]. The backward pass computes the logits again.

    columns: As of `loss_in_chunks`; targets are whatever `score` takes.
    """
    from torch.utils.checkpoint import checkpoint

    def scored(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
        return score(linear(hidden, weight, bias).float(), targets)

    def computed(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
        parts = zip(torch.split(hidden, size), torch.split(targets, size), strict=True)
        chunks = [checkpoint(scored, some, weight, bias, to, use_reentrant=False) for some, to in parts]
        return torch.cat(chunks).view(columns[0].shape)

    return at_head(built, columns, computed)


class ChunkedLoss(torch.autograd.Function):
    """(hidden [positions, width], weight, bias or None, targets [positions], score, size) -> loss."""

    @staticmethod
    def forward(context: Any, hidden: Any, weight: Any, bias: Any, targets: Any, score: Score, size: int) -> Any:
        needs_hidden, *needed = context.needs_input_grad[:3]
        of_hidden = torch.zeros_like(hidden) if needs_hidden else None
        # in fp32 and rounded once, as a product over all positions is
        of_weight, of_bias = (
            torch.zeros_like(tensor, dtype=torch.float32) if need else None
            for tensor, need in zip((weight, bias), needed, strict=True)
        )
        loss = torch.zeros((), device=hidden.device)
        for start in range(0, len(hidden), size):
            some = slice(start, start + size)
            given = hidden[some]
            logits = linear(given, weight, bias).requires_grad_()
            with torch.enable_grad():  # type: ignore[no-untyped-call]
                part = score(logits, targets[some])
            (change,) = torch.autograd.grad(part, logits)
            loss += part.detach()
            del logits, part
            if of_hidden is not None:
                torch.mm(change, weight, out=of_hidden[some])
            if of_weight is not None:
                _add_product(of_weight, change.T, given)
            if of_bias is not None:
                of_bias += change.sum(0)
        context.gradients = [
            None if gradient is None else gradient.to(tensor.dtype)
            for gradient, tensor in zip((of_hidden, of_weight, of_bias), (hidden, weight, bias), strict=True)
        ]
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(context: Any, scale: Any) -> Any:
        gradients = [None if gradient is None else gradient.mul_(scale) for gradient in context.gradients]
        context.gradients = None
        return *gradients, None, None, None


def at_head(built: Built, columns: Sequence[Tensor], compute: Callable[..., Tensor]) -> Tensor:
    """Run the model with `compute(hidden, weight, bias, targets)` in place of its output layer; return its result."""
    ids, targets, *others = columns
    head = built.model.get_output_embeddings()

    # inside the model's forward pass, where FSDP has gathered the weight
    def forward(hidden: Tensor) -> Tensor:
        return compute(hidden.flatten(0, -2), head.weight, getattr(head, "bias", None), targets.flatten())

    kept = vars(head).get("forward")  # engine xla's own
    head.forward = forward
    try:
        result: Tensor = built.model(**inputs_of(built, ids, *others)).logits
        return result
    finally:
        del head.forward
        if kept is not None:
            head.forward = kept


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add the product left @ right to fp32 `total` in place."""
    if total.device.type == "cpu":  # a bf16 product of a few positions takes twice as long there
        total.addmm_(left.float(), right.float())
    else:
        total += left @ right
