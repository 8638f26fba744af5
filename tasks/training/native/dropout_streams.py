"""Choose the random numbers for dropout under tensor parallelism: in some places of the model all ranks of the mesh
axis "model" need the same numbers, in others each rank needs its own.

Where each rank holds the whole residual stream, all ranks must use the same dropout masks. Between a layer split by columns
and one split by rows (attention's weights, an MLP's activations) each rank holds other heads or features, and with sequence
parallelism other positions. There each rank must use its own masks, or two heads would always drop the same elements.

PyTorch's dropout and attention take their numbers from the default generator, so the state of that generator is
switched. A rank's own state follows from the shared state and the rank. The shared state follows from (seed, step,
replica), so nothing is stored between steps. When remat computes a layer again, `torch.utils.checkpoint` restores the
generator's state, and `GeneratorSwitch.contexts` restores whether the shared or the own numbers were in use.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.layout.slices import ShardLayout
from trnflow.tasks.training.model.lora import BASE
from trnflow.tasks.training.native.sharding import layers_of, local_tensor
from trnflow.tasks.training.shared_types import Built
from trnflow.tasks.training.world import World

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn import Module

COLUMNS, ROWS = ("colwise",), ("rowwise", "rowwise_rep")
"""Styles of the layers whose output is split by features or heads, and styles of the layers that take such an input."""

LORA_DROPOUT = ".lora_dropout."


class GeneratorSwitch:
    """Switches PyTorch's default random generator, for dropout under tensor parallelism, between numbers shared by all
    ranks of the mesh axis "model" (the processes that share one copy of the model) and this rank's own numbers.

    device: the device whose generator is switched; place: this rank's index along "model". The shared numbers are used
    first."""

    def __init__(self, device: torch.device, place: int) -> None:
        self._device, self._place = device, place
        self._own = False
        self._shared: Any = None

    def own(self) -> None:
        """From here on, use this rank's own random numbers, which differ from those of the other ranks. The generator
        is seeded anew from the shared generator's state and the rank's index. Do nothing if the own numbers are already
        in use."""
        if self._own:
            return
        self._own = True
        generator = self._generator()
        if self._device.type == "cuda":  # only changes the seed on the host; does not wait for the device
            self._shared = generator.initial_seed()
            _reseed(generator, self._derived(self._shared))
            return
        drawn = int(_drawn(generator))
        self._shared = generator.get_state()
        generator.manual_seed(self._derived(drawn))

    def shared(self) -> None:
        """From here on, use the random numbers that all ranks of the mesh axis "model" share. They continue at the
        place where `own` interrupted them. Do nothing if the shared numbers are already in use."""
        if not self._own:
            return
        self._own = False
        if self._device.type == "cuda":
            _reseed(self._generator(), self._shared)
        else:
            self._generator().set_state(self._shared)

    @contextmanager
    def within(self, *, own: bool) -> Iterator[None]:
        """Within the context, use this rank's own random numbers (own=True) or the numbers that all tensor parallel
        ranks share (own=False). At its end, use again the kind that was in use before."""
        before = self._own
        (self.own if own else self.shared)()
        yield
        (self.own if before else self.shared)()

    def contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Return two context managers, for a layer's first computation and for its recomputation in the backward pass.

        In the second context the rank's own or the shared random numbers are used as they were at this call, so that
        the dropout masks are the same in both computations. The method is the argument `context_fn` of
        `torch.utils.checkpoint`."""
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
        import torch

        if self._device.type == "cuda":
            return torch.cuda.default_generators[self._device.index]
        return torch.default_generator

    def _derived(self, number: int) -> int:
        digest = hashlib.blake2b(repr((number, self._place)).encode(), digest_size=8).digest()
        return int.from_bytes(digest) >> 1


def split_dropout(config: TrainConfig, built: Built, layout: ShardLayout, world: World, device: torch.device) -> None:
    """Register hooks so that each dropout of a tensor parallel model uses the right random numbers: shared by all ranks
    of the mesh axis "model" where each rank computes the same elements, the rank's own where each computes others.

    Call this after `split_layers`. layout: how each parameter is split over the mesh; device: where this rank's part of
    the model runs."""
    streams = GeneratorSwitch(device, world.model)
    for layer in layers_of(built.model):
        layer.register_forward_pre_hook(partial(_enter, streams, config.sequence_parallel))
        layer.register_forward_hook(partial(_leave, streams))
        again = getattr(layer, "_gradient_checkpointing_func", None)
        if again is not None:
            layer._gradient_checkpointing_func = partial(again, context_fn=streams.contexts)  # type: ignore[assignment]
    for name, style in layout.styles.items():
        module = built.model.get_submodule(name)
        if style in COLUMNS:
            module.register_forward_hook(partial(_split, streams))
        elif style in ROWS and not config.sequence_parallel:
            module.register_forward_pre_hook(partial(_whole, streams))
    for name, module in built.model.named_modules():
        layer, dropout, _ = name.partition(LORA_DROPOUT)
        if dropout:  # the input of A is split if the layer is split by rows
            own = layout.styles.get(layer + BASE) in ROWS
            module.forward = partial(_dropped, streams, own, module.forward)


def _enter(streams: GeneratorSwitch, split: bool, layer: Module, arguments: Any) -> None:
    """Hook at the start of a layer: use this rank's own random numbers if the residual stream is split by positions."""
    if layer.training and split:
        streams.own()


def _leave(streams: GeneratorSwitch, layer: Module, arguments: Any, output: Any) -> None:
    if layer.training:
        streams.shared()


def _split(streams: GeneratorSwitch, module: Module, arguments: Any, output: Any) -> None:
    if module.training:
        streams.own()


def _whole(streams: GeneratorSwitch, module: Module, arguments: Any) -> None:
    if module.training:
        streams.shared()


def _dropped(streams: GeneratorSwitch, own: bool, dropout: Any, hidden: Tensor) -> Tensor:
    """Apply LoRA's dropout. A DTensor is unwrapped first, because PyTorch draws a DTensor's numbers in another way."""
    from torch.distributed.tensor import DTensor

    with streams.within(own=own):
        found: Tensor = dropout(local_tensor(hidden))
    if isinstance(hidden, DTensor):
        return DTensor.from_local(found, hidden.device_mesh, hidden.placements, run_check=False)
    return found


def _drawn(generator: Any) -> Tensor:
    import torch

    return torch.randint(1 << 62, (), generator=generator)


def _reseed(generator: Any, seed: int) -> None:
    """Set the seed of a GPU's generator without changing its offset. The generator's numbers are a function of both."""
    offset = generator.get_offset()
    generator.manual_seed(seed)
    generator.set_offset(offset)
