"""Training that starts from a model of the store: the weights of its artifact in place of `model.source`'s."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.artifact import Input, Source
from tasks.errors import ModelError
from tasks.training.checkpoint import Reader
from tasks.training.names import PARAMETER

if TYPE_CHECKING:
    from torch.nn import Parameter


def starting_from(model: Source, start: Input | None) -> Source:
    """`model` with the weights of a folder that `consolidate` made (a head of other labels is made anew), or of a checkpoint."""
    if start is None:
        return model
    place = {"folder": str(start.path)} if start.kind == "model" else {"checkpoint": str(start.path)}
    location = model.location | {"model": place, "warm_start": start.digest}
    return replace(model, identity=model.identity | {"weights": start.digest}, location=location)


def load_checkpoint(folder: Path, parameters: dict[str, Parameter]) -> None:
    """Take all parameters from a checkpoint of `train`. ModelError at the first that it lacks or holds in another shape."""
    stored = Reader(folder)
    for name, parameter in parameters.items():
        found = stored.shape(PARAMETER + name) if PARAMETER + name in stored.names else None
        if found != tuple(parameter.shape):
            raise ModelError(
                f"train.warm_start_from names a checkpoint of another model: {name} is {found or 'not there'}, and "
                f"{tuple(parameter.shape)} here",
                "use a model of the same architecture and labels, or name what its `consolidate` made",
            )
        parameter.data.copy_(stored.tensor(PARAMETER + name))
