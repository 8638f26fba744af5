"""Load folders of consolidate as PyTorch models, without the network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trnflow.tasks.errors import ModelError
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.system.model_process import EAGER as EAGER
from trnflow.tasks.training.model.pretrained import first_position

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def load_model(folder: Path, task: str) -> PreTrainedModel:
    """Load a model on the CPU, in its stored dtype, in inference mode. task: which output layer it gets.

    Raises ModelError when transformers can't load it.
    """
    # the narrow import: `from transformers import ...` resolves the same class at the price of a lookup in every module
    from transformers.models import auto

    kind = getattr(auto, kind_of(task).auto_class)
    try:
        model = kind.from_pretrained(folder, local_files_only=True, dtype="auto")
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"the consolidated model can't be loaded for {task}: {error}",
            "run consolidate again; a model type that transformers does not know can't be evaluated or exported",
        ) from error
    model.config.use_cache = False
    return model.eval()


def longest_sequence(model: PreTrainedModel) -> int | None:
    """Return the most tokens that the model has positions for, or None."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return None if positions is None else int(positions) - first_position(model)
