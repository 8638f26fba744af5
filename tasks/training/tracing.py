"""What a pass over a micro batch takes, whatever the model: it is run on "meta", where tensors have sizes and no numbers.

Every tensor that an operation makes is counted until the last that refers to it is gone, as an allocator would; so remat,
frozen parameters and layers that nobody foresaw count as what they are. A layer that is split runs split, in a process
group of one that only pretends to have others: PyTorch remembers its collectives, so this process must not train with real
ones afterwards. Costs about a millisecond an operation, forward and backward.
Attention and dropout are made those of the device; what a fused kernel holds while it runs is not seen.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tasks.training.config import TrainConfig
from tasks.training.layout import Layout
from tasks.training.memory import Passing
from tasks.training.model import Built, logits_of
from tasks.training.objective import loss_sum

if TYPE_CHECKING:
    from torch import Tensor


def traced(config: TrainConfig, built: Built, layout: Layout, length: int) -> Passing:
    """built: on "meta", and used up: its layers are split, and its parameters have gradients afterwards."""
    import torch

    if config.dtype == "bfloat16":
        for parameter in built.parameters().values():
            parameter.data = parameter.data.to(torch.bfloat16)
    with _split(config, built, layout), _kernels_of(config):
        if config.remat and config.method != "head":
            from tasks.training.native import recompute

            recompute(built.model, int(config.remat))
        built.model.train()
        watch = _Watch(built.model)
        with watch.mode():
            loss = loss_sum(*_scores(built, config.replica_batch, length))
            loss.backward()  # type: ignore[no-untyped-call]
        del loss
        return watch.passing(built)


def _scores(built: Built, rows: int, length: int) -> tuple[Tensor, Tensor]:
    """(logits, targets) of blank rows."""
    import torch

    ids, positions = (torch.zeros((rows, length), dtype=torch.int32, device="meta") for _ in range(2))
    targets = torch.zeros(rows if built.task == "classification" else (rows, length), dtype=torch.int32, device="meta")
    return logits_of(built, ids, ids, positions), targets


class _Watch:
    """Hears of every storage that operations make, and of its end. events: (which, bytes; negative when it ends), in order."""

    def __init__(self, model: Any) -> None:
        self.events: list[tuple[int, int]] = []
        self._known: dict[int, int] = {}
        self._count = 0
        self._kept = [_storage(tensor) for tensor in (*model.parameters(), *model.buffers())]
        for storage in self._kept:
            self._known[storage._cdata] = -1

    @contextmanager
    def mode(self) -> Iterator[None]:
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils._pytree import tree_leaves

        note = self._note

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                found = func(*args, **(kwargs or {}))
                for leaf in tree_leaves(found):
                    note(leaf)
                return found

        with Mode():  # type: ignore[no-untyped-call]
            yield

    def passing(self, built: Built) -> Passing:
        gradients = {
            self._known.get(_storage(p.grad)._cdata, -1) for p in built.parameters().values() if p.grad is not None
        }
        live = made = 0
        alone, fresh = 0, (0, 0)
        for which, size in self.events:
            live += size
            made += size if which in gradients else 0
            alone, fresh = max(alone, live - made), max(fresh, (live, made))
        return Passing(alone, *fresh)

    def _note(self, leaf: Any) -> None:
        import torch

        if not isinstance(leaf, torch.Tensor):
            return
        storage = _storage(leaf)
        if storage._cdata in self._known:
            return
        number, self._count = self._count, self._count + 1
        self._known[storage._cdata] = number
        self.events.append((number, storage.nbytes()))
        weakref.finalize(storage, self._ended, storage._cdata, number, storage.nbytes())

    def _ended(self, address: int, number: int, size: int) -> None:
        self.events.append((number, -size))
        if self._known.get(address) == number:
            del self._known[address]


def _storage(tensor: Any) -> Any:
    """Of a DTensor, or of what a collective will have brought, that of the tensor within."""
    for wrapped in ("_local_tensor", "elem"):
        tensor = getattr(tensor, wrapped, tensor)
    return tensor.untyped_storage()


@contextmanager
def _split(config: TrainConfig, built: Built, layout: Layout) -> Iterator[None]:
    """The model's layers as the first of the tensor parallel devices holds them."""
    if config.tensor_parallel_size == 1:
        yield
        return
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from tasks.training.ranks import World
    from tasks.training.sharding import split_layers

    dist.init_process_group("fake", rank=0, world_size=config.devices, store=FakeStore())
    try:
        groups = init_device_mesh("cpu", tuple(layout.mesh), mesh_dim_names=("data", "model"))
        split_layers(config, built, layout, World(0, layout.mesh, groups))
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def _kernels_of(config: TrainConfig) -> Iterator[None]:
    """On "meta" PyTorch would take the kernels that write attention's weights out: here those of the device are taken."""
    import torch.nn.functional as functional

    if config.engine == "xla":
        yield
        return
    attention, dropout = functional.scaled_dot_product_attention, functional.dropout
    functional.scaled_dot_product_attention = _flash(attention, config.device)
    if config.device == "cuda":
        functional.dropout = _masked(dropout)
    try:
        yield
    finally:
        functional.scaled_dot_product_attention, functional.dropout = attention, dropout


def _flash(otherwise: Callable[..., Any], device: str) -> Callable[..., Any]:
    """The CPU's flash attention, which knows no dropout; the GPU's keeps the same."""
    import torch

    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, **options: Any
    ) -> Any:
        if (dropout_p and device == "cpu") or options.get("enable_gqa"):
            return otherwise(query, key, value, attn_mask=attn_mask, dropout_p=dropout_p, **options)
        scale = options.get("scale") or 1 / math.sqrt(query.shape[-1])
        causal = bool(options.get("is_causal"))
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return flash(query, key, value, 0.0, causal, attn_mask=attn_mask, scale=scale)[0]

    return attention


def _masked(otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """The GPU's dropout, which keeps a mask."""
    import torch

    def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if not (training and 0 < p < 1) or inplace:
            return otherwise(input, p, training, inplace)
        return torch.native_dropout(input, p, True)[0]

    return dropout
