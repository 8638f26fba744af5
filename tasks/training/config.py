"""What a training run is asked for, which compilers and flags decide its graphs, and what its process needs around it.

Apart from `tasks.train`, so that `precompile`, which shares it, is not keyed by the code of the loop.
"""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from tasks.artifact import Meta, Source
from tasks.compilers import flags_around
from tasks.config import GRAPH, NOT_KEYED, StageConfig
from tasks.errors import ModelError
from tasks.training.lora import LoraConfig
from tasks.training.plan import SHARED, STYLES, check_heads

Fraction = Annotated[float, Field(ge=0, lt=1)]


class TrainConfig(StageConfig):
    """method: what is trained: all weights; LoRA's, which `lora` sets up, and a classifier's head; or the head alone, which is a
    classifier's, or a language model's output layer where that has weights of its own. All else is frozen: it has no gradient,
    no optimizer state and no fp32 master, and is read from model.source again. remat of a frozen body saves nothing.
    devices: in all, data parallel x tensor_parallel_size; global_batch: sequences per update; micro_batch: sequences per
    replica and forward pass (None: all of a replica's share at once; auto: as many as fit the device's memory, found by
    precompile); the rest of a global batch is accumulated.

    xla_processes: of engine xla: one process drives all devices (SPMD); or one each, data parallel alone, as torchrun starts them
    on device neuron (`replicas`).
    tensor_parallel_rules: layer ("*" for a number) -> style, such as "model.layers.*.self_attn.q_proj: colwise", instead of the
    model's own plan. zero1: the optimizer's state is sharded over the data axis; fsdp: parameters and gradients as well,
    gathered a layer at a time (fully sharded data parallel, engine native). remat: activations are computed again in the
    backward pass: of no layer (false), of each (true), or of every n-th (a number).
    max_steps: updates, instead of `epochs`. max_grad_norm: of all gradients together (None: no clipping).
    class_weights: what a target of each label counts in the loss: by its name (others 1), or "balanced": rows in all / (classes x
    rows of the class). Evaluation's loss is plain, without weights and smoothing.
    eval_every: evaluate after so many steps as well. keep_best: the result is the weights of the evaluation with the best
    `best_metric` (of the validation split, never of test), not the last. early_stopping_patience: stop after so many evaluations
    in a row that were not better than the best by more than `early_stopping_threshold`; it keeps the best.
    dtype: of the forward and backward pass; the weights that are updated, and their state, are fp32. stochastic_rounding: in
    bfloat16, no fp32 weights beside those that compute: an update is computed in fp32 and its result rounded to bfloat16, up or
    down with the odds of the distance, so that small updates are not lost. It saves 4 bytes a trained parameter; the state
    stays fp32. On device neuron the device itself rounds, which was never run here: see `environ`.
    learning_rate_batch: the global batch that `learning_rate` is for: it is scaled linearly to this one's (None: as it is).
    decay_ratio: the share of the steps after warm-up in which warmup_stable_decay falls, linearly, to 0. Adafactor takes neither
    betas nor eps.
    threads: of the CPU, per process (None: every core this one may use, shared among the ranks); another
    number changes the last bit.
    attention: how packed rows keep their documents apart: by a mask (sdpa), by attending to each document alone (documents,
    engine native on the CPU), or by a mask of blocks (flex: PyTorch's flex_attention, device cuda, never run yet). auto:
    documents for the families that are known to take it, else sdpa.
    compile: torch.compile, engine native alone. compile_cache: precompile keeps what it makes, and train takes it; PyTorch
    pickles it, so only in a store whose writers you trust.
    last_batch: what happens to an epoch's last rows, if they fill no batch: "pad" trains on them in a smaller one, "drop" leaves
    them out of that epoch. group_by_length: rows of about as many tokens share a batch, so that engine native, which without
    `compile` takes batches of any shape, pads less; the batches, which are the same on engine xla, are less random, and a short
    training ends worse (the demo's F1 0.50 instead of 0.58). Packed rows are all of a length.
    warm_start_from: begin with the weights of an earlier model in the store, of model.source's architecture: a digest of what
    `consolidate` or `train` made, or a recipe's name, of which the newest completed run counts.
    log_every, checkpoint_every: in steps. allow_recompile: go on with a graph that precompile did not list;
    allow_overcommit: go on though the memory estimate says that it does not fit. device_memory_gib: 2^30 bytes of each device
    (None: the hardware's `memory_gib`, else what is found).
    collective_timeout_seconds: how long a rank's host waits for the others; saving must take less.
    """

    method: Annotated[Literal["full", "lora", "head"], GRAPH] = "full"
    lora: Annotated[LoraConfig | None, GRAPH] = None
    engine: Annotated[Literal["xla", "native"], GRAPH] = "xla"
    device: Annotated[Literal["cpu", "cuda", "neuron"], GRAPH] = "cpu"
    devices: Annotated[PositiveInt, GRAPH] = 1
    xla_processes: Annotated[Literal["one", "per_device"], GRAPH] = "one"
    tensor_parallel_size: Annotated[PositiveInt, GRAPH] = 1
    tensor_parallel_rules: Annotated[dict[str, str], GRAPH] = {}
    zero1: Annotated[bool, GRAPH] = False
    fsdp: Annotated[bool, GRAPH] = False
    sequence_parallel: Annotated[bool, GRAPH] = False
    remat: Annotated[bool | PositiveInt, GRAPH] = False
    global_batch: Annotated[PositiveInt, GRAPH] = 32
    micro_batch: Annotated[PositiveInt | Literal["auto"] | None, GRAPH] = None
    dtype: Annotated[Literal["float32", "bfloat16"], GRAPH] = "float32"
    stochastic_rounding: Annotated[bool, GRAPH] = False
    attention: Annotated[Literal["auto", "sdpa", "documents", "flex"], GRAPH] = "auto"
    compile: Annotated[bool, GRAPH] = False
    compile_cache: Annotated[bool, GRAPH, NOT_KEYED] = False
    epochs: PositiveInt = 3
    max_steps: PositiveInt | None = None
    optimizer: Annotated[Literal["adamw", "adafactor"], GRAPH] = "adamw"
    learning_rate: PositiveFloat = 5e-5
    learning_rate_batch: PositiveInt | None = None
    schedule: Literal["linear", "cosine", "constant", "warmup_stable_decay"] = "linear"
    warmup_ratio: Fraction = 0.0
    decay_ratio: Annotated[float, Field(gt=0, le=1)] = 0.1
    weight_decay: NonNegativeFloat = 0.01
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    eps: PositiveFloat = 1e-8
    max_grad_norm: PositiveFloat | None = 1.0
    label_smoothing: Annotated[Fraction, GRAPH] = 0.0
    class_weights: Literal["balanced"] | dict[str, PositiveFloat] | None = None
    seed: NonNegativeInt = 0
    last_batch: Literal["drop", "pad"] = "pad"
    group_by_length: bool = False
    eval_every_epoch: bool = True
    eval_every: PositiveInt | None = None
    best_metric: Literal["eval_loss", "eval_accuracy"] = "eval_loss"
    keep_best: bool = False
    early_stopping_patience: PositiveInt | None = None
    early_stopping_threshold: NonNegativeFloat = 0.0
    warm_start_from: Annotated[str | None, NOT_KEYED] = None  # the artifact it names is an input
    threads: Annotated[PositiveInt | None, NOT_KEYED] = None  # its resolved value is keyed, through `accelerator`
    log_every: Annotated[PositiveInt, NOT_KEYED] = 10
    checkpoint_every: Annotated[PositiveInt, NOT_KEYED] = 500
    keep_checkpoints: Annotated[PositiveInt, NOT_KEYED] = 2
    allow_recompile: Annotated[bool, NOT_KEYED] = False
    allow_overcommit: Annotated[bool, NOT_KEYED] = False
    device_memory_gib: Annotated[PositiveFloat | None, NOT_KEYED] = None  # decides `auto`, whose result is keyed
    collective_timeout_seconds: Annotated[PositiveInt, NOT_KEYED] = 600

    @property
    def data_parallel(self) -> int:
        return self.devices // self.tensor_parallel_size

    @property
    def share(self) -> int:
        """Sequences per replica and update."""
        return self.global_batch // self.data_parallel

    def settled(self, micro_batch: int) -> TrainConfig:
        """With what precompile found for auto; what a recipe says itself stays."""
        return self.model_copy(update={"micro_batch": micro_batch}) if self.micro_batch == "auto" else self

    @property
    def replica_batch(self) -> int:
        """Sequences per replica and forward pass; of micro_batch auto not known before precompile (see `settled`)."""
        assert self.micro_batch != "auto", "precompile says what auto is"
        return self.micro_batch or self.share

    @property
    def micro_rows(self) -> int:
        """Sequences per forward pass, all replicas together."""
        return self.replica_batch * self.data_parallel

    @property
    def accumulation(self) -> int:
        """Forward passes per update."""
        return self.global_batch // self.micro_rows

    @property
    def shape_unit(self) -> tuple[int, int] | None:
        """(rows, positions) of which batches may be any multiple; None where graphs fix their shapes. Tensor cores take positions
        by eights."""
        if self.engine == "xla" or self.compile:
            return None
        positions = self.tensor_parallel_size if self.sequence_parallel else 1
        return self.data_parallel, math.lcm(positions, 8 if self.device == "cuda" else 1)

    @property
    def keeps_masters(self) -> bool:
        """Whether the updated weights are kept in fp32, beside those that compute."""
        return self.dtype == "bfloat16" and not self.stochastic_rounding

    @property
    def keeps_best(self) -> bool:
        return self.keep_best or self.early_stopping_patience is not None

    @property
    def resolved_threads(self) -> int:
        return self.threads or max(1, _cores() // ranks(self))

    @field_validator("tensor_parallel_rules")
    @classmethod
    def _knows_styles(cls, value: dict[str, str]) -> dict[str, str]:
        for pattern, style in value.items():
            if style not in STYLES or style == SHARED:
                known = sorted(STYLES.keys() - {SHARED})
                raise ValueError(f"{style!r} of {pattern} is no style: it is one of {', '.join(known)}")
        return value

    @model_validator(mode="before")
    @classmethod
    def _spells_out_lora(cls, values: Any) -> Any:
        """LoRA without settings has their defaults, so that both ways of writing it are one key."""
        if isinstance(values, dict) and values.get("method") == "lora" and values.get("lora") is None:
            return {**values, "lora": {}}
        return values

    @model_validator(mode="after")
    def _lora_is_meant(self) -> TrainConfig:
        if self.lora is not None and self.method != "lora":
            raise ValueError(f"lora is set, and method is {self.method}: set method=lora, or lora=null")
        return self

    @model_validator(mode="after")
    def _divides(self) -> TrainConfig:
        if self.devices % self.tensor_parallel_size:
            raise ValueError(
                f"devices ({self.devices}) must be a multiple of tensor_parallel_size ({self.tensor_parallel_size})"
            )
        micro = self.micro_batch if isinstance(self.micro_batch, int) else 1
        unit = micro * self.data_parallel
        if self.global_batch % unit:
            raise ValueError(
                f"global_batch ({self.global_batch}) must be a multiple of micro_batch x data parallel "
                f"({micro} x {self.data_parallel} = {unit})"
            )
        return self

    @model_validator(mode="after")
    def _fits_engine(self) -> TrainConfig:
        if self.sequence_parallel and self.tensor_parallel_size == 1:
            raise ValueError(
                "sequence_parallel shards activations over the tensor parallel axis: set tensor_parallel_size > 1"
            )
        if self.engine == "native" and self.compile and self.devices > 1:
            raise ValueError("compile is for one device as yet: set devices=1, or compile=false")
        if self.compile_cache and not self.compile:
            raise ValueError("compile_cache is of torch.compile: set compile=true")
        if self.engine == "native" and self.device == "neuron":
            raise ValueError("engine native does not drive device neuron: set engine=xla")
        if self.engine == "xla" and self.device == "cuda":
            raise ValueError("engine xla drives cpu and neuron here: set engine=native for device cuda")
        if self.engine == "xla" and self.compile:
            raise ValueError("compile is torch.compile, for engine native; engine xla always compiles")
        if self.attention == "documents" and (self.engine == "xla" or self.device != "cpu" or self.compile):
            raise ValueError(
                "attention=documents is for engine native on device cpu, without compile: set attention=sdpa"
            )
        if self.attention == "flex" and self.device != "cuda":
            raise ValueError("attention=flex is for device cuda: set attention=sdpa")
        return self

    @model_validator(mode="after")
    def _rounds_what_is_narrow(self) -> TrainConfig:
        if self.stochastic_rounding and self.dtype != "bfloat16":
            raise ValueError(
                f"stochastic_rounding keeps the weights in bfloat16, and dtype is {self.dtype}: set dtype=bfloat16, or "
                "stochastic_rounding=false"
            )
        return self

    @model_validator(mode="after")
    def _spreads_processes(self) -> TrainConfig:
        if self.xla_processes == "one":
            return self
        if self.engine != "xla":
            raise ValueError(
                "xla_processes is of engine xla; engine native has a process a device anyway: leave it out"
            )
        if self.device != "neuron":
            raise ValueError(
                "xla_processes=per_device is for device neuron: on XLA's CPU client each process is a world of one; set "
                "xla_processes=one, or engine=native"
            )
        if self.tensor_parallel_size > 1 or self.sequence_parallel:
            raise ValueError(
                "xla_processes=per_device is data parallel alone, and layers are split by SPMD: set tensor_parallel_size=1 "
                "and sequence_parallel=false, or xla_processes=one"
            )
        if self.stochastic_rounding:
            raise ValueError(
                "xla_processes=per_device rounds on each device for itself, and copies would drift apart: set "
                "stochastic_rounding=false and zero1=true, with which the fp32 masters are shared out"
            )
        if self.zero1 and self.optimizer == "adafactor":
            raise ValueError(
                "xla_processes=per_device splits AdamW's state; Adafactor's is a row and a column of each matrix: set "
                "zero1=false, or xla_processes=one"
            )
        return self

    @model_validator(mode="after")
    def _shards_once(self) -> TrainConfig:
        if self.fsdp and self.engine == "xla":
            raise ValueError("fsdp is for engine native: set engine=native, or zero1 instead")
        if self.fsdp and self.zero1:
            raise ValueError("fsdp shards the optimizer's state too: set zero1=false")
        if self.fsdp and self.data_parallel == 1:
            raise ValueError("fsdp shards over the data axis, which has one device here: set devices higher")
        return self


def ranks(config: TrainConfig) -> int:
    """Processes that train together: engine native takes one a device, engine xla as `xla_processes` says."""
    return config.devices if config.engine == "native" or config.xla_processes == "per_device" else 1


def check_model(config: TrainConfig, model: Source) -> None:
    """ModelError where the method or the layout can be seen not to fit the model, long before training: what its config
    leaves to defaults is looked at when it is built."""
    known = model.identity["config"]
    if config.method != "full" and model.identity["weights"] is None and config.warm_start_from is None:
        raise ModelError(
            f"train.method={config.method} trains a part of a pretrained model, and this one starts from scratch",
            "set model.source to a model with weights, or train.warm_start_from to one, or train.method=full",
        )
    check_heads({**(known["pretrained"] or {}), **known["overrides"]}, config.tensor_parallel_size)


def compiler(config: TrainConfig) -> Meta:
    """What decides a graph besides config and shapes: the device's kind, what traces and compiles (the key document takes
    their versions), and flags."""
    packages = ["torch", "transformers"]
    if config.engine == "xla":
        packages += ["torch-xla"] + (["neuronx-cc"] if config.device == "neuron" else [])
    return {
        "device": _device_kind(config),
        "versions": packages,
        "flags": flags_around() if config.engine == "xla" else {},
    }


def accelerator(config: TrainConfig) -> Meta:
    """What decides the last bit of a result besides config and inputs."""
    return {**compiler(config), "threads": config.resolved_threads}


def environ(config: TrainConfig) -> dict[str, str]:
    """Variables that torch, XLA and malloc read as they start.

    Of stochastic rounding on device neuron: `NEURON_RT_STOCHASTIC_ROUNDING_EN=1` makes the device round each of its casts from
    fp32 so, those of the forward and backward pass too, and the graph has a plain cast. The seed is set for repeats; the device
    does not tell how many bits it has drawn, so a resumed run is not the same to the bit, nor is it known whether copies of a
    weight on several cores stay alike: with `zero1` each part of most weights is rounded on one core and sent to the others. As
    AWS documents it (PyTorch Neuron environment variables); never run here."""
    threads = str(config.resolved_threads)
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    variables = {**dict.fromkeys(names, threads), "TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_VERBOSITY": "error"}
    if config.engine == "native":
        # short spins: on a machine that others use too, waiting for a descheduled thread costs four times the work;
        # and activations come and go by the megabyte: keep the pages rather than fault them in again at every step
        memory = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
        if config.device == "cuda":
            memory["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # else its products may differ from run to run
        return {**variables, **memory, "GOMP_SPINCOUNT": "1000", "USE_TORCH_XLA": "0"}
    if config.device == "neuron":
        variables |= {"PJRT_DEVICE": "NEURON", "MALLOC_ARENA_MAX": "64"}
        if config.stochastic_rounding:
            variables["NEURON_RT_STOCHASTIC_ROUNDING_EN"] = "1"
            variables["NEURON_RT_STOCHASTIC_ROUNDING_SEED"] = str(config.seed % 2**32)
        # each of several processes has its own core, by its LOCAL_RANK: torch_xla sees to it
        return {**variables, "NEURON_RT_NUM_CORES": str(config.devices)} if ranks(config) == 1 else variables
    return {**variables, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(config.devices)}


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _device_kind(config: TrainConfig) -> str:
    if config.device != "cuda":
        return f"{config.device} {platform.machine()}"
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        return next(
            (line.partition(":")[2].strip() for line in file.read_text().splitlines() if "Model:" in line), "cuda"
        )
    return "cuda"
