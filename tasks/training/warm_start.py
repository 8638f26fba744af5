"""Training that starts from a model of the store: the weights of its artifact in place of `model.source`'s.

What `consolidate` made is a folder like any pretrained model's, and a head of other labels is made anew. A checkpoint of `train`
must fit as it is; it is read once the model stands.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tasks.artifact import Input, Source
from tasks.errors import ModelError
from tasks.training.checkpoint import Reader
from tasks.training.names import PARAMETER


def starting_from(model: Source, start: Input | None) -> Source:
    """`model` with the weights of `start`; of a checkpoint they are left to `load_start`."""
    if start is None:
        return model
    if start.kind == "checkpoint":
        weights, place = None, {"checkpoint": str(start.path)}
    else:
        weights, place = start.digest, {"folder": str(start.path)}
    location = model.location | {"model": place, "warm_start": start.digest}
    return replace(model, identity=model.identity | {"weights": weights}, location=location)


def load_start(source: Source, model: Any) -> None:
    """Take all parameters from the checkpoint that `source` starts from, if it does. ModelError at the first that it lacks or
    holds in another shape."""
    folder = (source.location["model"] or {}).get("checkpoint")
    if folder is None:
        return
    stored = Reader(Path(folder))
    for name, parameter in model.named_parameters():
        found = stored.shape(PARAMETER + name) if PARAMETER + name in stored.names else None
        if found != tuple(parameter.shape):
            raise ModelError(
                f"train.warm_start_from names a checkpoint of another model: {name} is {found or 'not there'}, and "
                f"{tuple(parameter.shape)} here",
                "use a model of the same architecture and labels, or name what its `consolidate` made",
            )
        parameter.data.copy_(stored.tensor(PARAMETER + name))
