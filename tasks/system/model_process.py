"""The environment of processes that open a finished model."""

from __future__ import annotations

import os
from importlib.util import find_spec

from trnflow.tasks.system.devices import THREAD_VARIABLES, cores

# Threads wait passively: on two busy cores a small BERT does 542 rows a second, 163 with threads that spin.
EAGER = {"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"}

# XLA compiles without optimization, 3 to 6 times faster: such a process lowers a model or runs few batches.
_FLAGS = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
# Twice as fast again, with the same logits. torch_xla knows the flag; an XLA that does not, as in some jaxlib, aborts.
_FLAGS += "" if find_spec("jax") else " --xla_cpu_use_fusion_emitters=false"
ENVIRON = {"PJRT_DEVICE": "CPU", "XLA_FLAGS": _FLAGS}

# Without progress beside ours, and without torch_xla, which transformers imports where it can and no prediction asks of
# it: 3 of 9 s of processor time.
QUIET = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "USE_TORCH_XLA": "0"}


def predicting_environ() -> dict[str, str]:
    """Return the environment of a process that predicts: this process's, whose own variables win."""
    return {**EAGER, **ENVIRON, **QUIET, **os.environ}


def model_environ() -> dict[str, str]:
    """Return the environment of consolidate, export_neuron (StableHLO) and evaluate_model."""
    # the three share it, so one warm parent serves all: its imports take 4 to 7 s of processor time
    return {**EAGER, **ENVIRON, **dict.fromkeys(THREAD_VARIABLES, str(cores()))}
