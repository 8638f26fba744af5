"""The environment variables of the processes that open a finished model, and of processes that only run a model in
eager PyTorch.

The stages consolidate, export_neuron and evaluate_model have the same environment variables, so that one warm parent (a
process that has imported the libraries and forks a process for each stage; see `trnflow.tasks.launch.warm_start`) serves all
three: importing torch, transformers and torch_xla takes 4 to 7 s of processor time for each parent."""

from __future__ import annotations

from trnflow.tasks.system.devices import THREAD_VARIABLES, cores

EAGER = {"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
"""The environment variables of a process that runs models in eager PyTorch. Threads wait passively: on two busy cores a small
BERT does 542 rows a second, and 163 with threads that spin. Results are the same."""

ENVIRON = {
    "PJRT_DEVICE": "CPU",
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1",
}
"""The environment variables of a process that lowers a model or runs a few batches: XLA compiles without optimization, 3 to 6
times faster (on two cores a 2-layer BERT in 0.4 s instead of 1.2, a 5-layer Llama in 0.3 s instead of 2.2)."""


def model_environ() -> dict[str, str]:
    """Return the environment variables of the processes of the stages consolidate, export_neuron (to StableHLO) and
    evaluate_model: the Hugging Face hub is offline, idle threads wait without using a core, XLA compiles for the CPU
    without optimization, and torch and numpy use as many threads as this process may use cores."""
    return {**EAGER, **ENVIRON, **dict.fromkeys(THREAD_VARIABLES, str(cores()))}
