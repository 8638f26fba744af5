"""Measure what a forward and backward pass allocates, by running it on "meta" tensors: about a millisecond an
operation.

Each storage counts until its last reference is gone. The process must not train on real ranks afterwards. What a fused
kernel allocates while it runs is not counted.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from trnflow.tasks.training.chunked_loss import chunk_positions, loss_in_chunks
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.layout.slices import ShardLayout
from trnflow.tasks.training.losses import loss_sum_of
from trnflow.tasks.training.memory.estimate import PassMemory
from trnflow.tasks.training.model.build import logits_of
from trnflow.tasks.training.model.noise import add_noise
from trnflow.tasks.training.pair_answers import answers, numbers_of
from trnflow.tasks.training.preference_losses import PREFERENCES
from trnflow.tasks.training.shared_types import Built


def trace_pass(config: TrainConfig, built: Built, layout: ShardLayout, length: int) -> PassMemory:
    """Return the bytes that a pass over a micro-batch of `length` tokens allocates on a device.

    built: On "meta", unusable afterwards. Raises NotImplementedError or RuntimeError when the model needs values.
    """
    for parameter in built.parameters().values():
        parameter.data = parameter.data.to(getattr(torch, config.dtype))
    with _layers_split(config, built, layout), _device_kernels(config):
        if config.remat and config.method != "head":
            from trnflow.tasks.training.native.engine import recompute

            recompute(built.model, int(config.remat))
        add_noise(config, built.model)
        built.model.train()
        chunk = chunk_positions(config, built)
        storages = _Storages(built.model)
        with storages.recorded():
            loss = _loss(config, built, config.replica_batch, length, chunk)
            loss.backward()  # type: ignore[no-untyped-call]
        del loss
        return storages.pass_memory(built)


def _loss(config: TrainConfig, built: Built, rows: int, length: int, chunk: int) -> Tensor:
    """Run the forward pass on blank rows, all supervised."""
    ids, positions = (torch.zeros((rows, length), dtype=torch.int32, device="meta") for _ in range(2))
    shape = built.kind.target_shape(rows, length, getattr(built.model.config, "num_labels", 1))

    def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
        return loss_sum_of(built.kind)(logits.float(), targets)

    targets = torch.zeros(shape, dtype=getattr(torch, built.kind.target_type), device="meta")
    if config.objective in PREFERENCES:
        columns, reference = [ids, targets, ids, positions], torch.zeros((rows, 2), device="meta")
        whole = PREFERENCES[config.objective].whole
        return numbers_of(config, answers(built, columns, reference, whole=whole, chunk=chunk), 1.0)[0]
    if 0 < chunk < rows * length:
        every = torch.arange(rows * length, device="meta")
        return loss_in_chunks(built, [ids, targets, ids, positions], every, loss_of, chunk)
    return loss_of(logits_of(built, ids, ids, positions), targets)


class _Storages:
    """The storages that operations allocate and free. events: (number of the storage, bytes; negative when freed), in order."""

    def __init__(self, model: Any) -> None:
        self.events: list[tuple[int, int]] = []
        self._known: dict[int, int] = {}
        self._count = 0
        self._weights = [_storage(tensor) for tensor in (*model.parameters(), *model.buffers())]
        for storage in self._weights:
            self._known[storage._cdata] = -1

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Record the storages of all operations run in this context."""
        note = self._note_tensor

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                result = func(*args, **(kwargs or {}))
                for leaf in tree_leaves(result):
                    note(leaf)
                return result

        with Mode():  # type: ignore[no-untyped-call]
            yield

    def pass_memory(self, built: Built) -> PassMemory:
        gradients = {
            self._known.get(_storage(p.grad)._cdata, -1) for p in built.parameters().values() if p.grad is not None
        }
        live = live_gradients = activations = 0
        peak = (0, 0)
        for number, size in self.events:
            live += size
            live_gradients += size if number in gradients else 0
            activations, peak = max(activations, live - live_gradients), max(peak, (live, live_gradients))
        return PassMemory(activations, *peak)

    def _note_tensor(self, leaf: Any) -> None:
        if not isinstance(leaf, torch.Tensor):
            return
        storage = _storage(leaf)
        if storage._cdata in self._known:
            return
        number, self._count = self._count, self._count + 1
        self._known[storage._cdata] = number
        self.events.append((number, storage.nbytes()))
        weakref.finalize(storage, self._note_freed, storage._cdata, number, storage.nbytes())

    def _note_freed(self, address: int, number: int, size: int) -> None:
        self.events.append((number, -size))
        if self._known.get(address) == number:
            del self._known[address]


def _storage(tensor: Any) -> Any:
    # of a DTensor or a collective's pending result, the tensor inside
    for wrapped in ("_local_tensor", "elem"):
        tensor = getattr(tensor, wrapped, tensor)
    return tensor.untyped_storage()


@contextmanager
def _layers_split(config: TrainConfig, built: Built, layout: ShardLayout) -> Iterator[None]:
    """Split the model's layers as on the first tensor parallel device."""
    if config.tensor_parallel_size == 1:
        yield
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from trnflow.tasks.training.native.process_group import make_groups
    from trnflow.tasks.training.native.sharding import split_layers
    from trnflow.tasks.training.world import World

    dist.init_process_group("fake", rank=0, world_size=config.devices, store=FakeStore())
    try:
        split_layers(config, built, layout, World(0, layout.mesh, make_groups("cpu", layout.mesh)))
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def _device_kernels(config: TrainConfig) -> Iterator[None]:
    """Replace attention and dropout by the device's variants."""
    if config.engine == "xla":
        yield
        return
    attention, dropout = functional.scaled_dot_product_attention, functional.dropout
    # for "meta" tensors PyTorch would choose a variant that stores attention's weights
    functional.scaled_dot_product_attention = _flash(attention, config.device)
    if config.device == "cuda":
        functional.dropout = _masked(dropout)
    try:
        yield
    finally:
        functional.scaled_dot_product_attention, functional.dropout = attention, dropout


def _flash(otherwise: Callable[..., Any], device: str) -> Callable[..., Any]:
    """Return an attention function that allocates as flash attention."""

    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, **options: Any
    ) -> Any:
        # flash attention has no dropout on the CPU
        if dropout_p if device == "cpu" else options.get("enable_gqa"):
            return otherwise(query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, **options)
        scale = options.get("scale") or 1 / math.sqrt(query.shape[-1])
        causal = bool(options.get("is_causal"))
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return flash(query, key, value, 0.0, causal, attn_mask=attn_mask, scale=scale)[0]

    return attention


def _masked(otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Return a dropout function that allocates what the GPU's does: a mask with one byte for each element."""

    def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if not (training and 0 < p < 1) or inplace:
            return otherwise(input, p, training, inplace)
        return torch.native_dropout(input, p, True)[0]

    return dropout
