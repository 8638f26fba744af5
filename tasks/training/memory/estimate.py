"""Estimate the peak memory of training on a device from a traced pass and the layout. Pure functions without torch.

The peak is at the end of the forward pass or at the update.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ModelError
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.device_kinds import GIB, KINDS
from trnflow.tasks.training.layout.slices import ShardLayout, fp32_shards, piece_shape
from trnflow.tasks.training.optim.optimizer import bytes_8bit, state_shapes
from trnflow.tasks.training.partition_specs import Spec

FP32 = 4


class PassMemory(NamedTuple):
    """Bytes that a forward and backward pass allocates on a device, without parameters.

    activations: the most at one moment; peak: the most with gradients, if none existed before; gradients: of `peak`.
    """

    activations: int
    peak: int
    gradients: int = 0


@dataclass(frozen=True)
class Memory:
    """Bytes on a device at the peak.

    Attributes:
        parameters: Weights, and fp32 masters.
        gradients: And the buffers in which they are sent.
        optimizer: Its state, and the weights' moving average.
        activations: Of one micro-batch; 0 at the update.
        runtime: Before the model is built.
        at: "the backward pass" or "the update".
        best: The best checkpoint's copy, on the CPU.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    runtime: int
    at: str
    best: int = 0

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer + self.activations + self.runtime + self.best

    def to_json(self) -> Meta:
        return {**asdict(self), "total": self.total}

    @classmethod
    def from_json(cls, document: Meta) -> Memory:
        return cls(**{name: value for name, value in document.items() if name != "total"})

    def __str__(self) -> str:
        parts = [(name, value) for name, value in asdict(self).items() if isinstance(value, int)]
        return ", ".join(f"{name} {gib(value)}" for name, value in parts if value >= GIB / 20)


def gib(size: float) -> str:
    """Return bytes as GiB with one decimal, such as "1.5"."""
    return f"{size / GIB:.1f}"


def estimate(config: TrainConfig, layout: ShardLayout, traced: PassMemory) -> Memory:
    """Return the estimated peak."""
    copy = FP32 if config.dtype == "float32" else 2
    trained = [*layout.states]
    weights = copy * _numbers(layout, layout.specs, layout.shapes) + layout.packed
    # frozen parameters have neither gradients nor optimizer state
    masters = FP32 * _numbers(layout, layout.states, trained)
    split = any(layout.states[name] != layout.specs[name] for name in trained)
    has_masters = config.keeps_masters or (split and not config.stochastic_rounding)
    # FSDP's fp32 shards are parameters and masters at once
    twice = copy * _numbers(layout, layout.specs, fp32_shards(config, layout))
    parameters = weights - twice + (masters if has_masters else 0)
    averages = masters if config.ema_decay is not None else 0
    optimizer = _optimizer_state(config, layout, masters) + averages
    accumulated = _gradients_during_pass(config, layout, traced, copy)
    updating = _gradients_at_update(config, layout, trained, copy)
    sharing = (
        config.devices if config.device == "cpu" and config.engine == "xla" else 1
    )  # the virtual devices of one process share its memory
    runtime = int(KINDS[config.device].runtime) // sharing
    best = masters + optimizer if config.keeps_best and config.device == "cpu" else 0
    passing = accumulated + traced.activations if accumulated else traced.peak
    gathered = _gathered(config, layout, copy)
    if passing + gathered >= updating:
        gradients = accumulated or traced.gradients
        held = parameters + gathered
        return Memory(held, gradients, optimizer, passing - gradients, runtime, "the backward pass", best)
    return Memory(parameters, updating, optimizer, 0, runtime, "the update", best)


def check_memory(config: TrainConfig, memory: Memory, limit: int | None) -> None:
    """Raise ModelError, with settings that help, for more than `limit` bytes, unless `train.allow_overcommit`."""
    if limit is None or memory.total <= limit or config.allow_overcommit:
        return
    raise ModelError(
        f"training needs about {gib(memory.total)} GiB on each device, which has {gib(limit)} "
        f"({memory}; at its peak in {memory.at})",
        f"{'; '.join(_remedies(config, memory))}; or, if the estimate is wrong, train.allow_overcommit=true",
    )


def _numbers(layout: ShardLayout, specs: Mapping[str, Spec], names: Iterable[str]) -> int:
    """Return how many numbers of these parameters one device stores."""
    return sum(math.prod(piece_shape(layout.shapes[name], specs[name], layout.mesh)) for name in names)


def _gathered(config: TrainConfig, layout: ShardLayout, copy: int) -> int:
    """Return the bytes that FSDP has gathered in a pass: with ZeRO-1 all that it splits, else what lies outside the layers,
    and two layers, one ahead."""
    if not config.fsdp:
        return copy * _numbers(layout, layout.tp, _sharded(layout))
    outside, layer = _fsdp_units(layout, layout.shapes)
    return copy * (outside + 2 * layer)


def _sharded(layout: ShardLayout) -> list[str]:
    """Return the parameters that FSDP splits."""
    return [name for name, spec in layout.specs.items() if "data" in spec]


def _fsdp_units(layout: ShardLayout, names: Iterable[str]) -> tuple[int, int]:
    """Return how many numbers FSDP gathers at once: (outside the layers, in the largest layer)."""
    layers: dict[str, list[str]] = {}
    for name in names:
        layers.setdefault(next((part for part in name.split(".") if part.isdecimal()), ""), []).append(name)
    outside = _numbers(layout, layout.tp, layers.pop("", []))
    return outside, max((_numbers(layout, layout.tp, some) for some in layers.values()), default=0)


def _gradients_during_pass(config: TrainConfig, layout: ShardLayout, traced: PassMemory, copy: int) -> int:
    """Return the bytes of gradients from earlier passes."""
    # accumulating, each replica keeps whole fp32 sums, `train.fsdp` a part; FSDP also the unit that it reduces. Of a
    # single pass, `peak` counts them
    several = config.accumulation > 1
    whole = FP32 * _numbers(layout, layout.tp, layout.states)
    if not _sharded(layout):
        return whole if several else 0
    parts = (FP32 if several or config.keeps_masters else copy) * _numbers(layout, layout.specs, layout.states)
    outside, layer = _fsdp_units(layout, layout.states)
    message = copy + FP32  # bytes of an element: in the dtype of the backward pass, and in fp32 to be sent
    in_layer = copy * outside + message * layer  # the head's gradient exists until the end of the pass
    at_end = parts + max(in_layer, message * outside) - traced.activations  # after the last activation
    earlier = (parts if config.fsdp else whole) if several else 0
    return max(in_layer + earlier, at_end)


def _optimizer_state(config: TrainConfig, layout: ShardLayout, masters: int) -> int:
    """Return the bytes of AdamW's moments, laid out as the masters; whole on every device those in 8 bits, or Adafactor's."""
    if config.optimizer == "adamw":
        return 2 * masters
    if config.optimizer == "adamw_8bit":
        wide = 2 * FP32 * max(math.prod(layout.shapes[name]) for name in layout.states)  # of the one being updated
        return wide + sum(bytes_8bit(layout.shapes[name]) for name in layout.states)
    shapes = (state_shapes(config.optimizer, layout.shapes[name]).values() for name in layout.states)
    return FP32 * sum(math.prod(shape) for some in shapes for shape in some)


def _gradients_at_update(config: TrainConfig, layout: ShardLayout, trained: list[str], copy: int) -> int:
    """Return the bytes of gradients at the update: as left, in fp32, and in messages over "data"."""
    wide = FP32 * _numbers(layout, layout.specs, trained)
    # already in fp32
    summed = config.engine == "native" and (config.accumulation > 1 or bool(fp32_shards(config, layout)))
    kept = wide if copy == FP32 or summed else wide + copy * _numbers(layout, layout.specs, trained)
    if config.engine == "xla":
        return kept + FP32 * _numbers(layout, layout.states, trained)
    if layout.mesh.data == 1:
        return kept
    return kept + FP32 * _numbers(layout, layout.specs, [name for name in trained if "data" not in layout.states[name]])


def _remedies(config: TrainConfig, memory: Memory) -> list[str]:
    """Return the settings that would lower the estimate, the most helpful first."""
    remedies = []
    if memory.activations:
        if config.replica_batch > 1:
            remedies.append(f"lower train.micro_batch (it is {config.replica_batch}; the rest is accumulated)")
        if not config.remat:
            remedies.append("set train.remat=true")
    sharded = config.zero1 or config.fsdp
    if config.data_parallel > 1 and not sharded:
        fully = ", or all with train.fsdp=true" if config.engine == "native" else ""
        remedies.append(f"shard the optimizer's state with train.zero1=true{fully}")
    remedies.append("split the model over more devices with train.tensor_parallel_size")
    if config.dtype == "float32" and memory.activations > memory.optimizer:
        narrow = "bfloat16, or float16 on a GPU without it" if config.engine == "native" else "bfloat16"
        remedies.append(f"compute in train.dtype={narrow}")
    if config.lora is not None and config.lora.base_dtype is None and config.engine == "native" and not config.fsdp:
        remedies.append("keep the frozen weights in 4 bits with train.lora.base_dtype=nf4")
    remedies.append("train fewer parameters (LoRA), or take a smaller model")
    return remedies
