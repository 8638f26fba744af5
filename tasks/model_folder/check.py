"""Check a written model folder against the checkpoint, tensor by tensor, and compute one batch with it.

The files' weights are memory-mapped, so they are in the page cache, which the system frees when it needs to: beyond that,
the check takes memory for two copies of the largest tensor. Only a family whose published names differ from its
parameters' is loaded whole for the batch.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.errors import ModelError
from tasks.model_folder.published_weights import PublishedWeights
from tasks.training.checkpoint.merged_weights import Weights

if TYPE_CHECKING:
    from torch import Tensor

TOKENS = 16
"""The most tokens of the row that is computed."""


def check_shapes(weights: Weights, model: Any) -> None:
    """Raise ModelError unless `weights` are the parameters of `model`, which has no values ("meta" device)."""
    wanted = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    untrained = sorted(model.state_dict().keys() - dict(model.named_parameters(remove_duplicate=False)).keys())
    if untrained:
        raise ModelError(
            f"{type(model).__name__} has values that are no parameters, and the checkpoint lacks them: "
            f"{', '.join(untrained[:3])}",
            "train a model of another type: published without them, this one would compute something else",
        )
    held = {name: weights.shape(name) for name in weights.names}
    shared = wanted.keys() & held.keys()
    wrong = {
        "missing keys": sorted(wanted.keys() - held.keys()),
        "unexpected keys": sorted(held.keys() - wanted.keys()),
        "mismatched keys": sorted(name for name in shared if wanted[name] != held[name]),
    }
    for what, names in wrong.items():
        if names:
            raise ModelError(
                f"the checkpoint is not of the model that its config.json describes: {what} {', '.join(names[:3])}",
                "run train again: its checkpoint is incomplete or of another model",
            )


def check_finite(name: str, value: Tensor, dtype: str) -> None:
    """Raise ModelError when a tensor to be published holds NaN or an infinite number. dtype: the type to publish."""
    import torch

    if value.numel() and not all(torch.isfinite(end) for end in value.aminmax()):
        raise ModelError(
            f"the weights {name} hold NaN or infinite numbers as {dtype}",
            "lower train.learning_rate and train again; of float16, set consolidate.dtype to bfloat16 or float32",
        )


def check_folder(folder: Path, model_class: Any, config: Any, weights: PublishedWeights, dtype: str) -> None:
    """Raise ModelError unless the files in `folder` hold exactly `weights`, and the model computes finite logits.

    model_class: such as AutoModelForCausalLM; config: transformers' config of the model; dtype: the type of the files."""
    import torch

    wanted, stored = getattr(torch, dtype), _mapped(folder)
    different = sorted(stored.keys() ^ set(weights.names)) or [
        name for name in weights.names if not torch.equal(stored[name], weights.tensor(name).to(wanted))
    ]
    if different:
        raise ModelError(
            f"the written weights are not those of the checkpoint: {', '.join(different[:3])}",
            "run the stage again; if this repeats, report it with the recipe",
        )
    model = _loaded(folder, model_class, config, stored, wanted)
    row = torch.arange(_row_length(config)).remainder(config.get_text_config().vocab_size)[None]
    with torch.inference_mode():
        logits = model.eval()(input_ids=row, attention_mask=torch.ones_like(row)).logits
    if not bool(torch.isfinite(logits).all()):
        raise ModelError(
            f"the published model computes NaN or infinite logits in {dtype}",
            "set consolidate.dtype to float32 or bfloat16, or train again with a lower train.learning_rate",
        )


def _mapped(folder: Path) -> dict[str, Tensor]:
    """Return the tensors of a folder's safetensors files by name. They are read from disk when they are used."""
    from safetensors.torch import load_file

    return {
        name: value for file in sorted(folder.glob("model*.safetensors")) for name, value in load_file(file).items()
    }


def _loaded(folder: Path, model_class: Any, config: Any, stored: dict[str, Tensor], dtype: Any) -> Any:
    """Return the model with the tensors of `stored` as its parameters, not copies of them.

    The model is built without initial values, so that memory for them is reserved and not used."""
    from transformers.initialization import no_init_weights

    with no_init_weights():
        model = model_class.from_config(config, dtype=dtype, attn_implementation="sdpa", trust_remote_code=False)
    if {name for name, _ in model.named_parameters()} != stored.keys():
        return model_class.from_pretrained(folder, dtype=dtype)
    model.load_state_dict(stored, strict=False, assign=True)
    model.tie_weights()
    return model


def _row_length(config: Any) -> int:
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    return min(TOKENS, positions // 2) if isinstance(positions, int) and positions > 1 else TOKENS
