"""Settings: how a step is computed: numbers, kernels, compilers, memory."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import field_validator, model_validator

from trnflow.tasks.config import GRAPH, NOT_KEYED, RUNS_CODE, Positive, PositiveCount
from trnflow.tasks.system.compiler_flags import check_flags
from trnflow.tasks.training.settings.group import Group


class ComputationSettings(Group):
    """How a step is computed: numbers, kernels, compilers and memory. One of the groups of settings below `train:`."""

    dtype: Annotated[Literal["float32", "bfloat16", "float16"], GRAPH] = "float32"
    """The type of the forward and backward pass. Updated weights and optimizer state are fp32 (see stochastic_rounding).
    float16 (engine native) scales the loss, for GPUs without bfloat16, such as a T4."""

    stochastic_rounding: Annotated[bool, GRAPH] = False
    """With dtype=bfloat16: keep no fp32 weights. Compute each update in fp32 and round it to bfloat16 up or down at random, so
    that small updates are not lost on average. Saves 4 bytes a trained parameter. On Neuron the device does the
    rounding; this has never run there."""

    remat: Annotated[bool | PositiveCount, GRAPH] = False
    """Activation checkpointing: compute activations again in the backward pass, of no layer (false), of each (true), or of
    every n-th (a number)."""

    attention: Annotated[Literal["auto", "sdpa", "documents", "varlen"], GRAPH] = "auto"
    """How the documents of a packed row are kept apart. sdpa: by a mask. documents: attend to each document by itself (engine
    native on the CPU). varlen: likewise, by PyTorch's kernel for documents of any lengths (device cuda, bfloat16, torch 2.11 or
    later). auto: the fastest of them for model families that are known to support it, else sdpa."""

    compile: Annotated[bool, GRAPH] = False
    """Run torch.compile for each layer (engine native, data parallel, also with zero1 and fsdp)."""

    compile_cache: Annotated[bool, GRAPH, NOT_KEYED, RUNS_CODE] = False
    """Keep torch.compile's cache in precompile's artifact, one for each device, and read it in train, which then compiles
    nothing. PyTorch pickles this cache: use it only with a store whose writers you trust."""

    compiler_flags: Annotated[tuple[str, ...], GRAPH, RUNS_CODE] = ()
    """Engine xla: flags for neuronx-cc (device neuron) or XLA (device cpu), added after those in NEURON_CC_FLAGS or XLA_FLAGS."""

    deterministic: Annotated[bool, GRAPH] = True
    """Engine native: use only kernels whose results do not vary from run to run, and fail where the device has none. They cost
    time on cuda (6 % for a Llama of 1.1 B on an H100). Without them a resumed training may differ in the last bits."""

    # not part of the key: it only affects `micro_batch: auto`, whose result is part of the key
    device_memory_gib: Annotated[Positive | None, NOT_KEYED] = None
    """Memory of each device in GiB (2^30 bytes). Default: the hardware's `memory_gib`, else what is found."""

    allow_overcommit: Annotated[bool, NOT_KEYED] = False
    """Train although the memory estimate says that it does not fit the device."""

    allow_recompile: Annotated[bool, NOT_KEYED] = False
    """Compile a graph that precompile did not list, instead of failing."""

    @property
    def keeps_masters(self) -> bool:
        """Whether the optimizer updates fp32 masters."""
        return self.dtype != "float32" and not self.stochastic_rounding

    @field_validator("compiler_flags")
    @classmethod
    def _check_flags(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        check_flags(value)
        return value

    @model_validator(mode="after")
    def _check_rounding(self) -> ComputationSettings:
        if self.stochastic_rounding and self.dtype != "bfloat16":
            raise ValueError(
                f"stochastic_rounding keeps the weights in bfloat16, and dtype is {self.dtype}: set dtype=bfloat16, or "
                "stochastic_rounding=false"
            )
        return self
