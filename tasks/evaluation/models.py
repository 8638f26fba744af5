"""Load folders of consolidate as PyTorch models, without the network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from trnflow.tasks.data.format.row_format import has_pairs, read_row_format
from trnflow.tasks.errors import ModelError, TrnflowError
from trnflow.tasks.kinds.kind import Kind
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.system.model_process import EAGER as EAGER
from trnflow.tasks.training.model.pretrained import TOKEN_TYPES, first_position, takes_token_types

if TYPE_CHECKING:
    from transformers import PreTrainedModel

INPUTS = ("input_ids", "attention_mask", TOKEN_TYPES)


def load_model(folder: Path, task: str) -> PreTrainedModel:
    """Load a model on the CPU, in its stored dtype, in inference mode. task: which output layer it gets.

    Raises ModelError when transformers can't load it, and if its files lack weights.
    """
    # the narrow import: `from transformers import ...` resolves the same class at the price of a lookup in every module
    from transformers.models import auto

    kind = kind_of(task)
    try:
        # unless told, transformers asks on the terminal whether it may run the folder's code
        config = auto.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        # else it would download the program of attention that config.json names
        config._attn_implementation = None
        model, found = getattr(auto, kind.auto_class).from_pretrained(
            folder,
            config=config,
            local_files_only=True,
            trust_remote_code=False,
            dtype="auto",
            output_loading_info=True,
        )
    except (TrnflowError, MemoryError):  # such as a signal's
        raise
    except Exception as error:  # a folder from elsewhere: any field of config.json may end in an error of its own
        raise ModelError(
            f"the consolidated model can't be loaded for {task}: {error}",
            "run consolidate again; a model type that transformers does not know can't be evaluated or exported",
        ) from error
    # transformers fills these with random numbers, and warns in a log alone
    if lacking := sorted(found["missing_keys"]):
        raise ModelError(
            f"{folder} has no weights for {lacking[0]}, which a model for {task} needs"
            + (f" ({len(lacking):,} tensors are missing)" if len(lacking) > 1 else ""),
            "get the model anew from where it was published",
        )
    model.config.use_cache = False
    model.reads_types = has_pairs(folder) and takes_token_types(model)
    if kind.apart:
        model.register_forward_hook(_vectors_of(kind, folder), with_kwargs=True)
    return model.eval()


def _vectors_of(kind: Kind, folder: Path) -> Callable[..., Any]:
    """Return the hook by which a model without a head gives the vectors of texts as its logits."""
    head = {**kind.head(read_row_format(folder).settings), "texts": 1}

    def hook(module: Any, given: Any, named: dict[str, Any], output: Any) -> Any:
        return SimpleNamespace(logits=kind.logits_of(output, named["attention_mask"], head))

    return hook


def input_names(model: Any) -> tuple[str, ...]:
    """Return the inputs of a model that `load_model` loaded: token types only where rows are pairs of texts."""
    return INPUTS if getattr(model, "reads_types", False) else INPUTS[:2]


def longest_sequence(model: PreTrainedModel) -> int | None:
    """Return the most tokens that the model has positions for, or None."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return None if positions is None else int(positions) - first_position(model)
