"""GPU memory by model size and method, as the estimate has it, for docs/training.md: `python -m tests.training.memory.sizes`.

Of the models only the shapes are needed, which are those of their published config.json: no weights, no GPU, no hub.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.training.toys import scratch
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.memory.estimate import gib
from trnflow.tasks.training.memory.traced_memory import trace_memory

LENGTH = 2048
LLAMA_3: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 128256, "num_key_value_heads": 8, "max_position_embeddings": 131072,
}  # fmt: skip


class Model(NamedTuple):
    """A published model. parameters: as its publisher counts them; fields: of its config.json."""

    parameters: float
    fields: dict[str, Any]


MODELS = {
    "Llama 3.2 1B": Model(1.24e9, {
        **LLAMA_3, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "head_dim": 64, "tie_word_embeddings": True,
    }),
    "Llama 3.2 3B": Model(3.21e9, {
        **LLAMA_3, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24,
        "head_dim": 128, "tie_word_embeddings": True,
    }),
    "Llama 3.1 8B": Model(8.03e9, {
        **LLAMA_3, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "head_dim": 128, "tie_word_embeddings": False,
    }),
    "Qwen 2.5 14B": Model(14.8e9, {
        "model_type": "qwen2", "vocab_size": 152064, "hidden_size": 5120, "intermediate_size": 13824,
        "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8,
        "max_position_embeddings": 131072, "tie_word_embeddings": False,
    }),
}  # fmt: skip

LORA = {"rank": 16, "targets": "all-linear"}
METHODS: dict[str, dict[str, Any]] = {
    "all weights": {},
    "all weights, 8 GPUs, `train.fsdp=true`": {"devices": 8, "fsdp": True},
    "LoRA": {"method": "lora", "lora": LORA},
    "QLoRA": {"method": "lora", "lora": {**LORA, "base_dtype": "nf4"}},
}


def cell(model: str, method: str) -> str:
    """Return the GiB of a GPU: without and with activation checkpointing."""
    return "; ".join(gib(_bytes(MODELS[model].fields, METHODS[method], remat)) for remat in (False, True))


def _bytes(fields: dict[str, Any], method: dict[str, Any], remat: bool) -> int:
    # the GPU's kernels: of one row at a time, eight an update
    config = TrainConfig(
        engine="native", device="cuda", dtype="bfloat16", global_batch=8, micro_batch=1, remat=remat, **method
    )
    ids = {"pad_id": 0, "bos_id": 1, "eos_id": 2}
    rows = {"task": "causal_lm", "lengths": [LENGTH], "labels": None, "vocab_size": fields["vocab_size"], **ids}
    return trace_memory(config, scratch(**fields), rows).total


def table() -> str:
    lines = [f"| estimated GiB a GPU | {' | '.join(METHODS)} |", "|---|" + "---|" * len(METHODS)]
    return "\n".join([*lines, *(f"| {name} | {' | '.join(cell(name, each) for each in METHODS)} |" for name in MODELS)])


if __name__ == "__main__":
    print(table())
