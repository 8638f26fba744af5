"""Consolidated Hugging Face folders as PyTorch models, read from disk alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tasks.errors import ModelError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

EAGER = {"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
"""Of a process that runs models in eager PyTorch. Threads that wait by spinning starve each other on a busy machine: a
small BERT on two busy cores did 163 rows a second, and 542 with passive waiting (the results are the same)."""


def load_model(folder: Path, task: str) -> PreTrainedModel:
    """The model in `folder` with the head for `task` (`classification`, `causal_lm`), in its stored dtype, on the CPU,
    for inference without a cache. ModelError when transformers can't load it."""
    # the narrow import: `from transformers import ...` resolves the same class at the price of a lookup in every module
    from transformers.models.auto import AutoModelForCausalLM, AutoModelForSequenceClassification

    kind = AutoModelForSequenceClassification if task == "classification" else AutoModelForCausalLM
    try:
        model = kind.from_pretrained(folder, local_files_only=True, dtype="auto")
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"the consolidated model can't be loaded for {task}: {error}",
            "run consolidate again; a model type that transformers does not know can't be evaluated or exported",
        ) from error
    model.config.use_cache = False
    return model.eval()


def longest_sequence(config: PretrainedConfig) -> int | None:
    """Tokens the model has positions for, or None when it says nothing."""
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None:
        return None
    # these count positions from the padding index on
    offset = (config.pad_token_id or 0) + 1 if config.model_type in ("roberta", "xlm-roberta", "camembert") else 0
    return int(positions) - offset
