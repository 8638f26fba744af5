"""Engine native: eager PyTorch with a process a device (`device_kinds`), and torch.compile for each layer.

One device and a mesh differ in `layout.slices`, `sharding` and `gradient_exchange` alone. On the CPU a repeated run
with as many threads has equal bits; on cuda it should with `train.deterministic`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from trnflow.tasks.artifact import Meta
from trnflow.tasks.training.batches.sampler import IGNORED, Batch
from trnflow.tasks.training.chunked_loss import chunk_positions, loss_in_chunks, scores_in_chunks
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.device_kinds import KINDS
from trnflow.tasks.training.graph_registry import GraphRegistry
from trnflow.tasks.training.layout.slices import (
    ShardLayout,
    check_kinds,
    check_length,
    fp32_shards,
    layout_of,
    piece_start,
    writes_piece,
)
from trnflow.tasks.training.losses import hits_of, loss_sum_of, reads_rows, training_loss, with_logits
from trnflow.tasks.training.model.attention import bounds_of, with_attention
from trnflow.tasks.training.model.build import checkpointed_layers, logits_of
from trnflow.tasks.training.model.dropout import use_fast_dropout
from trnflow.tasks.training.model.noise import add_noise
from trnflow.tasks.training.native.accumulation import GradientSums
from trnflow.tasks.training.native.adamw_8bit import AdamW8bit
from trnflow.tasks.training.native.averages import Averages
from trnflow.tasks.training.native.cached_gradients import cached_backward
from trnflow.tasks.training.native.collectives import over_ranks
from trnflow.tasks.training.native.compiled_blocks import compile_blocks
from trnflow.tasks.training.native.determinism import choose_kernels, explain_refusal
from trnflow.tasks.training.native.first_weights import FirstWeights
from trnflow.tasks.training.native.gradient_exchange import SingleProcess
from trnflow.tasks.training.native.loss_scale import LossScale
from trnflow.tasks.training.native.updates import Adafactor, FusedAdamW, StateTensor
from trnflow.tasks.training.optim.optimizer import INFINITE_NORM, Scalars
from trnflow.tasks.training.optim.rounding import RandomBits
from trnflow.tasks.training.pair_answers import answers, numbers_of
from trnflow.tasks.training.preference_losses import PREFERENCES, metrics_of, reads_kl
from trnflow.tasks.training.shared_types import PARAMETER, Built, TensorSlice
from trnflow.tasks.training.world import World, replica_seed

if TYPE_CHECKING:
    from trnflow.tasks.training.checkpoint.shards import Reader

UPDATES: dict[str, type[FusedAdamW | Adafactor]] = {
    "adamw": FusedAdamW,
    "adamw_8bit": AdamW8bit,
    "adafactor": Adafactor,
}
"""{`train.optimizer`: the class that holds its state and updates weights}."""


class NativeEngine:
    """The interface `Engine`, by eager PyTorch. A model on "meta" is only traced: graphs are registered, and nothing
    runs.

    stored: A checkpoint to start from, or None.
    """

    def __init__(
        self, config: TrainConfig, built: Built, registry: GraphRegistry, stored: Reader | None, world: World
    ) -> None:
        self._config, self._built, self._registry, self._world = config, built, registry, world
        self._tracing = next(built.model.parameters()).is_meta
        self._layout = layout_of(config, built)
        check_kinds(built, self._layout.tp)
        self._pairs = config.objective in PREFERENCES
        self._reads_kl = config.objective in PREFERENCES and reads_kl(config.loss_type)
        self._rows = (world.data, world.mesh.data) if reads_rows(config, built.kind) else None
        self._exchange = SingleProcess()
        # a loss of the whole batch can't be the sum of several passes'
        self._in_parts = built.kind.apart and config.accumulation > 1
        if self._tracing:
            return
        self._chunk = chunk_positions(config, built)
        choose_kernels(config)
        self._kind = KINDS[config.device]
        self._device = self._kind.torch_device()
        self._loss_scale = LossScale(self._device, stored) if config.dtype == "float16" else None
        weights = FirstWeights(built, stored, world, self._device)
        masters = self._make_masters(weights) if config.keeps_masters else {}
        self._state = UPDATES[config.optimizer](self._layout, world, self._device, stored)
        self._place_model(weights, masters)
        named = built.parameters()
        self._parameters: list[Tensor] = [named[name] for name in self._layout.states]
        narrow = config.dtype != "float32" and config.accumulation > 1
        self._sums = GradientSums(self._parameters) if narrow else None
        held = zip(self._layout.states, self._locals(), strict=True)
        self._masters = [masters.get(name, part.detach()) for name, part in held]
        # the parameters that are copies of masters, and these
        self._copied = [
            local for name, local in zip(self._layout.states, self._locals(), strict=True) if name in masters
        ]
        self._copied_from = [*masters.values()]
        self._averages = config.ema_decay is not None and Averages(
            config.ema_decay, self._masters, self._layout, world, stored
        )
        self._choose_kernels()

    def train(self, batch: Batch, at: Scalars, seed: int) -> Tensor | None:
        self._register("train", batch)
        if self._tracing:
            return None
        self._use_averages(False)
        torch.manual_seed(replica_seed(seed, self._world.data))
        if self._in_parts:
            return self._update(self._cached_loss(batch, at.scale), at, seed)
        numbers = torch.zeros(1 + len(metrics_of(self._config.objective)), device=self._device)
        parts = list(batch.micro_batches(self._config.micro_rows))
        kl = self._kl(parts, batch.supervised) if self._reads_kl else None
        if batch.marks is not None:  # only of its own answer a row has a gradient
            parts = [part.documents(0, self._config.shape_unit) for part in parts]
        for micro in parts:
            self._exchange.begin_pass(last=micro is parts[-1])
            with explain_refusal(self._config):
                part = self._loss_of(micro, at.scale, kl).reshape(-1)
                part[0].backward()  # type: ignore[no-untyped-call]
            numbers += part.detach()
        return self._update(numbers, at, seed)

    def _kl(self, parts: Sequence[Batch], rows: int) -> Tensor:
        """Return `Answers.kl` of an update: of all its passes and ranks, so that the loss depends on neither."""
        self._built.model.eval()
        with torch.no_grad(), explain_refusal(self._config):
            others = (part.documents(1, self._config.shape_unit) for part in parts)
            total = torch.stack([self._pair_numbers(part)[-1] for part in others]).sum()
        self._built.model.train()
        return (self._exchange.scores(total) / rows).clamp(min=0)

    def evaluate(self, batch: Batch) -> Tensor | None:
        self._register("eval", batch)
        if self._tracing:
            return None
        self._use_averages(True)
        self._built.model.eval()
        with torch.no_grad(), explain_refusal(self._config):
            result = self._exchange.scores(self._scores_of(batch))
        self._built.model.train()
        return result

    def fetch(self, handles: Sequence[Tensor]) -> list[list[float]]:
        if not handles:
            return []
        values, lengths = torch.cat(list(handles)).cpu(), [len(handle) for handle in handles]
        return [part.tolist() for part in torch.split(values, lengths)]

    def slices(self, *, state: bool) -> Iterator[TensorSlice]:
        self._use_averages(False)
        masters = zip(self._layout.states.items(), self._masters, strict=True)
        kept: Iterator[StateTensor] = (
            StateTensor(PARAMETER + n, self._layout.shapes[n], spec, value) for (n, spec), value in masters
        )
        if self._averages:
            kept = chain(kept, self._averages.state()) if state else self._averages.state(PARAMETER)
        others = chain(self._state.state(), [self._loss_scale.state()] if self._loss_scale else ())
        for name, whole, spec, value in chain(kept, others if state else ()):
            if writes_piece(spec, self._world):
                # the codes of 8-bit moments stay as they are
                dtype = torch.float32 if value.is_floating_point() else value.dtype
                copy = value.detach().to("cpu", dtype, copy=True)
                yield TensorSlice(name, self._world.rank, piece_start(whole, spec, self._world), whole, copy)

    def peak_memory(self) -> int | None:
        return self._kind.peak_memory()

    def _use_averages(self, wanted: bool) -> None:
        """Give the model the averages of its weights, or its weights again."""
        if self._averages and self._averages.swapped != wanted:
            with torch.no_grad():
                self._averages.swap()
                self._copy_masters()
                self._exchange.discard_gathered()

    def _copy_masters(self) -> None:
        """Copy the fp32 masters into the parameters that compute."""
        if self._copied:
            torch._foreach_copy_(self._copied, self._copied_from)

    def _make_masters(self, weights: FirstWeights) -> dict[str, Tensor]:
        """Return this rank's fp32 masters beside the parameters."""
        wide = fp32_shards(self._config, self._layout)
        # from weights that have not lost digits
        return {
            name: weights.part(name, spec, torch.float32)
            for name, spec in self._layout.states.items()
            if name not in wide
        }

    def _place_model(self, weights: FirstWeights, masters: Mapping[str, Tensor]) -> None:
        """Split the model over the mesh, and put this rank's parts, or copies of their `masters`, on the device."""
        config, built = self._config, self._built
        if config.remat and config.method != "head":
            recompute(built.model, int(config.remat))
        # buffers stay as they are: rotary frequencies need fp32
        wide, computing = fp32_shards(config, self._layout), getattr(torch, config.dtype)
        weights.blank({name: torch.float32 if name in wide else computing for name in self._layout.shapes})
        if self._world.groups is not None:
            self._exchange = self._shard()
        weights.place(self._layout.specs, masters)
        built.model.to(self._device).train()

    def _choose_kernels(self) -> None:
        """Set dropout, noise, attention and compilation of the model."""
        config, built = self._config, self._built
        weights = None if built.class_weights is None else torch.tensor(built.class_weights, device=self._device)
        if config.device == "cpu" and not config.compile and self._layout.mesh.model == 1:
            use_fast_dropout(built.model)
        add_noise(config, built.model)
        self._built = with_attention(config, built)
        loss_sum = over_ranks(training_loss(config, built.kind), built.kind, self._world)
        self._loss: Callable[..., Tensor] = partial(_scaled_loss, loss_sum, weights, config.label_smoothing)
        if config.compile and not config.loss and self._chunk:
            # of chunks alone: sizes vary, and a graph for each would be compiled
            self._loss = torch.compile(self._loss, dynamic=True)
        self._score = partial(_score, self._built, over_ranks(loss_sum_of(built.kind), built.kind, self._world))
        if config.compile:
            compile_blocks(built.model)

    def _shard(self) -> SingleProcess:
        """Split the model over the mesh."""
        from trnflow.tasks.training.native.dropout_streams import split_dropout
        from trnflow.tasks.training.native.gradient_exchange import MeshExchange
        from trnflow.tasks.training.native.sharding import check_placed, partial_gradients, shard_fully, split_layers

        config, built, layout = self._config, self._built, self._layout
        partial = partial_gradients(config, built, layout) if layout.mesh.model > 1 else set()
        if layout.mesh.model > 1:
            split_layers(config, built, layout, self._world)
            split_dropout(config, built, layout, self._world, self._device)
        shards = any("data" in spec for spec in layout.specs.values())
        if shards:
            shard_fully(config, built, layout, self._world)
        check_placed(built, layout)
        return MeshExchange(layout, self._world, partial, built.model if shards else None, zero1=config.zero1)

    def _locals(self) -> list[Tensor]:
        """Return the parameters; for a DTensor, this rank's part."""
        if self._world.groups is None:
            return self._parameters
        from trnflow.tasks.training.native.sharding import local_tensor

        return [local_tensor(parameter) for parameter in self._parameters]

    def _cached_loss(self, batch: Batch, scale: float) -> Tensor:
        """Add the gradients of this rank's rows, and return its share of the mean loss [1]. In fp16 times the loss scale."""
        columns = self._columns(batch)
        factor = torch.full((), scale, device=self._device) * (self._loss_scale.scale if self._loss_scale else 1.0)
        with explain_refusal(self._config):
            return cached_backward(
                self._parts(columns),
                self._vectors,
                lambda vectors: self._loss(vectors, columns[1], factor),
                lambda last: self._exchange.begin_pass(last=last),
            ).reshape(1)

    def _parts(self, columns: Sequence[Tensor]) -> list[Sequence[Tensor]]:
        """Return this rank's columns in the rows of one pass each."""
        size = self._config.replica_batch if self._in_parts else len(columns[0])
        return [*zip(*(torch.split(column, size) for column in columns), strict=True)]

    def _vectors(self, columns: Sequence[Tensor]) -> Tensor:
        return logits_of(self._built, columns[0], *columns[2:])

    def _loss_of(self, batch: Batch, scale: float, kl: Tensor | None) -> Tensor:
        """Return this rank's share of the mean loss; of pairs [loss, *`metrics_of`]. In fp16 times the loss scale."""
        factor = torch.full((), scale, device=self._device)
        if self._loss_scale:
            factor = factor * self._loss_scale.scale
        if self._pairs:
            return self._pair_numbers(batch, kl) * factor
        columns = self._columns(batch)
        if not self._must_chunk(batch):
            return self._loss(self._vectors(columns), columns[1], factor)

        # scaled below the output layer: scaled later, gradients in 16 bits would be rounded twice
        def score(logits: Tensor, targets: Tensor) -> Tensor:
            return self._loss(logits, targets, factor)

        return loss_in_chunks(self._built, columns, self._supervised(batch), score, self._chunk)

    def _pair_numbers(self, batch: Batch, kl: Tensor | None = None) -> Tensor:
        """Return the sums over this rank's pairs of [loss, *`metrics_of`]."""
        arrays = [of[self._mine(batch)] for of in (batch.reference, batch.marks) if of is not None]
        whole, known = PREFERENCES[self._config.objective].whole, self._kind.sent([*map(torch.from_numpy, arrays)])
        found = answers(self._built, self._columns(batch), *known, whole=whole, chunk=self._chunk)
        return numbers_of(self._config, found, batch.surprise_share, batch.kl if kl is None else kl)

    def _scores_of(self, batch: Batch) -> Tensor:
        if self._pairs:
            return self._pair_numbers(batch)
        columns = self._columns(batch)
        if self._must_chunk(batch):
            return scores_in_chunks(self._built, columns, self._supervised(batch), self._score, self._chunk)
        parts = [self._vectors(part) for part in self._parts(columns)]
        logits = torch.cat(parts) if len(parts) > 1 else parts[0]
        scores = self._score(logits, columns[1])
        return scores if self._rows is None else with_logits(scores, logits, *self._rows)

    def _must_chunk(self, batch: Batch) -> bool:
        return 0 < self._chunk < batch.input_ids.size // self._world.mesh.data

    def _supervised(self, batch: Batch) -> Tensor:
        """Return which of this rank's positions have a target."""
        # counted on the host: the device would be waited for
        at = np.flatnonzero(batch.targets[self._mine(batch)] != IGNORED)
        return self._kind.sent([torch.from_numpy(at)])[0]

    def _mine(self, batch: Batch) -> slice:
        """Return which rows are this rank's."""
        size = len(batch.input_ids) // self._world.mesh.data
        return slice(size * self._world.data, size * (self._world.data + 1))

    def _columns(self, batch: Batch) -> list[Tensor]:
        """Copy this rank's rows to the device: input ids, targets, segment ids, position ids; with attention "varlen" the
        bounds of documents."""
        arrays = (batch.input_ids, batch.targets, batch.segment_ids, batch.position_ids)
        columns = [torch.from_numpy(array[self._mine(batch)]) for array in arrays]
        if self._built.attention == "varlen":
            columns.append(bounds_of(self._built, columns[2]))
        return self._kind.sent(columns)

    def _update(self, numbers: Tensor, at: Scalars, seed: int) -> Tensor:
        """Clip the gradients and apply the update, unless the loss or the gradient norm is not finite."""
        draws = RandomBits(seed, self._world, self._device) if self._config.stochastic_rounding else None
        with torch.no_grad():
            computed = self._sums.take() if self._sums else [parameter.grad for parameter in self._parameters]
            gradients = self._exchange.gradients(self._parameters, computed)
            del computed
            numbers, norm = self._exchange.totals(numbers, gradients)
            scaling = self._loss_scale
            if scaling:
                numbers, norm = numbers / scaling.scale, norm / scaling.scale
                at = at._replace(t=at.t - scaling.skipped)
            loss = numbers[0]
            good = torch.isfinite(norm) & torch.isfinite(loss)
            ratio = (
                ((norm + 1e-6) / at.max_norm).clamp(min=1.0) if at.max_norm < INFINITE_NORM else torch.ones_like(norm)
            )
            # one pass over the parameters unscales, clips, skips an update that is not finite, and updates
            divisor = ratio * scaling.scale if scaling else ratio
            self._state.apply(self._masters, gradients, divisor, good, at, draws)
            if self._averages:
                self._averages.update(good, at.t)
            self._copy_masters()
            for parameter in self._parameters:
                parameter.grad = None
            if not scaling:
                return torch.cat([torch.stack([loss, norm, good.float()]), numbers[1:]])
            # another scale does not help a loss that is not finite
            used = scaling.scale.clone()
            harmless = good | (scaling.update(good) & torch.isfinite(loss))
            return torch.cat([torch.stack([loss, norm, harmless.float()]), numbers[1:], used[None]])

    def _register(self, name: str, batch: Batch) -> None:
        if (name, batch.length) in self._registry.graphs:
            return
        check_length(self._config, batch.length)
        rows = self._config.global_batch if name == "train" else self._config.micro_rows
        # the shape before trimming
        kind = self._built.kind
        shape = kind.target_shape(rows, batch.length, batch.targets.shape[-1])
        shapes = (([rows, batch.length], "int32"), ([*shape], kind.target_type))
        inputs: list[Meta] = [{"shape": shape, "dtype": dtype} for shape, dtype in shapes]
        self._registry.register(
            name,
            batch.length,
            _signature(name, inputs, self._config, self._layout, rows=self._rows is not None),
            inputs,
        )


def _signature(name: str, inputs: list[Meta], config: TrainConfig, layout: ShardLayout, *, rows: bool) -> str:
    steps: list[Any] = [config.dtype, config.stochastic_rounding, config.remat, config.compile, config.deterministic]
    steps += [config.micro_rows, layout.model, config.optimizer]
    steps += [config.label_smoothing, config.class_weights is not None]
    steps += [*layout.mesh[:2], config.zero1, config.fsdp, config.sequence_parallel, *(["rows"] if rows else [])]
    steps += [layout.mesh.copies] if layout.mesh.copies > 1 else []
    steps += [config.loss] if config.loss else []
    steps += [config.objective, config.loss_type] if config.objective in PREFERENCES else []
    lora = config.lora.model_dump(mode="json") if config.lora else None
    document = [name, inputs, steps, layout.shapes, list(layout.states), lora]
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _scaled_loss(
    loss_sum: Callable[..., Tensor],
    weights: Tensor | None,
    smoothing: float,
    logits: Tensor,
    targets: Tensor,
    scale: Tensor,
) -> Tensor:
    """scale: a scalar; a number would be compiled anew when it changes."""
    return loss_sum(logits.float(), targets, weights, smoothing) * scale


def _score(built: Built, loss_sum: Callable[..., Tensor], logits: Tensor, targets: Tensor) -> Tensor:
    """Return (summed loss, right predictions)."""
    return torch.stack([loss_sum(logits, targets), hits_of(built.kind, logits, targets)])


def recompute(model: Any, every: int) -> None:
    """Let every n-th layer compute its activations again in the backward pass (remat)."""
    for layer in checkpointed_layers(model, every):
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
