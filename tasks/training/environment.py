"""The parts of cache keys that describe the environment (compiler, flags, threads), and the environment variables of
the process that trains. A key is the hash under which a stage's result is cached."""

from __future__ import annotations

from trnflow.tasks.artifact import Meta
from trnflow.tasks.system.compiler_flags import flags_added, flags_around
from trnflow.tasks.system.devices import THREAD_VARIABLES, device_kind
from trnflow.tasks.training.config import TrainConfig, ranks


def compiler(config: TrainConfig) -> Meta:
    """Return the facts on which a compiled graph depends besides settings and shapes. They become a part of the cache
    keys (the hashes under which results are cached) of the stages precompile and train.

    The facts are {"device": the kind of device, "versions": [names of the packages that trace and compile; the key
    contains their versions], "flags": {environment variable: flags of XLA's or Neuron's compiler; empty for engine
    native}}."""
    packages = ["torch", "transformers"]
    if config.engine == "xla":
        packages += ["torch-xla"] + (["neuronx-cc"] if config.device == "neuron" else [])
    return {
        "device": device_kind(config.device),
        "versions": packages,
        "flags": flags_around() if config.engine == "xla" else {},
    }


def accelerator(config: TrainConfig) -> Meta:
    """Return the part `accel` of the stage train's cache key (the hash under which the result is cached). On these
    facts the last bits of the weights depend, besides settings and inputs: {"device", "versions" and "flags" as
    `compiler` returns them, "threads": the number of CPU threads of each process}."""
    return {**compiler(config), "threads": config.resolved_threads}


def environ(config: TrainConfig) -> dict[str, str]:
    """Return the environment variables of the process that trains, {name: value}. torch, XLA and malloc read these
    variables when the process starts.

    With stochastic rounding on device neuron, the graph has a plain cast from fp32, and
    `NEURON_RT_STOCHASTIC_ROUNDING_EN=1` makes the device round each such cast at random, also in the forward and
    backward pass. The seed is set, but the device does not report how many random bits it has used, so a resumed run
    differs in the last bits. Whether copies of a weight on several cores stay equal is not known; with `zero1` each
    part of most weights is rounded on one core and sent to the others. Source: AWS Neuron, PyTorch environment
    variables. None of this has run on the device."""
    threads = str(config.resolved_threads)
    variables = {
        **dict.fromkeys(THREAD_VARIABLES, threads),
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
    }
    if config.engine == "native":
        # Threads spin for a short time only: on a shared machine, spinning for a descheduled thread costs four times
        # the work. Activations are allocated and freed by the megabyte: malloc is told to keep the pages, or each step
        # would have to map them again.
        memory = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
        if config.device == "cuda" and config.deterministic:
            memory["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # without this, cuBLAS's results vary from run to run
        return {**variables, **memory, "GOMP_SPINCOUNT": "1000", "USE_TORCH_XLA": "0"}
    variables |= flags_added("NEURON_CC_FLAGS" if config.device == "neuron" else "XLA_FLAGS", config.compiler_flags)
    if config.device == "neuron":
        variables |= {"PJRT_DEVICE": "NEURON", "MALLOC_ARENA_MAX": "64"}
        if config.stochastic_rounding:
            variables["NEURON_RT_STOCHASTIC_ROUNDING_EN"] = "1"
            variables["NEURON_RT_STOCHASTIC_ROUNDING_SEED"] = str(config.seed % 2**32)
        # with several processes, torch_xla assigns cores by LOCAL_RANK
        return {**variables, "NEURON_RT_NUM_CORES": str(config.devices)} if ranks(config) == 1 else variables
    return {**variables, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(config.devices)}
