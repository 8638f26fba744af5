"""How much memory a stage may take, and what takes less."""

from __future__ import annotations

from trnflow.tasks.system.memory import machine_memory

GIB = 2**30

RESERVED = 1 * GIB
"""What the machine, the flow, its warm parents and the follower need at least."""

TAKES_LESS = {
    "load_data": "lower data.max_cell_mb (a row is read whole), or data.limit",
    "format_prompts": "lower task_runner.workers, or data.max_cell_mb (a row is formatted whole)",
    "tokenize_text": "lower task_runner.workers, or data.max_cell_mb (a row is tokenised whole)",
    "pack_chunks": "lower data.limit, or pack.chunk_length",
    "compute_reference": "lower pack.chunk_length (a chunk is read whole), or train.dtype=bfloat16",
    "precompile": "lower train.micro_batch, or pack.chunk_length",
    "train": "lower train.micro_batch, tokenize.max_length or pack.chunk_length, or set train.remat=true or train.method=lora",
    "consolidate": "lower consolidate.max_shard_size",
    "export_neuron": "lower export.batch",
    "predict_rows": "lower evaluate.batch",
    "fit_baseline": "set evaluate.baseline=null",
    "predict_before": "lower evaluate.batch, or set evaluate.baseline=null",
}
"""{stage: settings with which it takes less memory}"""


def memory_limit(gib: float | None) -> int:
    """Return the bytes that a stage's processes may hold.

    gib: `launch.memory_gib`; None: what the machine has less a tenth, or less RESERVED if that is more, but at least half.
    """
    if gib is not None:
        return int(gib * GIB)
    machine = machine_memory()
    return max(machine // 2, machine - max(RESERVED, machine // 10))


def takes_less(stage: str) -> str:
    """Return the settings with which a stage takes less memory."""
    return f"{TAKES_LESS[stage]}, " if stage in TAKES_LESS else ""


def shown(size: int) -> str:
    return f"{size / GIB:.3g} GiB"
