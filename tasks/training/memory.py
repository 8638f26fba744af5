"""What training holds on one device at its peak, estimated from shapes, specs and the config: pure functions, no torch.

Two moments compete: the turn from the forward to the backward pass, when all that the backward pass reads is there, and the
update, when all gradients are. Between them activations go as gradients come. What each holds is what the engines write
down: engine native's copies are counted line by line (`native`, `exchange`, `collectives`); engine xla's buffers are XLA's to
arrange, so there it is the same count without its fusions. On the CPU the worker's heap keeps what is freed and can't fill
every hole again: a process may hold a third more than is counted here, with remat more than half (`bench_train_memory --heap`).

An operation keeps for the backward pass what its derivative needs (PyTorch's derivatives.yaml): a product its two factors, a
linear layer its input, softmax its output. Korthikanti et al. 2022 (arXiv 2205.05198, section 4) count a transformer's layer
the same way, with fewer roundings up: there norms keep one tensor, and here RMSNorm, written out, keeps three.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import NamedTuple

from tasks.artifact import Meta
from tasks.errors import ModelError
from tasks.training.config import TrainConfig
from tasks.training.families import Anatomy
from tasks.training.layout import Layout, held
from tasks.training.optim import state_shapes
from tasks.training.plan import Spec

GIB = 1 << 30
FP32 = 4
SCORES = 3 * FP32  # bytes a logit: its log probability, and the gradients on both sides of log softmax, at once
RUNTIME = {"cpu": 0.7 * GIB, "cuda": 0.6 * GIB, "neuron": 1.0 * GIB}
"""Before there is a model: torch and transformers in a process (0.73 GiB measured on Linux); CUDA's context and cuBLAS's
workspaces, and what Neuron's runtime takes of a core: rules of thumb, not measured here."""


class Passing(NamedTuple):
    """One forward and backward pass over a micro batch, bytes a device. alone: at most, gradients of parameters left out; fresh:
    at most, with the gradients that are there by then, when none were before; gradients: what these are of it."""

    alone: int
    fresh: int
    gradients: int = 0


@dataclass(frozen=True)
class Memory:
    """Bytes a device at the peak, which is during `at`. parameters: those that compute, and fp32 masters, if
    there are any; gradients: and what
    exchanging them takes; activations: of a whole micro batch; runtime: before there is a model."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    runtime: int
    at: str

    @property
    def total(self) -> int:
        return self.parameters + self.gradients + self.optimizer + self.activations + self.runtime

    def to_json(self) -> Meta:
        return {**asdict(self), "total": self.total}

    def __str__(self) -> str:
        parts = [(name, value) for name, value in asdict(self).items() if isinstance(value, int)]
        return ", ".join(f"{name} {gib(value)}" for name, value in parts if value >= GIB / 20)


def gib(size: float) -> str:
    return f"{size / GIB:.1f}"


def estimate(config: TrainConfig, layout: Layout, passing: Passing) -> Memory:
    """What is not trained has neither gradient nor state."""
    copy = 2 if config.dtype == "bfloat16" else FP32
    trained = [*layout.states]
    resting = copy * _numbers(layout, layout.specs, layout.shapes) + _gathered(config, layout, copy)
    state = FP32 * _numbers(layout, layout.states, trained)
    split = any(layout.states[name] != layout.specs[name] for name in trained)
    apart = config.keeps_masters or (split and not config.stochastic_rounding)
    parameters, optimizer = resting + (state if apart else 0), _kept(config, layout, state)
    waiting = _accumulated(config, layout, trained, copy) if config.accumulation > 1 else 0
    updating = _updating(config, layout, trained, copy)
    sharing = config.devices if config.device == "cpu" and config.engine == "xla" else 1  # virtual ones, of one process
    runtime = int(RUNTIME[config.device]) // sharing
    peak = waiting + passing.alone if waiting else passing.fresh
    if peak >= updating:
        gradients = waiting or passing.gradients
        return Memory(parameters, gradients, optimizer, peak - gradients, runtime, "the backward pass")
    return Memory(parameters, updating, optimizer, 0, runtime, "the update")


def check_memory(config: TrainConfig, memory: Memory, limit: int | None) -> None:
    """limit: bytes a device has, None where nobody says. ModelError when training needs more."""
    if limit is None or memory.total <= limit or config.allow_overcommit:
        return
    raise ModelError(
        f"training needs about {gib(memory.total)} GiB on each device, which has {gib(limit)} "
        f"({memory}; at its peak in {memory.at})",
        f"{'; '.join(_remedies(config, memory))}; or, if the estimate is wrong, train.allow_overcommit=true",
    )


def activations(anatomy: Anatomy, config: TrainConfig, rows: int, length: int) -> Passing:
    """rows: of one device in a pass; length: tokens a row."""
    size = _Sizes.of(anatomy, config, length)
    tokens = rows * length
    again = range(int(config.remat) - 1, anatomy.layers, int(config.remat)) if config.remat else ()
    kept = (anatomy.layers - len(again)) * size.layer + len(again) * size.resumed + size.around
    at_turn = tokens * max(size.logits, size.backward)
    in_layer = tokens * (size.layer + size.backward) if len(again) else 0
    mask = rows * length * (length if anatomy.causal else 1) * size.number
    peak = int(tokens * kept + max(at_turn, in_layer) + mask)
    return Passing(peak, peak)


@dataclass(frozen=True)
class _Sizes:
    """Bytes a token. number: of one number; layer: what a layer keeps; resumed: what it keeps that is computed again; around:
    what is kept before and behind the layers; logits, backward: what the loss and a layer's backward pass take beyond, of which
    the second frees about what it takes."""

    number: int
    layer: float
    resumed: float
    around: float
    logits: float
    backward: float

    @classmethod
    def of(cls, anatomy: Anatomy, config: TrainConfig, length: int) -> _Sizes:
        number = 2 if config.dtype == "bfloat16" else FP32
        split = config.tensor_parallel_size
        stream = 1 / split if config.sequence_parallel else 1.0  # of a token's residual stream, what this device holds
        width = anatomy.width * number
        if config.compile:
            layer, around = _fused(anatomy, config, number), 3 * width
        elif anatomy.gated:
            norm = stream * (FP32 * anatomy.width + 2 * width) + (width if stream < 1 else 0)
            heads, around = _attention(anatomy, config, number, length) / split, 3 * width + 2 * anatomy.head * number
            layer = 2 * norm + heads + 4 * anatomy.inner * number / split
        else:
            noise = _noise(config, number) * anatomy.width
            layer = stream * (4 * width + anatomy.dropouts * noise) + (2 * width if stream < 1 else 0)
            layer += _attention(anatomy, config, number, length) / split + 2 * anatomy.inner * number / split
            around = 3 * width + (noise if anatomy.dropouts else 0)
        logits = anatomy.vocabulary * (2 * number if config.compile else SCORES)
        return cls(number, layer, stream * width, around, logits, 2 * width)


def _attention(anatomy: Anatomy, config: TrainConfig, number: int, length: int) -> float:
    """Bytes a token that all heads keep: queries, keys, values and result, and either one number a head (flash attention) or the
    weights themselves, with dropout three times, always in fp32."""
    wide = anatomy.heads * anatomy.head
    norms = (FP32 + number) * (wide + anatomy.key_heads * anatomy.head) if anatomy.head_norms else 0
    if not _written_out(anatomy, config):
        return norms + 4 * wide * number + FP32 * anatomy.heads
    return norms + wide * (3 * FP32 + number) + FP32 * anatomy.heads * length * (3 if anatomy.attention_dropout else 1)


def _written_out(anatomy: Anatomy, config: TrainConfig) -> bool:
    """Whether attention's weights are written to memory: by XLA; on the CPU, whose flash attention knows no dropout; elsewhere
    they never are."""
    return config.engine == "xla" or (config.device == "cpu" and anatomy.attention_dropout)


def _noise(config: TrainConfig, number: int) -> int:
    """Bytes a number that dropout keeps: a mask, on the CPU its factors."""
    return number if config.device == "cpu" else 1


def _fused(anatomy: Anatomy, config: TrainConfig, number: int) -> float:
    """A layer under torch.compile, which keeps what products read and make and computes the rest again."""
    wide = anatomy.heads * anatomy.head
    inner = anatomy.inner * (2 if anatomy.gated else 1)
    return number * (2 * anatomy.width + 4 * wide + inner)


def _numbers(layout: Layout, specs: Mapping[str, Spec], names: Iterable[str]) -> int:
    """How many a device holds of them."""
    return sum(math.prod(held(layout.shapes[name], specs[name], layout.mesh)) for name in names)


def _gathered(config: TrainConfig, layout: Layout, copy: int) -> int:
    """Bytes of the parameters that FSDP has whole at once: those outside the layers all along, and two layers, for the next is
    on its way."""
    if not config.fsdp:
        return 0
    layers: dict[str, list[str]] = {}
    for name in layout.shapes:
        layers.setdefault(next((part for part in name.split(".") if part.isdecimal()), ""), []).append(name)
    outside = _numbers(layout, layout.tp, layers.pop("", []))
    return copy * (outside + 2 * max((_numbers(layout, layout.tp, names) for names in layers.values()), default=0))


def _kept(config: TrainConfig, layout: Layout, state: int) -> int:
    """Bytes of the optimizer's state: of AdamW two moments, laid out as the masters, which take `state`; Adafactor's is whole."""
    if config.optimizer == "adamw":
        return 2 * state
    shapes = (state_shapes(config.optimizer, layout.shapes[name]).values() for name in layout.states)
    return FP32 * sum(math.prod(shape) for some in shapes for shape in some)


def _accumulated(config: TrainConfig, layout: Layout, trained: Iterable[str], copy: int) -> int:
    """Bytes of the gradients that wait for the passes still to come: of engine xla in fp32, laid out as the state; whole where
    each device has a process, for those exchange them once an update."""
    if config.engine == "xla":
        return FP32 * _numbers(layout, layout.states if config.xla_processes == "one" else layout.tp, trained)
    return copy * _numbers(layout, layout.tp, trained)


def _updating(config: TrainConfig, layout: Layout, trained: list[str], copy: int) -> int:
    """Bytes of all gradients at the update: as they came, in fp32, and in the messages that sum them over "data"."""
    own = copy * _numbers(layout, layout.specs, trained)
    wide = FP32 * _numbers(layout, layout.specs, trained)
    found = own + (wide if copy < FP32 else 0)
    if config.engine == "xla":
        return (own if config.xla_processes == "one" else found) + FP32 * _numbers(layout, layout.states, trained)
    if layout.mesh.data == 1:
        return found
    split = [name for name in trained if layout.states[name] != layout.specs[name]]
    whole = [name for name in trained if "data" not in layout.states[name]]
    sent = FP32 * _numbers(layout, layout.specs, [*split, *whole])
    return found + sent + FP32 * _numbers(layout, layout.states, split)


def _remedies(config: TrainConfig, memory: Memory) -> list[str]:
    """What would lower the estimate, by how much it may help."""
    found = []
    if memory.activations:
        if config.replica_batch > 1:
            found.append(f"lower train.micro_batch (it is {config.replica_batch}; the rest is accumulated)")
        if not config.remat:
            found.append("set train.remat=true")
    sharded = config.zero1 or config.fsdp
    if config.data_parallel > 1 and not sharded:
        fully = ", or all with train.fsdp=true" if config.engine == "native" else ""
        found.append(f"shard the optimizer's state with train.zero1=true{fully}")
    found.append("split the model over more devices with train.tensor_parallel_size")
    if config.dtype == "float32" and memory.activations > memory.optimizer:
        found.append("compute in train.dtype=bfloat16")
    found.append("train fewer parameters (LoRA), or take a smaller model")
    return found
