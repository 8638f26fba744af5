"""Check a written model folder against the checkpoint, tensor by tensor, and compute one batch with it.

Takes memory for the largest tensor: files are memory-mapped.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnflow.tasks.errors import ModelError
from trnflow.tasks.model_folder.published_weights import PublishedWeights
from trnflow.tasks.stage import Workdir
from trnflow.tasks.training.checkpoint.merged_weights import Weights
from trnflow.tasks.training.checkpoint.pretrained_weights import PretrainedWeights
from trnflow.tasks.training.checkpoint.shards import save_tensors

if TYPE_CHECKING:
    from torch import Tensor

TOKENS = 16
"""Most tokens of the row that is computed."""
PIECE = 1 << 22
"""Most numbers converted at once."""


def pieces(value: Tensor, dtype: Any) -> Iterator[Tensor]:
    """Yield a tensor's numbers in order, converted, in pieces of at most PIECE."""
    flat = value.reshape(-1)
    for start in range(0, len(flat), PIECE):
        yield flat[start : start + PIECE].to(dtype)


def check_shapes(weights: Weights, model: Any) -> None:
    """Raise ModelError unless `weights` have the names and shapes of the parameters of `model`, on "meta"."""
    wanted = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    # no checkpoint holds buffers that transformers would save
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
    """Raise ModelError when a piece of a published tensor holds NaN or an infinite number."""
    import torch

    if value.numel() and not all(torch.isfinite(end) for end in value.aminmax()):
        raise ModelError(
            f"the weights {name} hold NaN or infinite numbers as {dtype}",
            "lower train.learning_rate and train again; of float16, set consolidate.dtype to bfloat16 or float32",
        )


def check_folder(out: Workdir, model_class: Any, config: Any, weights: PublishedWeights, dtype: str) -> None:
    """Raise ModelError unless the files hold exactly `weights`, and the model read from them computes finite logits."""
    import torch

    wanted, stored = getattr(torch, dtype), _mapped(sorted(out.path.glob("model*.safetensors")))
    different = sorted(stored.keys() ^ set(weights.names)) or [
        name for name in weights.names if not _equal(stored[name], weights, name)
    ]
    if different:
        raise ModelError(
            f"the written weights are not those of the checkpoint: {', '.join(different[:3])}",
            "run the stage again; if this repeats, report it with the recipe",
        )
    model = _loaded(out, model_class, config, wanted, stored)
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    length = min(TOKENS, positions // 2) if isinstance(positions, int) and positions > 1 else TOKENS
    row = torch.arange(length).remainder(config.get_text_config().vocab_size)[None]
    with torch.inference_mode():
        # the first output: logits, or of a model without a head its last layer's
        logits = model.eval()(input_ids=row, attention_mask=torch.ones_like(row))[0]
    if not bool(torch.isfinite(logits).all()):
        raise ModelError(
            f"the published model computes NaN or infinite logits in {dtype}",
            "set consolidate.dtype to float32 or bfloat16, or train again with a lower train.learning_rate",
        )


def _equal(stored: Tensor, weights: PublishedWeights, name: str) -> bool:
    import torch

    if tuple(stored.shape) != weights.shape(name):
        return False
    wanted = pieces(weights.tensor(name), stored.dtype)
    return all(torch.equal(*pair) for pair in zip(pieces(stored, stored.dtype), wanted, strict=True))


def _mapped(files: list[Path]) -> dict[str, Tensor]:
    """Return the tensors of safetensors files by name, read from disk when used."""
    from safetensors.torch import load_file

    return {name: value for file in files for name, value in load_file(file).items()}


def _loaded(out: Workdir, model_class: Any, config: Any, dtype: Any, stored: dict[str, Tensor]) -> Any:
    """Return the model with mapped tensors as its parameters, not copies."""
    from transformers.initialization import no_init_weights

    # memory for initial values would be used; without them it is only reserved
    with no_init_weights():
        model = model_class.from_config(config, dtype=dtype, attn_implementation="sdpa", trust_remote_code=False)
    model.tie_weights()  # of parameters that share their values only one has a name
    written = PretrainedWeights(out.path, model)
    mapped: dict[str, Tensor] = {}
    for number, (name, _) in enumerate(model.named_parameters()):
        if (key := written.stored_name(name)) is not None:
            mapped[name] = stored[key]
        else:
            # a parameter of several stored tensors, such as Mixtral's experts, is mapped from a file of its own
            file = out.scratch / f"joined-{number}.safetensors"
            save_tensors(file, {name: written.tensor(name).contiguous()})
            mapped |= _mapped([file])
    model.load_state_dict(mapped, strict=False, assign=True)
    model.tie_weights()
    return model
