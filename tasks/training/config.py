"""`TrainConfig`: all settings of training, and the checks across groups.

Apart from `trnflow.tasks.train`: precompile uses the config too, and its key must not hold the loop's code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from pydantic import model_validator

from trnflow.tasks.artifact import Meta, Source
from trnflow.tasks.errors import ModelError
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.system.devices import cores
from trnflow.tasks.training.device_kinds import KINDS
from trnflow.tasks.training.partition_specs import check_heads
from trnflow.tasks.training.preference_losses import PREFERENCES
from trnflow.tasks.training.settings.batch import BatchSettings
from trnflow.tasks.training.settings.computation import ComputationSettings
from trnflow.tasks.training.settings.evaluation import EvaluationSettings, SavingSettings
from trnflow.tasks.training.settings.method import MethodSettings
from trnflow.tasks.training.settings.objective import ObjectiveSettings
from trnflow.tasks.training.settings.optimization import OptimizerSettings, ScheduleSettings
from trnflow.tasks.training.settings.parallel import ParallelSettings

OWN_LOSS = "trnflow.tasks.training.own_loss"
"""Named, not imported: it is in the keys of trainings with a loss of the user's alone."""

# Keys of `config.json` that say that weights are quantised: read without their scales, such weights are other numbers.
QUANTISED = ("quantization_config", "compression_config")


class TrainConfig(
    SavingSettings,  # pydantic lists the fields of the last base class first
    EvaluationSettings,
    ObjectiveSettings,
    ScheduleSettings,
    OptimizerSettings,
    ComputationSettings,
    BatchSettings,
    ParallelSettings,
    MethodSettings,
):
    """The settings below `train:` in a recipe.

    The base classes are groups of settings. All names are on one level, such as `train.learning_rate`."""

    @property
    def share(self) -> int:
        """Rows of a replica in each update."""
        return self.global_batch // self.data_parallel

    @property
    def replica_batch(self) -> int:
        """Rows of a replica in one forward pass. `micro_batch: auto` must have been replaced (`with_micro_batch`)."""
        assert self.micro_batch != "auto", "precompile decides what auto is"
        return self.micro_batch or self.share

    @property
    def micro_rows(self) -> int:
        """Rows in one forward pass, over all replicas."""
        return self.replica_batch * self.data_parallel

    @property
    def accumulation(self) -> int:
        """The number of forward passes whose gradients are summed for one update."""
        return self.global_batch // self.micro_rows

    def with_micro_batch(self, micro_batch: int) -> TrainConfig:
        """Return the config with `micro_batch: auto` replaced; without `auto` itself."""
        return self.model_copy(update={"micro_batch": micro_batch}) if self.micro_batch == "auto" else self

    def with_own_loss(self, code: Source | None, **given: Any) -> TrainConfig:
        """Return the config with the function that `loss` names, in `code`, proved and imported; without it as it is."""
        return import_module(OWN_LOSS).imported(self, code, **given) if code else self

    @property
    def shape_unit(self) -> tuple[int, int] | None:
        """(rows, positions) to whose multiples trimmed batches are rounded up; None if compiled graphs need one shape."""
        if self.engine == "xla" or self.compile:
            return None
        positions = self.tensor_parallel_size if self.sequence_parallel else 1
        return self.data_parallel, math.lcm(positions, KINDS[self.device].positions)

    @property
    def resolved_threads(self) -> int:
        """CPU threads of each process: `threads`, or the available cores divided by the processes."""
        return self.threads or max(1, cores() // ranks(self))

    @model_validator(mode="after")
    def _check_batch(self) -> TrainConfig:
        micro = self.micro_batch if isinstance(self.micro_batch, int) else 1
        unit = micro * self.data_parallel
        if self.global_batch % unit:
            raise ValueError(
                f"global_batch ({self.global_batch}) must be a multiple of micro_batch x data parallel "
                f"({micro} x {self.data_parallel} = {unit})"
            )
        return self

    @model_validator(mode="after")
    def _check_engine(self) -> TrainConfig:
        """Raise ValueError for settings that the engine or device does not support."""
        if self.engine == "native" and self.compile and self.tensor_parallel_size > 1:
            raise ValueError("compile is for whole layers: set tensor_parallel_size=1, or compile=false")
        if self.compile_cache and not self.compile:
            raise ValueError("compile_cache keeps torch.compile's cache: set compile=true")
        if self.loss and self.by_neuronx_cc:
            raise ValueError("loss is for device cpu and cuda: another program compiles the graphs of neuron")
        if self.engine == "xla" and self.objective in PREFERENCES and PREFERENCES[self.objective].marked:
            raise ValueError(
                f"objective={self.objective} is for engine native: the mean over mismatched answers takes passes of its own; "
                "set engine=native"
            )
        if self.engine != "xla" and self.compiler_flags:
            raise ValueError("compiler_flags is for engine xla: set compiler_flags=[], or engine=xla")
        if self.engine == "xla" and not self.deterministic:
            raise ValueError(
                "deterministic=false is for engine native: leave train.deterministic out, or set engine=native"
            )
        if self.engine == "xla" and self.compile:
            raise ValueError("compile is torch.compile, for engine native; engine xla always compiles")
        if self.dtype == "float16" and self.engine == "xla":
            raise ValueError("dtype=float16 is for engine native: set dtype=bfloat16, or engine=native")
        if self.attention == "documents" and (self.engine == "xla" or self.device != "cpu" or self.compile):
            raise ValueError(
                "attention=documents is for engine native on device cpu, without compile: set attention=sdpa"
            )
        if self.attention == "varlen" and (self.device, self.dtype) != ("cuda", "bfloat16"):
            raise ValueError("attention=varlen is for device cuda with dtype=bfloat16: set attention=sdpa")
        check_processes(self)
        _check_quantised(self)
        _check_8bit(self)
        if self.ema_decay is not None and self.stochastic_rounding:
            raise ValueError("ema_decay averages fp32 weights, and stochastic_rounding keeps none: leave one out")
        if self.ema_decay is not None and self.zero1 and self.xla_processes == "per_device" and self.engine == "xla":
            raise ValueError(
                "ema_decay with zero1 is for one process (xla_processes=one): of several each has a part of the averages, and "
                "evaluates whole ones: set zero1=false, or leave ema_decay out"
            )
        if self.lora and self.lora.use_dora and self.tensor_parallel_size > 1:
            raise ValueError(
                "lora.use_dora measures whole rows of a weight, which tensor_parallel_size splits: leave one out"
            )
        return self


def ranks(config: TrainConfig) -> int:
    """Return the number of processes: one a device, or one with engine xla and `xla_processes: one`."""
    return config.devices if config.engine == "native" or config.xla_processes == "per_device" else 1


def check_model(config: TrainConfig, model: Source) -> None:
    """Raise ModelError when the model can't be trained with this config, judged by its config and digests alone."""
    known = model.identity["config"]
    for fields in (known["pretrained"] or {}, known["overrides"]):
        _check_not_quantised(fields, model)
    is_part = config.method != "full" or config.freeze
    if is_part and model.identity["weights"] is None and config.warm_start_from is None:
        raise ModelError(
            f"train.{'freeze' if config.freeze else f'method={config.method}'} trains a part of a pretrained model, and this one "
            "starts from scratch",
            "set model.source to a model with weights, or train.warm_start_from to one, or train.method=full without freeze",
        )
    check_heads({**(known["pretrained"] or {}), **known["overrides"]}, config.tensor_parallel_size)


def _check_not_quantised(fields: Meta, model: Source) -> None:
    """Raise ModelError if `fields` of a `config.json` name quantised weights (FP8, GPTQ, AWQ)."""
    for part in (fields, fields.get("text_config") or {}):
        entry = isinstance(part, dict) and next((part[key] for key in QUANTISED if part.get(key)), None)
        if entry:
            kind = entry.get("quant_method") if isinstance(entry, dict) else None
            place = model.location.get("model") or {}
            name = place.get("repo") or place.get("folder") or "model.config"
            raise ModelError(
                f"model.source: the weights of {name} are quantised (quantization_config: {kind or entry}), "
                "and training needs them in float32, bfloat16 or float16",
                "set model.source to the model from which they were quantised",
            )


def positions_needed(chunks: Mapping[str, Any]) -> int | None:
    """Return the most positions of a row; None before rows are known. chunks: metadata of pack_chunks, or what is foreseen."""
    if "lengths" not in chunks or "task" not in chunks:
        return None
    kind = kind_of(chunks["task"])
    longest: int = max(chunks["lengths"])
    if kind.per_row and not kind.apart:
        return longest
    # each document of a chunk has positions of its own
    limits = [chunks.get(name, longest) for name in ("longest", "max_length")]
    return min(longest, *limits) if "rows" in chunks else None


def check_positions(longest: int, positions: int, model: str) -> None:
    """Raise ModelError for rows of more tokens than the model has positions for."""
    if longest > positions:
        raise ModelError(
            f"rows of {longest} tokens, but {model} has {positions} positions",
            "lower tokenize.max_length and pack.chunk_length (or raise model.config.max_position_embeddings from scratch)",
        )


def _check_quantised(config: TrainConfig) -> None:
    """Raise ValueError when `lora.base_dtype` comes with a layout that splits the layers it quantises, or another engine."""
    kind = config.lora and config.lora.base_dtype
    if kind and config.engine != "native":
        raise ValueError(
            f"lora.base_dtype={kind} is for engine native: set engine=native, or leave lora.base_dtype out"
        )
    for name, harmful in (("fsdp", config.fsdp), ("tensor_parallel_size", config.tensor_parallel_size > 1)):
        if kind and harmful:
            raise ValueError(
                f"{name} splits the layers that lora.base_dtype={kind} quantises, which is not supported: leave {name} out "
                "(zero1 splits the optimizer's state), or lora.base_dtype"
            )


def _check_8bit(config: TrainConfig) -> None:
    """Raise ValueError when `optimizer: adamw_8bit` comes with what splits parameters, or another engine."""
    if config.optimizer != "adamw_8bit":
        return
    if config.engine != "native":
        raise ValueError("optimizer=adamw_8bit is for engine native: set engine=native, or optimizer=adafactor")
    harmful = {
        "zero1": config.zero1, "fsdp": config.fsdp, "tensor_parallel_size": config.tensor_parallel_size > 1,
        "stochastic_rounding": config.stochastic_rounding,
    }  # fmt: skip
    if name := next((name for name, is_set in harmful.items() if is_set), None):
        raise ValueError(
            f"optimizer=adamw_8bit keeps moments of whole fp32 parameters, and {name} is set: leave {name} out, or set "
            "optimizer=adamw"
        )


def check_processes(config: TrainConfig) -> None:
    """Raise ValueError when `xla_processes: per_device` comes with what it does not support."""
    if config.xla_processes == "one":
        return
    if config.engine != "xla":
        raise ValueError("xla_processes is for engine xla; engine native always has one process a device: leave it out")
    if config.device != "neuron":
        raise ValueError(
            "xla_processes=per_device is for device neuron: XLA's CPU client does not connect processes; set "
            "xla_processes=one, or engine=native"
        )
    way = "xla_processes=per_device, the default on device neuron,"
    spmd = "xla_processes=one (SPMD, experimental there)"
    if config.tensor_parallel_size > 1 or config.sequence_parallel:
        raise ValueError(
            f"{way} is data parallel only, and only SPMD splits layers: set tensor_parallel_size=1 and "
            f"sequence_parallel=false, or {spmd}"
        )
    if config.stochastic_rounding:
        raise ValueError(
            f"{way} rounds on each device separately, and copies of a weight would differ: set stochastic_rounding=false and "
            f"zero1=true, which splits the fp32 masters over the devices, or {spmd}"
        )
    if config.zero1 and config.optimizer == "adafactor":
        raise ValueError(
            f"{way} splits AdamW's state; Adafactor's is a row and a column of each matrix: set zero1=false, or {spmd}"
        )
