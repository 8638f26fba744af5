"""Engine `native`: one process, one device (cpu or cuda), eager PyTorch or torch.compile.

Repeats are bitwise equal on the CPU with the same number of threads. On cuda deterministic kernels are asked for; that was
not run. The fused AdamW clips, gates and updates in one pass over the parameters. With `compile`, forward pass and loss are
one graph, so that the logits in fp32 are never written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tasks.artifact import Meta
from tasks.training.batches import Batch
from tasks.training.config import TrainConfig
from tasks.training.engine import Box
from tasks.training.inventory import Ledger
from tasks.training.model import Built, checkpointed_layers, correct, logits_of, loss_sum
from tasks.training.names import FIRST, PARAMETER, SECOND
from tasks.training.optim import INFINITE_NORM, Scalars, decays

if TYPE_CHECKING:
    from torch import Tensor

    from tasks.training.checkpoint import Reader

LENGTHS = 64  # more graphs than this are no buckets


class NativeEngine:
    """See `tasks.training.engine.Engine`."""

    def __init__(self, config: TrainConfig, built: Built, ledger: Ledger, stored: Reader | None) -> None:
        import torch

        self._config, self._built, self._ledger = config, built, ledger
        self._tracing = next(built.model.parameters()).is_meta
        self._device = torch.device(config.device)
        self._loss, self._scores = _loss, _scores
        if self._tracing:
            return
        _settle(config)
        built.model.to(self._device).train()
        named = built.parameters()
        self._names = list(named)
        self._parameters: list[Tensor] = list(named.values())
        with torch.no_grad():
            for name, parameter in named.items():
                if stored:
                    parameter.copy_(stored.tensor(PARAMETER + name))
            self._masters = self._parameters
            if config.dtype == "bfloat16":
                self._masters = [parameter.detach().clone() for parameter in self._parameters]
                for one in self._parameters:  # not the buffers: rotary frequencies need fp32
                    one.data = one.data.to(torch.bfloat16)
            self._first = [self._moment(FIRST + name, p, stored) for name, p in named.items()]
            self._second = [self._moment(SECOND + name, p, stored) for name, p in named.items()]
        if config.remat:
            _recompute(built.model)
        if config.compile:
            self._loss, self._scores = _compiled(_loss), _compiled(_scores)

    def train(self, batch: Batch, at: Scalars, seed: int) -> Tensor | None:
        import torch

        self._meet("train", batch)
        if self._tracing:
            return None
        torch.manual_seed(seed)
        loss = torch.zeros((), device=self._device)
        for micro in batch.micros(self._config.micro_rows):
            part = self._loss(self._built, *self._columns(micro)) * at.scale
            part.backward()  # type: ignore[no-untyped-call]
            loss += part.detach()
        return self._update(loss, at)

    def evaluate(self, batch: Batch) -> Tensor | None:
        import torch

        self._meet("eval", batch)
        if self._tracing:
            return None
        self._built.model.eval()
        with torch.no_grad():
            result = self._scores(self._built, *self._columns(batch))
        self._built.model.train()
        return result

    def fetch(self, handles: Sequence[Tensor]) -> list[list[float]]:
        import torch

        values: list[list[float]] = torch.stack(list(handles)).tolist() if handles else []
        return values

    def boxes(self, *, state: bool) -> Iterator[Box]:
        kinds: list[tuple[str, list[Tensor]]] = [
            (PARAMETER, self._masters),
            (FIRST, self._first),
            (SECOND, self._second),
        ]
        for prefix, tensors in kinds if state else kinds[:1]:
            for name, tensor in zip(self._names, tensors, strict=True):
                shape = tuple(tensor.shape)
                yield Box(prefix + name, 0, (0,) * len(shape), shape, tensor.detach().cpu())

    def peak_memory(self) -> int | None:
        import torch

        return torch.cuda.max_memory_allocated() if self._device.type == "cuda" else None

    def _moment(self, name: str, like: Tensor, stored: Reader | None) -> Tensor:
        import torch

        if stored:
            return stored.tensor(name).to(self._device)
        return torch.zeros(like.shape, device=self._device)

    def _columns(self, batch: Batch) -> list[Tensor]:
        import torch

        columns = (batch.input_ids, batch.targets, batch.segment_ids, batch.position_ids)
        return [torch.from_numpy(column).to(self._device, non_blocking=True) for column in columns]

    def _update(self, loss: Tensor, at: Scalars) -> Tensor:
        """Clip, gate and apply: the kernel divides gradients by `ratio`, and does nothing where `bad` is 1."""
        import torch

        with torch.no_grad():
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
            if self._masters is not self._parameters:
                gradients = [gradient.float() for gradient in gradients]
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
            good = torch.isfinite(norm) & torch.isfinite(loss)
            ratio = (
                ((norm + 1e-6) / at.max_norm).clamp(min=1.0) if at.max_norm < INFINITE_NORM else torch.ones_like(norm)
            )
            for wanted in (True, False):
                self._apply(
                    [i for i, p in enumerate(self._masters) if decays(tuple(p.shape)) is wanted],
                    gradients,
                    ratio,
                    good,
                    at,
                )
            if self._masters is not self._parameters:
                torch._foreach_copy_(self._parameters, self._masters)
            for parameter in self._parameters:
                parameter.grad = None
            return torch.stack([loss, norm, good.float()])

    def _apply(self, which: list[int], gradients: list[Tensor], ratio: Tensor, good: Tensor, at: Scalars) -> None:
        import torch

        if not which:
            return
        decayed = decays(tuple(self._masters[which[0]].shape))
        step = torch.full((), at.t, dtype=torch.float32, device=self._device)  # filled there: a copy would wait
        picked = ([tensors[i] for i in which] for tensors in (self._masters, gradients, self._first, self._second))
        torch._fused_adamw_(  # type: ignore[call-overload]
            *picked,
            [],
            [step] * len(which),
            lr=at.lr,
            beta1=at.beta1,
            beta2=at.beta2,
            weight_decay=at.weight_decay if decayed else 0.0,
            eps=at.eps,
            amsgrad=False,
            maximize=False,
            grad_scale=ratio,
            found_inf=(~good).float(),
        )

    def _meet(self, name: str, batch: Batch) -> None:
        if (name, batch.length) in self._ledger.met:
            return
        inputs = [{"shape": list(c.shape), "dtype": "int32"} for c in (batch.input_ids, batch.targets)]
        self._ledger.meet(name, batch.length, _signature(name, inputs, self._config, self._built), inputs)


def _signature(name: str, inputs: list[Meta], config: TrainConfig, built: Built) -> str:
    shapes = {name: list(parameter.shape) for name, parameter in built.parameters().items()}
    steps = [config.dtype, config.remat, config.compile, config.micro_rows, type(built.model).__name__]
    return hashlib.sha256(json.dumps([name, inputs, steps, shapes], sort_keys=True).encode()).hexdigest()


def _loss(built: Built, ids: Tensor, targets: Tensor, segments: Tensor, positions: Tensor) -> Tensor:
    return loss_sum(logits_of(built, ids, segments, positions), targets)


def _scores(built: Built, ids: Tensor, targets: Tensor, segments: Tensor, positions: Tensor) -> Tensor:
    import torch

    logits = logits_of(built, ids, segments, positions)
    return torch.stack([loss_sum(logits, targets), correct(logits, targets)])


def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """One graph a length. Beyond a limit PyTorch would go on eagerly without a word: here that limit is an error."""
    import torch

    torch._dynamo.config.recompile_limit = LENGTHS
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    return torch.compile(function, dynamic=False)


def _settle(config: TrainConfig) -> None:
    import torch

    if config.device == "cuda":
        torch.use_deterministic_algorithms(True, warn_only=True)
        # nothing here reads what was not written
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # moments of embedding rows that are no longer seen decay into denormals, which take the slow path
    torch.set_flush_denormal(True)
    torch.set_num_threads(config.resolved_threads)


def _recompute(model: Any) -> None:
    from functools import partial

    from torch.utils.checkpoint import checkpoint

    for layer in checkpointed_layers(model):
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
