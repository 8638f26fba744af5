"""Choose the random numbers for dropout under tensor parallelism.

Where the residual stream is whole, all ranks along "model" draw the same masks. Where a rank holds other heads,
features or positions, it draws its own. Numbers follow from (seed, step, replica, rank), so nothing is stored between
steps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import Module

from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.device_kinds import KINDS
from trnflow.tasks.training.layout.slices import ShardLayout
from trnflow.tasks.training.model.build import layers_of
from trnflow.tasks.training.model.lora import BASE
from trnflow.tasks.training.native.sharding import local_tensor
from trnflow.tasks.training.shared_types import Built
from trnflow.tasks.training.world import World

COLUMNS, ROWS = ("colwise",), ("rowwise", "rowwise_rep")
"""Styles of the layers whose output is split by features or heads, and styles of the layers that take such an input."""

LORA_DROPOUT = ".lora_dropout."


class GeneratorSwitch:
    """Switches PyTorch's default generator between numbers that all ranks along "model" share and this rank's own.

    Begins with the shared ones. place: This rank's index along "model".
    """

    def __init__(self, device: torch.device, place: int) -> None:
        self._device, self._place, self._kind = device, place, KINDS[device.type]
        # dropout and attention take their numbers from the default generator, so its state is switched
        self._own = False
        self._shared: Any = None

    def own(self) -> None:
        """Use this rank's own numbers from here on, seeded from the shared state and the rank's index."""
        if self._own:
            return
        self._own = True
        generator = self._generator()
        if self._kind.has_offset:  # only changes the seed on the host; does not wait for the device
            self._shared = generator.initial_seed()
            _reseed(generator, self._derived(self._shared))
            return
        drawn = int(torch.randint(1 << 62, (), generator=generator))
        self._shared = generator.get_state()
        generator.manual_seed(self._derived(drawn))

    def shared(self) -> None:
        """Use the shared numbers from here on, continuing where `own` interrupted them."""
        if not self._own:
            return
        self._own = False
        if self._kind.has_offset:
            _reseed(self._generator(), self._shared)
        else:
            self._generator().set_state(self._shared)

    @contextmanager
    def within(self, *, own: bool) -> Iterator[None]:
        """Use own or shared numbers within the context, and afterwards those used before."""
        before = self._own
        (self.own if own else self.shared)()
        yield
        (self.own if before else self.shared)()

    def contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Return contexts for a layer's first computation and its recomputation (torch's `context_fn`)."""
        # checkpoint restores the generator's state itself, but not which of the two kinds was in use
        return nullcontext(), self._resumed(self._own, self._shared)

    @contextmanager
    def _resumed(self, own: bool, shared: Any) -> Iterator[None]:
        before = self._own, self._shared
        self._own, self._shared = own, shared
        try:
            yield
        finally:  # PyTorch ends a recomputation early by an exception
            self._own, self._shared = before

    def _generator(self) -> Any:
        return self._kind.generator(self._device)

    def _derived(self, number: int) -> int:
        digest = hashlib.blake2b(repr((number, self._place)).encode(), digest_size=8).digest()
        return int.from_bytes(digest) >> 1


def split_dropout(config: TrainConfig, built: Built, layout: ShardLayout, world: World, device: torch.device) -> None:
    """Register hooks that choose the numbers of each dropout. To be called after `split_layers`."""
    streams = GeneratorSwitch(device, world.model)

    def use_own(module: Module, *others: Any) -> None:
        if module.training:
            streams.own()

    def use_shared(module: Module, *others: Any) -> None:
        if module.training:
            streams.shared()

    for layer in layers_of(built.model):
        if config.sequence_parallel:  # within layers, the residual stream is split by positions
            layer.register_forward_pre_hook(use_own)
        layer.register_forward_hook(use_shared)
        again = getattr(layer, "_gradient_checkpointing_func", None)
        if again is not None:
            layer._gradient_checkpointing_func = partial(again, context_fn=streams.contexts)
    # between a layer split by columns and one split by rows each rank holds other heads or features: with common
    # masks two heads would always drop the same elements
    for name, style in layout.styles.items():
        module = built.model.get_submodule(name)
        if style in COLUMNS:
            module.register_forward_hook(use_own)
        elif style in ROWS and not config.sequence_parallel:
            module.register_forward_pre_hook(use_shared)
    for name, module in built.model.named_modules():
        layer, dropout, _ = name.partition(LORA_DROPOUT)
        if dropout:  # the input of A is split if the layer is split by rows
            own = layout.styles.get(layer + BASE) in ROWS
            module.forward = partial(_dropped, streams, own, module.forward)


def _dropped(streams: GeneratorSwitch, own: bool, dropout: Any, hidden: Tensor) -> Tensor:
    """Apply LoRA's dropout."""
    # unwrapped: PyTorch draws a DTensor's numbers in another way
    with streams.within(own=own):
        dropped: Tensor = dropout(local_tensor(hidden))
    if isinstance(hidden, DTensor):
        return DTensor.from_local(dropped, hidden.device_mesh, hidden.placements, run_check=False)
    return dropped


def _reseed(generator: Any, seed: int) -> None:
    """Set a generator's seed, and keep its offset."""
    offset = generator.get_offset()
    generator.manual_seed(seed)
    generator.set_offset(offset)
