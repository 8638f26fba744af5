"""Engine `native`: one process a device (cpu or cuda), eager PyTorch; torch.compile on one device.

A step reads the same on one device as on a mesh: what differs is which part of a tensor this rank holds (`layout`), how
the model is laid out (`sharding`), and what the ranks tell each other around an update (`exchange`). Repeats are bitwise
equal on the CPU with the same number of threads. On cuda deterministic kernels are asked for; several GPUs were never
run. The fused AdamW clips, gates and updates in one pass over the parameters. With `compile`, forward pass and loss are one
graph, so that the logits in fp32 are never written.
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
from tasks.training.exchange import Alone, Exchange
from tasks.training.inventory import Ledger
from tasks.training.layout import Layout, check_length, layout_of, piece, start, writes
from tasks.training.model import Built, checkpointed_layers, correct, logits_of, loss_sum
from tasks.training.names import FIRST, PARAMETER, SECOND
from tasks.training.optim import INFINITE_NORM, Scalars, decays
from tasks.training.ranks import World

if TYPE_CHECKING:
    from torch import Tensor

    from tasks.training.checkpoint import Reader

LENGTHS = 64  # more graphs than this are no buckets


class NativeEngine:
    """See `tasks.training.engine.Engine`."""

    def __init__(self, config: TrainConfig, built: Built, ledger: Ledger, stored: Reader | None, world: World) -> None:
        import torch

        self._config, self._built, self._ledger, self._world = config, built, ledger, world
        self._tracing = next(built.model.parameters()).is_meta
        self._layout = layout_of(config, built)
        self._loss, self._scores = _loss, _scores
        self._exchange: Exchange = Alone()
        if self._tracing:
            return
        _settle(config)
        self._device = (
            torch.device("cuda", torch.cuda.current_device()) if config.device == "cuda" else torch.device("cpu")
        )
        with torch.no_grad():
            if stored:
                self._restore(stored)
            apart = config.dtype == "bfloat16" or self._layout.states != self._layout.specs
            masters = [self._piece(name, p.detach().float()) for name, p in built.parameters().items()] if apart else []
            self._first, self._second = (self._moments(prefix, stored) for prefix in (FIRST, SECOND))
            if config.dtype == "bfloat16":
                for one in built.parameters().values():  # not the buffers: rotary frequencies need fp32
                    one.data = one.data.to(torch.bfloat16)
        if config.remat:
            recompute(built.model, int(config.remat))
        if world.groups is not None:
            self._exchange = self._shard()
        built.model.to(self._device).train()
        named = built.parameters()
        self._parameters: list[Tensor] = [named[name] for name in self._layout.shapes]
        self._apart = apart
        self._masters = masters if apart else self._locals()
        if config.compile:
            self._loss, self._scores = _compiled(_loss), _compiled(_scores)

    def train(self, batch: Batch, at: Scalars, seed: int) -> Tensor | None:
        import torch

        self._meet("train", batch)
        if self._tracing:
            return None
        torch.manual_seed(replica_seed(seed, self._world.data))
        loss = torch.zeros((), device=self._device)
        for number, micro in enumerate(batch.micros(self._config.micro_rows), start=1):
            self._exchange.passes(self._built.model, last=number == self._config.accumulation)
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
            result = self._exchange.scores(self._scores(self._built, *self._columns(batch)))
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
            for (name, whole), tensor in zip(self._layout.shapes.items(), tensors, strict=True):
                spec = self._layout.states[name]
                if writes(spec, self._world):
                    at = start(whole, spec, self._world)
                    yield Box(prefix + name, self._world.rank, at, whole, tensor.detach().cpu())

    def peak_memory(self) -> int | None:
        import torch

        return torch.cuda.max_memory_allocated() if self._device.type == "cuda" else None

    def _restore(self, stored: Reader) -> None:
        for name, parameter in self._built.parameters().items():
            parameter.copy_(stored.tensor(PARAMETER + name))

    def _piece(self, name: str, value: Tensor) -> Tensor:
        """This rank's part of a tensor of the optimizer's, in memory of its own, on the device."""
        return piece(value, self._layout.states[name], self._world).to(self._device, copy=True).contiguous()

    def _moments(self, prefix: str, stored: Reader | None) -> list[Tensor]:
        import torch

        zero = torch.zeros(())
        return [
            self._piece(name, stored.tensor(prefix + name) if stored else zero.expand(shape))
            for name, shape in self._layout.shapes.items()
        ]

    def _shard(self) -> Exchange:
        """Lay the model out over the mesh."""
        from tasks.training.exchange import Together
        from tasks.training.sharding import check_placed, partial_gradients, shard_fully, split_layers

        config, built, layout = self._config, self._built, self._layout
        partial = partial_gradients(config, built, layout) if layout.mesh.model > 1 else set()
        if layout.mesh.model > 1:
            split_layers(config, built, layout, self._world)
        if config.fsdp:
            shard_fully(config, built, layout, self._world)
        check_placed(built, layout)
        return Together(layout, self._world, partial)

    def _locals(self) -> list[Tensor]:
        """The parameters themselves, of a DTensor this rank's part."""
        if self._world.groups is None:
            return self._parameters
        from tasks.training.sharding import local

        return [local(parameter) for parameter in self._parameters]

    def _columns(self, batch: Batch) -> list[Tensor]:
        """This rank's share of the rows."""
        import torch

        size = len(batch.input_ids) // self._world.mesh.data
        mine = slice(size * self._world.data, size * (self._world.data + 1))
        columns = (batch.input_ids, batch.targets, batch.segment_ids, batch.position_ids)
        return [torch.from_numpy(column[mine]).to(self._device, non_blocking=True) for column in columns]

    def _update(self, loss: Tensor, at: Scalars) -> Tensor:
        """Clip, gate and apply: the kernel divides gradients by `ratio`, and does nothing where `bad` is 1."""
        import torch

        with torch.no_grad():
            gradients = self._exchange.gradients(self._parameters)
            loss, norm = self._exchange.totals(loss, gradients)
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
            if self._apart:
                self._exchange.spread(self._masters, self._parameters)
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
        check_length(self._config, batch.length)
        inputs = [{"shape": list(c.shape), "dtype": "int32"} for c in (batch.input_ids, batch.targets)]
        self._ledger.meet(name, batch.length, _signature(name, inputs, self._config, self._layout), inputs)


def replica_seed(seed: int, replica: int) -> int:
    """Of dropout. Replicas hold other rows and draw otherwise; the ranks of one hold the same activations and draw alike. The
    CPU's generator takes 32 bits: the stride keeps replicas apart in them for as many steps as can be."""
    return seed + replica * 0x9E3779B1


def _signature(name: str, inputs: list[Meta], config: TrainConfig, layout: Layout) -> str:
    steps = [config.dtype, config.remat, config.compile, config.micro_rows, layout.model]
    steps += [*layout.mesh, config.zero1, config.fsdp, config.sequence_parallel]
    return hashlib.sha256(json.dumps([name, inputs, steps, layout.shapes], sort_keys=True).encode()).hexdigest()


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


def recompute(model: Any, every: int) -> None:
    from functools import partial

    from torch.utils.checkpoint import checkpoint

    for layer in checkpointed_layers(model, every):
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
