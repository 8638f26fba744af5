"""What keys say of compiler, flags and threads, and the environment of the process that trains."""

from __future__ import annotations

import os

from trnflow.tasks.artifact import Meta
from trnflow.tasks.system.compiler_flags import NEURON_COMPILER, flags_added, flags_around
from trnflow.tasks.system.devices import THREAD_VARIABLES, device_kind
from trnflow.tasks.system.gpus import WSL
from trnflow.tasks.training.config import TrainConfig, ranks

ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Variables of CUDA's allocator. PyTorch 2.9 calls the first one deprecated, and on CUDA reads it alone."""


def compiler(config: TrainConfig) -> Meta:
    """Return what a compiled graph depends on besides settings and shapes: {"device", "versions": [packages], "flags":
    {variable: flags}, empty for engine native}."""
    packages = ["torch", "transformers"]
    # imported by name, so that only keys of these settings hold its version; the table env has peft's
    if config.optimizer == "adamw_8bit" or (config.lora is not None and config.lora.base_dtype == "nf4"):
        packages.append("bitsandbytes")
    if config.engine == "xla":
        packages += ["torch-xla"] + (["neuronx-cc"] if config.device == "neuron" else [])
    return {
        "device": device_kind(config.device),
        "versions": packages,
        "flags": flags_around() if config.engine == "xla" else {},
    }


def accelerator(config: TrainConfig) -> Meta:
    """Return train's `accel`: `compiler`, and "threads": CPU threads of each process, on which last bits depend."""
    return {**compiler(config), "threads": config.resolved_threads}


def environ(config: TrainConfig) -> dict[str, str]:
    """Return the variables that torch, XLA and malloc read at their start."""
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
        if config.device == "cuda" and not WSL.exists() and not any(map(os.environ.get, ALLOCATOR)):
            # blocks of lengths that vary leave holes; WSL's driver refuses these segments
            memory[ALLOCATOR[0]] = "expandable_segments:True"
        return {**variables, **memory, "GOMP_SPINCOUNT": "1000", "USE_TORCH_XLA": "0"}
    variables |= flags_added("NEURON_CC_FLAGS" if config.device == "neuron" else "XLA_FLAGS", config.compiler_flags)
    if config.device == "neuron":
        variables |= {"PJRT_DEVICE": "NEURON", **NEURON_COMPILER}
        if config.stochastic_rounding:
            # the device rounds every fp32 cast at random and does not report its bits: a resumed run differs in last
            # bits (AWS Neuron, PyTorch environment variables; never run)
            variables["NEURON_RT_STOCHASTIC_ROUNDING_EN"] = "1"
            variables["NEURON_RT_STOCHASTIC_ROUNDING_SEED"] = str(config.seed % 2**32)
        # with several processes, torch_xla assigns cores by LOCAL_RANK
        return {**variables, "NEURON_RT_NUM_CORES": str(config.devices)} if ranks(config) == 1 else variables
    return {**variables, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(config.devices)}
