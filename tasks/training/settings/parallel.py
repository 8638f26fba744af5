"""Settings: the devices, and how a training is spread over them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from trnflow.tasks.config import GRAPH, NOT_KEYED, ORDERED, Parallel
from trnflow.tasks.training.partition_specs import SHARED, STYLES, Mesh
from trnflow.tasks.training.settings.group import Group

Processes = Literal["one", "per_device"]


class ParallelSettings(Group):
    """The devices that train, and how model, state and batch are spread over them. One of the groups of settings below
    `train:`."""

    engine: Annotated[Literal["xla", "native"], GRAPH] = "xla"
    """xla: torch_xla's compiled graphs, on devices cpu and neuron. native: PyTorch with one process a device, on cpu and cuda,
    and on neuron where a package adds that to torch (never run on a chip)."""

    device: Annotated[Literal["cpu", "cuda", "neuron"], GRAPH] = "cpu"
    """The kind of device."""

    devices: Annotated[Parallel, GRAPH] = 1
    """The number of devices in all: data parallel replicas x tensor_parallel_size."""

    tensor_parallel_size: Annotated[Parallel, GRAPH] = 1
    """Devices that share one replica of the model, each with a part of every split layer."""

    tensor_parallel_rules: Annotated[dict[str, str], GRAPH, ORDERED] = {}
    """How layers are split, from a pattern of layer names ("*" for one part of the name) to a style, such as
    "model.layers.*.self_attn.q_proj: colwise". Default: the plan that transformers, or trnflow, has for the model."""

    sequence_parallel: Annotated[bool, GRAPH] = False
    """Split the activations between layers by position over the tensor parallel devices."""

    zero1: Annotated[bool, GRAPH] = False
    """Split the optimizer's state over the data parallel replicas (ZeRO-1)."""

    fsdp: Annotated[bool, GRAPH] = False
    """Split parameters, gradients and optimizer state over the data parallel replicas, and gather the parameters one layer at a
    time (engine native)."""

    dp_replicate_size: Annotated[Parallel, GRAPH] = 1
    """Copies of all that fsdp or zero1 splits (HSDP): each is split over data parallel replicas / dp_replicate_size neighbouring
    devices, such as those of a machine, and gradients are summed over the copies (engine native)."""

    xla_processes: Annotated[Processes | None, GRAPH] = None  # never None after validation
    """Engine xla: one: one process drives all devices (SPMD). per_device: one process a device, data parallel only, as torchrun
    starts them on Trainium. Default: per_device on device neuron, where SPMD is experimental; else one."""

    threads: Annotated[Parallel | None, NOT_KEYED] = None  # `accelerator` puts the resolved value into the key
    """CPU threads of each process. Another number changes the last bit of results. Default: the available cores, divided by the
    number of processes."""

    collective_timeout_seconds: Annotated[int, NOT_KEYED, Field(gt=0, le=604_800)] = 600
    """Seconds that one process waits for the others before training fails. Writing a checkpoint must take less."""

    @property
    def data_parallel(self) -> int:
        """The number of replicas."""
        return self.devices // self.tensor_parallel_size

    @property
    def mesh(self) -> Mesh:
        """Devices along "data" (replicas) and "model"."""
        return Mesh(self.data_parallel, self.tensor_parallel_size, self.dp_replicate_size)

    @property
    def by_neuronx_cc(self) -> bool:
        """Whether neuronx-cc compiles the graphs: engine xla on Neuron."""
        return self.engine == "xla" and self.device == "neuron"

    @field_validator("tensor_parallel_rules")
    @classmethod
    def _check_styles(cls, value: dict[str, str]) -> dict[str, str]:
        for pattern, style in value.items():
            if style not in STYLES or style == SHARED:
                known = sorted(STYLES.keys() - {SHARED})
                raise ValueError(f"{style!r} of {pattern} is not a style; the styles are {', '.join(known)}")
        return value

    @field_validator("xla_processes")
    @classmethod
    def _choose_processes(cls, value: Processes | None, info: ValidationInfo) -> Processes | None:
        """Fill in the default, which depends on the fields above, so that the key contains the value that is used."""
        known = info.data  # lacks the fields that failed validation
        if value is None and {"engine", "device", "tensor_parallel_size"} <= known.keys():
            return default_processes(known["engine"], known["device"], known["tensor_parallel_size"])
        return value

    @model_validator(mode="after")
    def _check_mesh(self) -> ParallelSettings:
        if self.devices % self.tensor_parallel_size:
            raise ValueError(
                f"devices ({self.devices}) must be a multiple of tensor_parallel_size ({self.tensor_parallel_size})"
            )
        if self.sequence_parallel and self.tensor_parallel_size == 1:
            raise ValueError(
                "sequence_parallel shards activations over the tensor parallel axis: set tensor_parallel_size > 1"
            )
        if self.engine == "xla" and self.device == "cuda":
            raise ValueError("engine xla drives cpu and neuron here: set engine=native for device cuda")
        return self

    @model_validator(mode="after")
    def _check_sharding(self) -> ParallelSettings:
        if self.fsdp and self.engine == "xla":
            raise ValueError("fsdp is for engine native: set engine=native, or zero1 instead")
        if self.fsdp and self.zero1:
            raise ValueError("fsdp shards the optimizer's state too: set zero1=false")
        if self.fsdp and self.data_parallel == 1:
            raise ValueError("fsdp shards over the data axis, which has one device here: set devices higher")
        if self.dp_replicate_size > 1 and (self.engine == "xla" or not (self.fsdp or self.zero1)):
            raise ValueError("dp_replicate_size copies what engine native's fsdp or zero1 splits: set fsdp=true")
        shards, left = divmod(self.data_parallel, self.dp_replicate_size)
        if self.dp_replicate_size > 1 and (left or shards == 1):
            raise ValueError(
                f"dp_replicate_size ({self.dp_replicate_size}) must divide the {self.data_parallel} data parallel replicas, and "
                "leave two or more for each copy"
            )
        return self


def default_processes(engine: str, device: str, tensor_parallel_size: int) -> Processes:
    """Return the default of `train.xla_processes`: "one" (one process for all devices) or "per_device". Raise
    ValueError where the recipe must choose: for tensor parallelism on device neuron."""
    if engine != "xla" or device != "neuron":
        return "one"
    if tensor_parallel_size > 1:
        raise ValueError(
            f"tensor_parallel_size is {tensor_parallel_size}, and on device neuron engine xla splits layers by SPMD alone, "
            "which is experimental there: ask for it with xla_processes=one, or set tensor_parallel_size=1"
        )
    return "per_device"
