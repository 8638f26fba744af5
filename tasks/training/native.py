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
from itertools import chain
from typing import TYPE_CHECKING, Any

from tasks.artifact import Meta
from tasks.training.attention import attending
from tasks.training.batches import Batch
from tasks.training.config import TrainConfig
from tasks.training.dropout import quicken
from tasks.training.engine import Box
from tasks.training.exchange import Alone, Exchange
from tasks.training.inventory import Ledger
from tasks.training.layout import Layout, check_length, layout_of, piece, start, writes
from tasks.training.model import Built, checkpointed_layers, logits_of
from tasks.training.names import PARAMETER
from tasks.training.objective import correct, loss_sum
from tasks.training.optim import INFINITE_NORM, Scalars
from tasks.training.ranks import World, replica_seed
from tasks.training.rounding import Draws
from tasks.training.updates import Kept, make_update

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
            states, specs = self._layout.states, self._layout.specs
            split = any(states[name] != specs[name] for name in states)
            apart = config.keeps_masters or (split and not config.stochastic_rounding)
            masters = [self._piece(name, p.detach().float()) for name, p in built.trained().items()] if apart else []
            self._state = make_update(config.optimizer, self._layout, world, self._device, stored)
            if config.dtype == "bfloat16":
                for one in built.parameters().values():  # not the buffers: rotary frequencies need fp32
                    one.data = one.data.to(torch.bfloat16)
        if config.remat and config.method != "head":
            recompute(built.model, int(config.remat))
        if world.groups is not None:
            self._exchange = self._shard()
        built.model.to(self._device).train()
        named = built.parameters()
        self._parameters: list[Tensor] = [named[name] for name in states]
        self._spreads = apart or split
        self._masters = masters if apart else self._places()
        weights = None if built.class_weights is None else torch.tensor(built.class_weights, device=self._device)
        if config.device == "cpu" and not config.compile and self._layout.mesh.model == 1:
            quicken(built.model)
        self._built = attending(config, built)
        self._objective = (self._built, weights, config.label_smoothing)
        if config.compile:
            self._loss, self._scores = _compiled(_loss), _compiled(_scores)

    def train(self, batch: Batch, at: Scalars, seed: int) -> Tensor | None:
        import torch

        self._meet("train", batch)
        if self._tracing:
            return None
        torch.manual_seed(replica_seed(seed, self._world.data))
        loss = torch.zeros((), device=self._device)
        micros = list(batch.micros(self._config.micro_rows))
        for number, micro in enumerate(micros, start=1):
            self._exchange.passes(self._built.model, last=number == len(micros))
            part = self._loss(*self._objective, *self._columns(micro)) * at.scale
            part.backward()  # type: ignore[no-untyped-call]
            loss += part.detach()
        return self._update(loss, at, seed)

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
        masters = zip(self._layout.states.items(), self._masters, strict=True)
        kept = (Kept(PARAMETER + n, self._layout.shapes[n], spec, value) for (n, spec), value in masters)
        for name, whole, spec, value in chain(kept, self._state.state() if state else ()):
            if writes(spec, self._world):
                yield Box(name, self._world.rank, start(whole, spec, self._world), whole, _copied(value))

    def peak_memory(self) -> int | None:
        import torch

        return torch.cuda.max_memory_allocated() if self._device.type == "cuda" else None

    def _restore(self, stored: Reader) -> None:
        for name, parameter in self._built.trained().items():
            parameter.copy_(stored.tensor(PARAMETER + name))

    def _piece(self, name: str, value: Tensor) -> Tensor:
        """This rank's part of a tensor of the optimizer's, in memory of its own, on the device."""
        return piece(value, self._layout.states[name], self._world).to(self._device, copy=True).contiguous()

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

    def _places(self) -> list[Tensor]:
        """Of each parameter itself, what this rank updates: all that it holds, with ZeRO-1 a part of that."""
        states, specs = self._layout.states, self._layout.specs
        beyond = [[a if a != b else None for a, b in zip(states[n], specs[n], strict=True)] for n in states]
        return [
            piece(held.detach(), tuple(spec), self._world) for held, spec in zip(self._locals(), beyond, strict=True)
        ]

    def _columns(self, batch: Batch) -> list[Tensor]:
        """This rank's share of the rows."""
        import torch

        size = len(batch.input_ids) // self._world.mesh.data
        mine = slice(size * self._world.data, size * (self._world.data + 1))
        columns = (batch.input_ids, batch.targets, batch.segment_ids, batch.position_ids)
        host = [torch.from_numpy(column[mine]) for column in columns]
        if self._device.type == "cuda":  # from other memory a copy would wait for the steps before it
            host = [column.pin_memory() for column in host]
        return [column.to(self._device, non_blocking=True) for column in host]

    def _update(self, loss: Tensor, at: Scalars, seed: int) -> Tensor:
        """Clip, gate and apply: gradients are divided by `ratio`."""
        import torch

        draws = Draws(seed, self._world, self._device) if self._config.stochastic_rounding else None
        with torch.no_grad():
            gradients = self._exchange.gradients(self._parameters)
            loss, norm = self._exchange.totals(loss, gradients)
            good = torch.isfinite(norm) & torch.isfinite(loss)
            ratio = (
                ((norm + 1e-6) / at.max_norm).clamp(min=1.0) if at.max_norm < INFINITE_NORM else torch.ones_like(norm)
            )
            self._state.apply(self._masters, gradients, ratio, good, at, draws)
            if self._spreads:
                self._exchange.spread(self._masters, self._parameters)
            for parameter in self._parameters:
                parameter.grad = None
            return torch.stack([loss, norm, good.float()])

    def _meet(self, name: str, batch: Batch) -> None:
        if (name, batch.length) in self._ledger.met:
            return
        check_length(self._config, batch.length)
        rows = self._config.global_batch if name == "train" else self._config.micro_rows
        ids = [rows, batch.length]  # whatever was trimmed off
        inputs = [{"shape": shape, "dtype": "int32"} for shape in (ids, ids[: batch.targets.ndim])]
        self._ledger.meet(name, batch.length, _signature(name, inputs, self._config, self._layout), inputs)


def _copied(value: Tensor) -> Tensor:
    """On the host and in fp32, in memory that the next step does not change."""
    import torch

    return value.detach().to("cpu", torch.float32, copy=True)


def _signature(name: str, inputs: list[Meta], config: TrainConfig, layout: Layout) -> str:
    steps: list[Any] = [
        config.dtype,
        config.stochastic_rounding,
        config.remat,
        config.compile,
        config.micro_rows,
        layout.model,
    ]
    steps += [config.optimizer, config.label_smoothing, config.class_weights is not None]
    steps += [*layout.mesh, config.zero1, config.fsdp, config.sequence_parallel]
    lora = config.lora.model_dump(mode="json") if config.lora else None
    document = [name, inputs, steps, layout.shapes, list(layout.states), lora]
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _loss(
    built: Built,
    weights: Tensor | None,
    smoothing: float,
    ids: Tensor,
    targets: Tensor,
    segments: Tensor,
    positions: Tensor,
) -> Tensor:
    return loss_sum(logits_of(built, ids, segments, positions), targets, weights, smoothing)


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
