"""Start training from a model in the store, whose weights replace those of the recipe's `model.source`.

The stored model is an artifact (stored result) of the stage `consolidate` or `train`. An artifact of `consolidate` is
read like any pretrained model; a head for other labels is initialised at random. An artifact of `train` is a
checkpoint: its parameters must fit the model exactly, and are read after the model is built.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from trnflow.tasks.artifact import Input, Source
from trnflow.tasks.errors import ModelError
from trnflow.tasks.training.checkpoint.shards import Reader
from trnflow.tasks.training.shared_types import PARAMETER


def starting_from(model: Source, start: Input | None) -> Source:
    """Return `model` (where the config, weights and tokenizer of the recipe's model come from) with the source of the
    weights replaced by the artifact `start`; `model` itself when `start` is None.

    start: an artifact of `consolidate` (a model folder) or of `train` (a checkpoint). For a checkpoint the result
    only notes its folder: `load_start` must read the weights after the model is built."""
    if start is None:
        return model
    if start.kind == "checkpoint":
        weights, place = None, {"checkpoint": str(start.path)}
    else:
        weights, place = start.digest, {"folder": str(start.path)}
    location = model.location | {"model": place, "warm_start": start.digest}
    return replace(model, identity=model.identity | {"weights": weights}, location=location)


def load_start(source: Source, model: Any) -> None:
    """Copy all parameters of an earlier training's checkpoint into `model`, if the training starts from one
    (`train.warm_start_from`).

    source: where the model comes from, as `starting_from` returned it; if `source` names no checkpoint, nothing is
    done. Raise ModelError at the first parameter of `model` that the checkpoint lacks or has in another shape."""
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
