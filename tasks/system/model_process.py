"""The environment of processes that open a finished model.

consolidate, export_neuron and evaluate_model share it, so that one warm parent serves all three: importing torch,
transformers and torch_xla takes 4 to 7 s of processor time for each parent.
"""

from __future__ import annotations

from trnflow.tasks.system.devices import THREAD_VARIABLES, cores

EAGER = {"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
"""Environment of eager PyTorch. Threads wait passively: on two busy cores a small BERT does 542 rows a second, 163 with
threads that spin."""

ENVIRON = {
    "PJRT_DEVICE": "CPU",
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1",
}
"""Environment of a process that lowers a model or runs few batches: XLA compiles without optimization, 3 to 6 times
faster."""


def model_environ() -> dict[str, str]:
    """Return the environment of consolidate, export_neuron (StableHLO) and evaluate_model: hub offline, a thread a
    usable core."""
    return {**EAGER, **ENVIRON, **dict.fromkeys(THREAD_VARIABLES, str(cores()))}
