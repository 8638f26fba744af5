"""Engine `xla`: torch_xla, SPMD over the devices of one process (on the CPU, virtual ones), or a process a device.

A tensor's layout is a spec (`plan`): parameters over "model", batches over "data", with ZeRO-1 the optimizer's state over
"data" as well, with sequence parallelism the residual stream's positions over "model". GSPMD makes the collectives.
A graph is built from functions of the state to its new values, hashed when first met, then committed and run: so tracing
alone leaves no mark. Each (name, length) compiles once; `Ledger` sees to it. SPMD on Neuron is experimental. With a process
a device (`replicas`) each holds whole layers, and the collectives are written out. Stochastic rounding takes the graph's own
random numbers, on Neuron the device's (`config.environ`).
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tasks.artifact import Meta
from tasks.errors import ModelError
from tasks.training.adafactor import adafactor
from tasks.training.batches import Batch
from tasks.training.config import TrainConfig
from tasks.training.engine import Box
from tasks.training.inventory import Ledger
from tasks.training.model import Built, checkpointed_layers, logits_of
from tasks.training.names import PARAMETER
from tasks.training.objective import correct, loss_sum
from tasks.training.optim import Scalars, adamw, clipped, state_shapes
from tasks.training.plan import Mesh, Shape, Spec, parameter_specs, state_spec
from tasks.training.ranks import World
from tasks.training.replicas import replicas_of
from tasks.training.rounding import LACKING, rounded
from tasks.training.rules import tp_rules

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from tasks.training.checkpoint import Reader
    from tasks.training.replicas import Write

UPDATES: dict[str, Callable[..., tuple[Tensor, ...]]] = {"adamw": adamw, "adafactor": adafactor}


class XlaEngine:
    """See `tasks.training.engine.Engine`."""

    def __init__(self, config: TrainConfig, built: Built, ledger: Ledger, stored: Reader | None, world: World) -> None:
        import torch

        self._config, self._built, self._ledger = config, built, ledger
        # neuron_parallel_compile extracts the graphs that are executed: its trial run executes on zeros
        extracting = "NEURON_EXTRACT_GRAPHS_ONLY" in os.environ
        self._tracing = next(built.model.parameters()).is_meta and not extracting
        self._mesh = Mesh(config.data_parallel, config.tensor_parallel_size)
        shapes = {name: tuple(parameter.shape) for name, parameter in built.parameters().items()}
        plan = {} if self._mesh.model == 1 else tp_rules(built.model, shapes, config.tensor_parallel_rules)
        self._specs = parameter_specs(shapes, plan, self._mesh, type(built.model).__name__)
        self._state_specs = {
            name: state_spec(shapes[name], self._specs[name], self._mesh, config.zero1) for name in built.trained()
        }
        self._replicas = replicas_of(config, world, self._state_specs)
        self._device, self._devices = start(self._mesh, config)
        with torch.no_grad():
            self._masters, self._parameters = self._place_parameters(stored)
            self._place_buffers()
            self._state = {name: self._place_state(name, shapes[name], stored) for name in self._state_specs}
            self._sums = {n: self._send(torch.zeros(shapes[n]), self._state_specs[n]) for n in self._summed()}
            self._loss = self._send(torch.zeros(1), (None,))
            weights = built.class_weights
            self._class_weights = None if weights is None else self._send(torch.tensor(weights), (None,))
        _spell_out_norms(built.model)
        if config.remat and config.method != "head":
            if built.frozen:  # layers are gone back through only where their input has a gradient
                built.model.enable_input_require_grads()
            _recompute(built.model, int(config.remat))
        if config.sequence_parallel:
            self._shard_sequences()
        built.model.train()

    def train(self, batch: Batch, at: Scalars, seed: int) -> Tensor | None:
        import torch
        import torch_xla.core.xla_model as xm

        xm.set_rng_state(self._replicas.seed(seed))
        vector = self._send(torch.tensor(list(at), dtype=torch.float32), (None,))
        if self._config.accumulation == 1:
            loss, gradients = self._backward(batch, vector)
            return self._update("train", batch, loss, gradients, vector)
        for micro in batch.micros(self._config.micro_rows):
            loss, gradients = self._backward(micro, vector)
            writes: list[Write] = [(self._loss, self._loss + loss, (None,))]
            writes += [(self._sums[n], self._sums[n] + g, self._state_specs[n]) for n, g in gradients.items()]
            del gradients, loss
            self._run("accumulate", micro, writes)
        return self._update("update", None, self._loss, self._sums, vector)

    def evaluate(self, batch: Batch) -> Tensor | None:
        import torch

        self._built.model.eval()
        with torch.no_grad():
            ids, targets, segments, positions = self._columns(batch)
            logits = logits_of(self._built, ids, segments, positions)
            result = self._replicas.scores(torch.stack([loss_sum(logits, targets), correct(logits, targets)]))
            del logits
        self._built.model.train()
        return self._run("eval", batch, [], result)

    def fetch(self, handles: Sequence[Tensor]) -> list[list[float]]:
        import torch_xla

        return [value.tolist() for value in torch_xla._XLAC._xla_get_cpu_tensors(list(handles))] if handles else []

    def boxes(self, *, state: bool) -> Iterator[Box]:
        specs = self._specs if self._masters is self._parameters else self._state_specs
        for name, tensor in self._masters.items():
            yield from self._replicas.boxes(PARAMETER + name, tensor.detach(), specs[name])
        for name, kept in self._state.items() if state else ():
            for prefix, tensor in kept.items():
                yield from self._replicas.boxes(prefix + name, tensor, self._kept_spec(name, tensor))

    def peak_memory(self) -> int | None:
        return None

    def _backward(self, batch: Batch, vector: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """(this pass's share of the mean loss [1], gradients in fp32, laid out as the optimizer's state; of a replica those of
        its own rows, whole)."""
        import torch

        ids, targets, segments, positions = self._columns(batch)
        scale = vector[-1]
        logits = logits_of(self._built, ids, segments, positions)
        loss = loss_sum(logits, targets, self._class_weights, self._config.label_smoothing) * scale
        del logits
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = {}
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                gradients[name] = self._mark(gradient.float(), self._state_specs[name])
                parameter.grad = None
        return loss.detach().reshape(1), gradients

    def _update(
        self, name: str, batch: Batch | None, loss: Tensor, gradients: dict[str, Tensor], vector: Tensor
    ) -> Tensor | None:
        """Sum over the replicas, clip, gate and apply; gradients that were summed up start again at zero."""
        import torch

        with torch.no_grad():
            at = list(vector.unbind())
            summed = self._replicas.gradients(gradients)
            mean, norm = self._replicas.totals(loss, summed)
            good = torch.isfinite(norm) & torch.isfinite(mean)
            factor = clipped(norm, Scalars(*at).max_norm)  # type: ignore[arg-type]
            result = torch.stack([mean, norm, good.float()])
            writes: list[Write] = []
            for key, gradient in summed.items():
                writes += self._step(key, gradient * factor, good, at)
            writes = self._replicas.spread(writes)
            if name == "update":
                writes += [(total, torch.zeros_like(total), self._state_specs[key]) for key, total in gradients.items()]
                writes.append((loss, torch.zeros_like(loss), (None,)))
        del loss, gradients, summed
        return self._run(name, batch, writes, result)

    def _step(self, name: str, gradient: Tensor, good: Tensor, at: list[Tensor]) -> list[Write]:
        import torch

        kept = list(self._state[name].values())
        old = (self._masters[name].detach().float(), *kept)
        specs = [self._state_specs[name], *(self._kept_spec(name, tensor) for tensor in kept)]
        new = UPDATES[self._config.optimizer](*old, gradient=gradient, at=at)
        marked = [self._mark(value, spec) for value, spec in zip(new, specs, strict=True)]
        weight, *state = (torch.where(good, after, before) for after, before in zip(marked, old, strict=True))
        writes: list[Write] = list(zip(kept, state, specs[1:], strict=True))
        if self._masters is self._parameters:
            stored = self._rounded(weight, specs[0]) if self._config.stochastic_rounding else weight
            return [(self._parameters[name], stored, self._specs[name]), *writes]
        computing = (self._parameters[name], weight.to(self._parameters[name].dtype), self._specs[name])
        return [computing, (self._masters[name], weight, specs[0]), *writes]

    def _rounded(self, weight: Tensor, spec: Spec) -> Tensor:
        """fp32 -> bf16. One draw for the whole tensor, of which each device uses its part: copies stay alike."""
        import torch

        if self._config.device == "neuron":
            return weight.to(torch.bfloat16)
        bits = torch.randint(0, LACKING + 1, weight.shape, dtype=torch.int32, device=self._device)
        return self._mark(rounded(weight, self._mark(bits, spec), _bitcast), spec)

    def _run(self, name: str, batch: Batch | None, writes: list[Write], result: Tensor | None = None) -> Tensor | None:
        """Meet the graph when it is new; then commit the new values and execute."""
        import torch
        import torch_xla

        length = batch.length if batch else 0
        first = (name, length) not in self._ledger.met
        values = [self._mark(value, spec) for _, value, spec in writes]
        if result is not None:
            values.append(self._mark(result, (None,) * result.dim()))
        if first:
            gc.collect()  # what still refers to a traced tensor would make it an output of the graph
            digest = torch_xla._XLAC._get_graph_hash(values).hex()
            self._ledger.meet(name, length, digest, _described(batch))
        if self._tracing:
            return None
        with torch.no_grad():
            for target, value, _ in writes:
                target.copy_(value)
        with self._ledger.running(name, length, first=first, compiles=_compiles):
            torch_xla.sync()
        return result

    def _columns(self, batch: Batch) -> list[Tensor]:
        import torch

        columns = map(self._replicas.rows, (batch.input_ids, batch.targets, batch.segment_ids, batch.position_ids))
        return [self._send(torch.from_numpy(c), ("data",) + (None,) * (c.ndim - 1)) for c in columns]

    def _send(self, tensor: Tensor, spec: Spec) -> Tensor:
        """A tensor from the host (or its zeros, from "meta") on the devices, laid out."""
        import torch

        host = torch.zeros(tensor.shape, dtype=tensor.dtype) if tensor.is_meta else tensor
        return self._mark(host.to(self._device), spec)

    def _mark(self, tensor: Tensor, spec: Spec) -> Tensor:
        import torch_xla.distributed.spmd as xs

        if self._devices is not None and tensor.dim():
            xs.mark_sharding(tensor, self._devices, spec)
        return tensor

    def _place_parameters(self, stored: Reader | None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """(weights that are updated, parameters) of what is trained: the same tensors, unless the first are fp32 masters of the
        second in bf16, or a replica's parts of them."""
        import torch

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
            placed[name] = self._parameter(value.to(torch.bfloat16) if half else value, name, trained=name in trained)
        for module in self._built.model.modules():
            for leaf, old in module._parameters.items():
                if old is not None:  # a tied one has the name of the first
                    module._parameters[leaf] = placed[names[id(old)]]
        parameters = {name: placed[name] for name in trained}
        return masters if apart else parameters, parameters

    def _parameter(self, value: Tensor, name: str, *, trained: bool) -> Tensor:
        import torch

        parameter = torch.nn.Parameter(self._send(value, self._specs[name]), requires_grad=trained)
        return self._mark(parameter, self._specs[name])

    def _place_buffers(self) -> None:
        for module in self._built.model.modules():
            for leaf, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[leaf] = self._send(buffer, (None,) * buffer.dim())

    def _place_state(self, name: str, whole: Shape, stored: Reader | None) -> dict[str, Tensor]:
        """It exists before the first step, so that the first step's graph is every step's."""
        import torch

        found = {}
        for prefix, shape in state_shapes(self._config.optimizer, whole).items():
            value = stored.tensor(prefix + name) if stored else torch.zeros(shape)
            spec = self._kept_spec(name, value)
            found[prefix] = self._send(self._replicas.piece(value, spec), spec)
        return found

    def _kept_spec(self, name: str, kept: Tensor) -> Spec:
        """Of a tensor of the optimizer's state: as its parameter's, if it has its shape; else whole on every device."""
        spec = self._state_specs[name]
        return spec if kept.dim() == len(spec) else (None,) * kept.dim()

    def _summed(self) -> list[str]:
        return list(self._state_specs) if self._config.accumulation > 1 else []

    def _shard_sequences(self) -> None:
        """Keep the residual stream between layers split along its positions, forward and backward."""
        import torch_xla.distributed.spmd as xs

        def split(hidden: Any) -> Any:
            return xs.mark_sharding_with_gradients(hidden, self._devices, ("data", "model", None))

        def before(module: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
            length = arguments[0].shape[1]
            if length % self._mesh.model:
                raise ModelError(
                    f"sequence_parallel splits {length} positions over {self._mesh.model} devices",
                    "choose lengths that tensor_parallel_size divides, or set train.sequence_parallel=false",
                )
            return (split(arguments[0]), *arguments[1:])

        def after(module: Any, arguments: tuple[Any, ...], output: Any) -> Any:
            return (split(output[0]), *output[1:]) if isinstance(output, tuple) else split(output)

        for layer in checkpointed_layers(self._built.model):
            layer.register_forward_pre_hook(before)
            layer.register_forward_hook(after)


def start(mesh: Mesh, config: TrainConfig) -> tuple[Any, Any]:
    """(the torch device, the device mesh or None for a single one). ModelError when the devices are not there. No backward
    pass may come before it in a process, not even one without numbers: autograd counts its devices once."""
    import numpy as np
    import torch_xla
    import torch_xla.distributed.spmd as xs
    import torch_xla.runtime as xr

    alone = config.xla_processes == "one"
    if alone and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ModelError(
            "engine xla drives all devices from one process, and WORLD_SIZE says there are several",
            "start one process (not torchrun) and set train.devices",
        )
    if alone and config.devices > 1:
        xr.use_spmd()
    found = xr.global_runtime_device_count()
    if found != config.devices:
        raise ModelError(
            f"train.devices is {config.devices}, and XLA has {found} on {config.device}",
            "set train.devices to what is there",
        )
    device = torch_xla.device()
    if config.devices == 1 or not alone:
        return device, None
    return device, xs.Mesh(np.arange(found), tuple(mesh), ("data", "model"))


def _compiles() -> int:
    import torch_xla.debug.metrics as metrics

    return metrics.counter_value("UncachedCompile") or 0


def _bitcast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """`tensor.view(dtype)`, for which torch_xla has no lowering: it would go through the host."""
    from torch_xla.core.xla_builder import Op
    from torch_xla.core.xla_op_registry import register

    found: Tensor = register("bitcast", lambda value, to: value.bitcast(to))(tensor, to=Op.from_torch_type(dtype))
    return found


def _spell_out_norms(model: Any) -> None:
    """torch_xla lowers layer_norm to a batch norm over merged dimensions, for which GSPMD gathers the whole batch on every
    device (6 gathers of all activations in a 2-layer BERT). Written out, each device normalises its own rows."""
    import torch

    def normalised(module: torch.nn.LayerNorm, hidden: Tensor) -> Tensor:
        wide = hidden.float()
        centred = wide - wide.mean(-1, keepdim=True)
        scaled = centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + module.eps)
        scaled = scaled.to(hidden.dtype)
        return scaled if module.weight is None else scaled * module.weight + (0 if module.bias is None else module.bias)

    for module in model.modules():
        if type(module) is torch.nn.LayerNorm and len(module.normalized_shape) == 1:
            module.forward = partial(normalised, module)  # type: ignore[method-assign]


def _described(batch: Batch | None) -> list[Meta]:
    columns = (batch.input_ids, batch.targets, batch.segment_ids, batch.position_ids) if batch else ()
    return [{"shape": list(column.shape), "dtype": str(column.dtype)} for column in columns]


def _recompute(model: Any, every: int) -> None:
    from torch_xla.utils.checkpoint import checkpoint

    def recomputed(function: Callable[..., Any], *arguments: Any) -> Any:
        return checkpoint(function, *arguments, use_reentrant=True)

    for layer in checkpointed_layers(model, every):
        layer.gradient_checkpointing = True
        layer._gradient_checkpointing_func = recomputed
