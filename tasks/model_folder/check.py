"""Check a written model folder against the checkpoint, tensor by tensor, and compute one batch with it.

The weights of the files are memory-mapped: they are in the system's page cache, which the system frees when it needs
memory. Apart from the page cache the check takes memory for one copy of the largest tensor. Some model families make a
parameter of several stored tensors (the experts of Mixtral); such a parameter is written to a temporary file and mapped
from there.
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
"""The most tokens of the row that is computed."""
PIECE = 1 << 22
"""The most numbers of a tensor that are changed to another type at once."""


def pieces(value: Tensor, dtype: Any) -> Iterator[Tensor]:
    """Yield the numbers of a tensor in order, converted to `dtype`, in one-dimensional tensors of at most 4 Mi numbers,
    so that little is in memory at once."""
    flat = value.reshape(-1)
    for start in range(0, len(flat), PIECE):
        yield flat[start : start + PIECE].to(dtype)


def check_shapes(weights: Weights, model: Any) -> None:
    """Raise ModelError unless `weights` (of a trained model, by name) have exactly the names and shapes of the
    parameters of `model`, a model without values (on the "meta" device). Also raise ModelError when transformers would
    save values of the model that are no parameters (buffers), because no checkpoint holds buffers."""
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
    """Raise ModelError when a tensor to be published holds NaN or an infinite number. name, dtype: the tensor's name
    and the published type, for the message; value: the tensor, or a piece of it, already of that type."""
    import torch

    if value.numel() and not all(torch.isfinite(end) for end in value.aminmax()):
        raise ModelError(
            f"the weights {name} hold NaN or infinite numbers as {dtype}",
            "lower train.learning_rate and train again; of float16, set consolidate.dtype to bfloat16 or float32",
        )


def check_folder(out: Workdir, model_class: Any, config: Any, weights: PublishedWeights, dtype: str) -> None:
    """Raise ModelError unless the weight files in `out.path` hold exactly `weights`, converted to `dtype`, and the
    model that is read from the files computes finite logits for one row.

    weights: the trained weights by their names in published files; model_class: transformers' class that reads the
    model, such as AutoModelForCausalLM; config: transformers' config of the model; dtype: the type in the files, such
    as "float32"."""
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
    row = torch.arange(_row_length(config)).remainder(config.get_text_config().vocab_size)[None]
    with torch.inference_mode():
        logits = model.eval()(input_ids=row, attention_mask=torch.ones_like(row)).logits
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
    """Return the tensors of safetensors files by name. They are read from disk when they are used."""
    from safetensors.torch import load_file

    return {name: value for file in files for name, value in load_file(file).items()}


def _loaded(out: Workdir, model_class: Any, config: Any, dtype: Any, stored: dict[str, Tensor]) -> Any:
    """Return the model with mapped tensors as its parameters, not copies of them.

    The model is built without initial values, so that memory for them is reserved and not used. stored: the mapped tensors
    of the folder's files, each of which is mapped once."""
    from transformers.initialization import no_init_weights

    with no_init_weights():
        model = model_class.from_config(config, dtype=dtype, attn_implementation="sdpa", trust_remote_code=False)
    model.tie_weights()  # of parameters that share their values only one has a name
    written = PretrainedWeights(out.path, model)
    found: dict[str, Tensor] = {}
    for number, (name, _) in enumerate(model.named_parameters()):
        if (key := written.stored_name(name)) is not None:
            found[name] = stored[key]
        else:
            file = out.scratch / f"joined-{number}.safetensors"
            save_tensors(file, {name: written.tensor(name).contiguous()})
            found |= _mapped([file])
    model.load_state_dict(found, strict=False, assign=True)
    model.tie_weights()
    return model


def _row_length(config: Any) -> int:
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    return min(TOKENS, positions // 2) if isinstance(positions, int) and positions > 1 else TOKENS
