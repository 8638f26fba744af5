"""Engine xla: torch_xla, with one process for all devices (SPMD; experimental on Neuron) or one a device (`replicas`).

Parameters are split over "model", batches over "data", with ZeRO-1 the optimizer's state too. A graph is compiled once
for its name and row length. Stochastic rounding takes the graph's own random numbers, on Neuron the device's.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch import Tensor

from trnflow.tasks.training.batches.sampler import Batch
from trnflow.tasks.training.chunked_loss import chunk_positions
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.graph_registry import GraphRegistry
from trnflow.tasks.training.layout.slices import check_length, layout_of
from trnflow.tasks.training.losses import hits_of, loss_sum_of, reads_rows, training_loss, with_logits
from trnflow.tasks.training.model.attention import use_attend_heads
from trnflow.tasks.training.model.build import checkpointed_layers, logits_of
from trnflow.tasks.training.model.noise import add_noise
from trnflow.tasks.training.optim.adafactor import adafactor
from trnflow.tasks.training.optim.optimizer import Scalars, adamw, clip_factor, state_shapes
from trnflow.tasks.training.optim.rounding import LACKING, round_stochastically
from trnflow.tasks.training.pair_answers import answers, numbers_of
from trnflow.tasks.training.partition_specs import Shape, Spec
from trnflow.tasks.training.preference_losses import PREFERENCES, metrics_of
from trnflow.tasks.training.shared_types import AVERAGE, PARAMETER, Built, TensorSlice
from trnflow.tasks.training.world import World
from trnflow.tasks.training.xla import gspmd
from trnflow.tasks.training.xla.chunked_loss import by_shares, loss_in_chunks, scores_in_chunks
from trnflow.tasks.training.xla.devices import compile_count, start_devices
from trnflow.tasks.training.xla.gradient_leaves import GradientLeaves, parameter_uses
from trnflow.tasks.training.xla.replicas import Write, make_replicas

if TYPE_CHECKING:
    from trnflow.tasks.training.checkpoint.shards import Reader

UPDATES: dict[str, Callable[..., tuple[Tensor, ...]]] = {"adamw": adamw, "adafactor": adafactor}


class XlaEngine:
    """The interface `Engine`, by torch_xla's compiled graphs. A model on "meta" is only traced.

    stored: A checkpoint to start from, or None.
    """

    def __init__(
        self, config: TrainConfig, built: Built, registry: GraphRegistry, stored: Reader | None, world: World
    ) -> None:
        self._config, self._built, self._registry = config, built, registry
        # neuron_parallel_compile extracts the graphs that are executed: its trial run executes on zeros
        extracting = "NEURON_EXTRACT_GRAPHS_ONLY" in os.environ
        self._tracing = next(built.model.parameters()).is_meta and not extracting
        self._mesh = config.mesh
        # one process for all devices sees all rows
        self._rows = (world.data, world.mesh.data) if reads_rows(config, built.kind) else None
        layout = layout_of(config, built)
        self._specs, self._state_specs, self._rates = layout.tp, layout.states, layout.rates
        self._replicas = make_replicas(config, world, self._state_specs)
        self._device, self._devices = start_devices(config)
        self._chunk = chunk_positions(config, built)
        self._split = by_shares(config.mesh.data if self._devices is not None else 1, self._mark)
        self._averages: dict[str, Tensor] = {}  # empty without `train.ema_decay`
        with torch.no_grad():
            self._masters, self._parameters = self._place_parameters(stored)
            for module in built.model.modules():
                for leaf, buffer in module._buffers.items():
                    if buffer is not None:
                        module._buffers[leaf] = self._send(buffer, (None,) * buffer.dim())
            self._state = {name: self._place_state(name, layout.shapes[name], stored) for name in self._state_specs}
            self._loss = self._zeros((1 + len(metrics_of(config.objective)),), (None,))
            weights = built.class_weights
            self._class_weights = None if weights is None else self._send(torch.tensor(weights), (None,))
        self._leaves = GradientLeaves(
            built.model, self._parameters, self._specs, self._state_specs, self._mark, self._shares()
        )
        with torch.no_grad():
            summed = self._state_specs if config.accumulation > 1 else ()
            self._sums = {name: self._zeros(*self._leaves.summed(name)) for name in summed}
        self._shard_tensors(layout.plan)
        add_noise(config, built.model)
        if config.remat and config.method != "head":
            if built.frozen:  # torch_xla's checkpoint computes gradients only if a layer's input has one
                built.model.enable_input_require_grads()
            _recompute(built.model, int(config.remat))
        built.model.train()

    def train(self, batch: Batch, at: Scalars, seed: int) -> Tensor | None:
        xm.set_rng_state(self._replicas.seed(seed))
        vector = self._send(torch.tensor(list(at), dtype=torch.float32), (None,))
        if self._config.accumulation == 1:
            loss, gradients = self._backward(batch, vector)
            return self._update("train", batch, loss, gradients, vector)
        for micro in batch.micro_batches(self._config.micro_rows):
            loss, gradients = self._backward(micro, vector)
            writes: list[Write] = [(self._loss, self._loss + loss, (None,))]
            writes += [(self._sums[n], self._sums[n] + g, self._leaves.summed(n)[1]) for n, g in gradients.items()]
            del gradients, loss
            self._run("accumulate", micro, writes)
        return self._update("update", None, self._loss, self._sums, vector)

    def evaluate(self, batch: Batch) -> Tensor | None:
        self._built.model.eval()
        with torch.no_grad(), self._averaged():
            result = self._replicas.scores(self._scores_of(batch))
        self._built.model.train()
        return self._run("eval", batch, [], result)

    def fetch(self, handles: Sequence[Tensor]) -> list[list[float]]:
        return [value.tolist() for value in torch_xla._XLAC._xla_get_cpu_tensors(list(handles))] if handles else []

    def slices(self, *, state: bool) -> Iterator[TensorSlice]:
        specs = self._specs if self._masters is self._parameters else self._state_specs
        for name, tensor in self._masters.items() if state or not self._averages else ():
            yield from self._replicas.slices(PARAMETER + name, tensor.detach(), specs[name])
        for name, tensor in self._averages.items():
            yield from self._replicas.slices((AVERAGE if state else PARAMETER) + name, tensor, self._state_specs[name])
        for name, kept in self._state.items() if state else ():
            for prefix, tensor in kept.items():
                yield from self._replicas.slices(prefix + name, tensor, self._kept_spec(name, tensor))

    def peak_memory(self) -> int | None:
        return None

    def _backward(self, batch: Batch, vector: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Run one pass; return (its share of the mean numbers [n], the loss first; fp32 gradients by `GradientLeaves`)."""
        self._leaves.put()
        numbers = self._loss_of(batch, vector[-1])
        # with one process a device the gradients are whole, and of the replica's own rows
        (numbers[0] if numbers.dim() else numbers).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            return numbers.detach().reshape(-1), self._leaves.take()

    def _loss_of(self, batch: Batch, scale: Tensor) -> Tensor:
        """Return the rows' share of the mean loss, as a scalar; of pairs [loss, *`metrics_of`]."""
        if self._built.kind.pairs:
            return self._pair_numbers(batch) * scale
        columns = self._columns(batch)
        loss_sum, smoothing = training_loss(self._config, self._built.kind), self._config.label_smoothing

        def score(logits: Tensor, targets: Tensor) -> Tensor:
            return loss_sum(logits.float(), targets, self._class_weights, smoothing) * scale

        if self._must_chunk(batch):
            return loss_in_chunks(self._built, columns, self._split, score, self._chunk)
        return score(logits_of(self._built, columns[0], *columns[2:]), columns[1])

    def _pair_numbers(self, batch: Batch) -> Tensor:
        """Return the sums over pairs of [loss, *`metrics_of`]."""
        reference = self._send(torch.from_numpy(self._replicas.rows(batch.reference)), ("data", None))
        share = self._send(torch.tensor(batch.surprise_share), ())
        whole = PREFERENCES[self._config.objective].whole
        return numbers_of(self._config, answers(self._built, self._columns(batch), reference, whole=whole), share)

    def _scores_of(self, batch: Batch) -> Tensor:
        if self._built.kind.pairs:
            return self._pair_numbers(batch)
        kind, columns = self._built.kind, self._columns(batch)

        def score(logits: Tensor, targets: Tensor) -> Tensor:
            return torch.stack([loss_sum_of(kind)(logits, targets), hits_of(kind, logits, targets)])

        if self._must_chunk(batch):
            return scores_in_chunks(self._built, columns, self._split, score, self._chunk)
        logits = logits_of(self._built, columns[0], *columns[2:])
        scores = score(logits, columns[1])
        return scores if self._rows is None else with_logits(scores, logits, *self._rows)

    def _must_chunk(self, batch: Batch) -> bool:
        return 0 < self._chunk < batch.input_ids.size // self._mesh.data

    def _update(
        self, name: str, batch: Batch | None, loss: Tensor, gradients: dict[str, Tensor], vector: Tensor
    ) -> Tensor | None:
        """Sum the gradients over the replicas, clip and apply them; reset accumulated sums."""
        with torch.no_grad():
            at = list(vector.unbind())
            summed = self._leaves.reduced(self._replicas.gradients(gradients))
            (mean, *others), norm = self._replicas.totals(loss, summed)
            good = _is_finite(norm) & _is_finite(mean)
            factor = clip_factor(norm, Scalars(*at).max_norm)  # type: ignore[arg-type]
            result = torch.stack([mean, norm, good.float(), *others])
            writes: list[Write] = []
            for key, gradient in summed.items():
                writes += self._step(key, gradient * factor, good, at)
            writes = self._replicas.share_weights(writes)
            if name == "update":
                writes += [
                    (total, torch.zeros_like(total), self._leaves.summed(key)[1]) for key, total in gradients.items()
                ]
                writes.append((loss, torch.zeros_like(loss), (None,)))
        del loss, gradients, summed
        return self._run(name, batch, writes, result)

    def _step(self, name: str, gradient: Tensor, good: Tensor, at: list[Tensor]) -> list[Write]:
        kept = list(self._state[name].values())
        old = (self._masters[name].detach().float(), *kept)
        specs = [self._state_specs[name], *(self._kept_spec(name, tensor) for tensor in kept)]
        own = [at[0] * self._rates[name], *at[1:]] if name in self._rates else at
        new = UPDATES[self._config.optimizer](*old, gradient=gradient, at=own)
        marked = [self._mark(value, spec) for value, spec in zip(new, specs, strict=True)]
        weight, *state = (torch.where(good, after, before) for after, before in zip(marked, old, strict=True))
        writes: list[Write] = list(zip(kept, state, specs[1:], strict=True))
        if self._config.ema_decay is not None:
            average = self._averages[name]
            moved = torch.where(at[1] > 1, average + (1 - self._config.ema_decay) * (weight - average), weight)
            writes.append((average, torch.where(good, self._mark(moved, specs[0]), average), specs[0]))
        if self._masters is self._parameters:
            stored = self._rounded(weight, specs[0]) if self._config.stochastic_rounding else weight
            return [(self._parameters[name], stored, self._specs[name]), *writes]
        # split like the state first, so that ZeRO-1 gathers bf16
        narrow = self._mark(weight.to(self._parameters[name].dtype), specs[0]).clone()
        computing = (self._parameters[name], narrow, self._specs[name])
        return [computing, (self._masters[name], weight, specs[0]), *writes]

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """Let the layers compute with the averages of their weights, if there are any."""
        uses = [*parameter_uses(self._built.model, self._parameters, apart=False)] if self._averages else []
        narrow = {name: parameter.dtype for name, parameter in self._parameters.items()}
        # multiplied: a copy would keep the layout of the state
        values = {n: self._mark((a * 1.0).to(narrow[n]), self._specs[n]) for n, a in self._averages.items()}
        for use in uses:
            vars(use.layer)[use.attribute] = values[use.name]
        yield
        for use in uses:
            del vars(use.layer)[use.attribute]

    def _rounded(self, weight: Tensor, spec: Spec) -> Tensor:
        """Return the fp32 weight rounded to bf16."""
        if self._config.device == "neuron":
            return weight.to(torch.bfloat16)
        # for the whole tensor, of which each device uses its part: copies stay equal
        bits = torch.randint(0, LACKING + 1, weight.shape, dtype=torch.int32, device=self._device)
        return self._mark(round_stochastically(weight, self._mark(bits, spec), _bitcast), spec)

    def _run(self, name: str, batch: Batch | None, writes: list[Write], result: Tensor | None = None) -> Tensor | None:
        """Register the graph if it is new, write the new values to the state, and run the graph."""
        length = batch.length if batch else 0
        first = (name, length) not in self._registry.graphs
        values = [self._mark(value, spec) for _, value, spec in writes]
        if result is not None:
            values.append(self._mark(result, (None,) * result.dim()))
        if first:
            gc.collect()  # a traced tensor that is still referenced would become an output of the graph
            digest = torch_xla._XLAC._get_graph_hash(values).hex()
            columns = (batch.input_ids, batch.targets, batch.segment_ids, batch.position_ids) if batch else ()
            inputs = [{"shape": list(column.shape), "dtype": str(column.dtype)} for column in columns]
            self._registry.register(name, length, digest, inputs)
        if self._tracing:  # the state is written only now, so tracing changes nothing
            return None
        with torch.no_grad():
            for target, value, _ in writes:
                target.copy_(value)
        with self._registry.executing(name, length, first=first, compiles=compile_count):
            torch_xla.sync()
        return result

    def _columns(self, batch: Batch) -> list[Tensor]:
        check_length(self._config, batch.length)
        columns = map(self._replicas.rows, (batch.input_ids, batch.targets, batch.segment_ids, batch.position_ids))
        return [self._send(torch.from_numpy(c), ("data",) + (None,) * (c.ndim - 1)) for c in columns]

    def _send(self, tensor: Tensor, spec: Spec) -> Tensor:
        """Copy a tensor from the host to the devices, laid out by `spec`; of one on "meta" zeros."""
        host = torch.zeros(tensor.shape, dtype=tensor.dtype) if tensor.is_meta else tensor
        if not host.dim():
            # `to` makes 0 and 1 constants of the graph, so other numbers would make another graph
            sent: Tensor = torch_xla._XLAC._xla_tensors_from_aten([host], [str(self._device)], None)[0]
            return sent
        return self._mark(host.to(self._device), spec)

    def _mark(self, tensor: Tensor, spec: Spec) -> Tensor:
        """Annotate the tensor with its spec for GSPMD, and return it."""
        if self._devices is not None and tensor.dim():
            # spmd.mark_sharding tries at every call to import torchax, which without jax takes 0.3 ms: half of a
            # small model's step
            torch_xla._XLAC._xla_mark_sharding(tensor, self._devices.get_op_sharding(spec))
        return tensor

    def _place_parameters(self, stored: Reader | None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return (the weights that are updated, the parameters that compute), by name."""
        placed: dict[str, Tensor] = {}
        masters: dict[str, Tensor] = {}
        names = {id(parameter): name for name, parameter in self._built.parameters().items()}
        trained, half = self._built.trained(), self._config.dtype == "bfloat16"
        apart = self._config.keeps_masters or self._replicas.splits
        for name, parameter in self._built.parameters().items():
            value = stored.tensor(PARAMETER + name) if stored and name in trained else parameter.detach().float()
            if apart and name in trained:
                spec = self._state_specs[name]
                masters[name] = self._send(self._replicas.piece(value, spec), spec)
            if self._config.ema_decay is not None and name in trained:
                spec, average = self._state_specs[name], stored.tensor(AVERAGE + name) if stored else value
                self._averages[name] = self._send(self._replicas.piece(average, spec), spec)
            sent = self._send(value.to(torch.bfloat16) if half else value, self._specs[name])
            placed[name] = self._mark(torch.nn.Parameter(sent, requires_grad=name in trained), self._specs[name])
        for module in self._built.model.modules():
            for leaf, old in module._parameters.items():
                if old is not None:  # a tied parameter has the name of its first occurrence
                    module._parameters[leaf] = placed[names[id(old)]]
        parameters = {name: placed[name] for name in trained}
        # the same tensors, unless the first are fp32 masters, or a replica's parts of them
        return masters if apart else parameters, parameters

    def _place_state(self, name: str, whole: Shape, stored: Reader | None) -> dict[str, Tensor]:
        """Return the optimizer's state of a parameter."""
        state = {}
        for prefix, shape in state_shapes(self._config.optimizer, whole).items():
            # zeros from the start, so that the first step has the graph of all others
            value = stored.tensor(prefix + name) if stored else torch.zeros(shape)
            spec = self._kept_spec(name, value)
            state[prefix] = self._send(self._replicas.piece(value, spec), spec)
        return state

    def _kept_spec(self, name: str, kept: Tensor) -> Spec:
        """Return a state tensor's spec: the parameter's if it has as many dimensions, else replicated."""
        spec = self._state_specs[name]
        return spec if kept.dim() == len(spec) else (None,) * kept.dim()

    def _shares(self) -> int:
        """Return the number of replicas whose gradients are apart until the update."""
        often = self._config.accumulation > 1 or self._config.dtype == "bfloat16"
        # else GSPMD itself sums them once an update, in fp32
        return self._mesh.data if self._devices is not None and often else 1

    def _shard_tensors(self, plan: Mapping[str, str]) -> None:
        """Rewrite and annotate the model's layers for GSPMD."""
        gspmd.write_out_norms(self._built.model)
        if self._mesh.model > 1 or self._shares() > 1:
            gspmd.use_einsum(self._built.model)
        if self._mesh.model > 1:
            use_attend_heads(self._built.model)
            gspmd.annotate(self._built.model, plan, self._mark, sequence_parallel=self._config.sequence_parallel)

    def _zeros(self, shape: Shape, spec: Spec) -> Tensor:
        return self._send(torch.zeros(shape), spec)


def _bitcast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the tensor's bits as another dtype."""
    from torch_xla.core.xla_builder import Op
    from torch_xla.core.xla_op_registry import register

    # torch_xla has no lowering for `view(dtype)`, which would go through the host
    cast: Tensor = register("bitcast", lambda value, to: value.bitcast(to))(tensor, to=Op.from_torch_type(dtype))
    return cast


def _is_finite(value: Tensor) -> Tensor:
    """Return `torch.isfinite` without float64, which Trainium lacks."""
    return value.abs() <= torch.full_like(value, torch.finfo(value.dtype).max)


def _recompute(model: Any, every: int) -> None:
    from torch_xla.utils.checkpoint import checkpoint

    def recomputed(function: Callable[..., Any], *arguments: Any) -> Any:
        return checkpoint(function, *arguments, use_reentrant=True)

    for layer in checkpointed_layers(model, every):
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = recomputed
