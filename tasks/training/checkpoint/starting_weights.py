"""Start training from a model in the store instead of `model.source`.

consolidate's artifact is read like a pretrained model, with a random head for other labels; train's is a checkpoint
that must fit exactly, and is read after the model is built.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from trnflow.tasks.artifact import Input, Source
from trnflow.tasks.errors import ModelError
from trnflow.tasks.sources.model_source import model_folder
from trnflow.tasks.training.checkpoint.grown_weights import GrownWeights
from trnflow.tasks.training.checkpoint.pretrained_weights import PretrainedWeights
from trnflow.tasks.training.checkpoint.shards import Reader
from trnflow.tasks.training.model.heads import refuse_unused
from trnflow.tasks.training.shared_types import PARAMETER, StoredWeights


def starting_from(model: Source, start: Input | None) -> Source:
    """Return `model` with its weights from `start`; itself for None. `load_start` reads those of a checkpoint."""
    if start is None:
        return model
    if start.kind == "checkpoint":
        weights, place = None, {"checkpoint": str(start.path)}
    else:
        weights, place = start.digest, {"folder": str(start.path)}
    location = model.location | {"model": place, "warm_start": start.digest}
    return replace(model, identity=model.identity | {"weights": weights}, location=location)


def has_weights(source: Source) -> bool:
    """Return whether training begins with stored values: a folder with config.json alone is a model from scratch."""
    return source.identity["weights"] is not None or _checkpoint(source) is not None


def base_weights(source: Source, empty: Any, *, grows: bool = True) -> StoredWeights:
    """Return the weights with which training begins (`starting_from`). empty: the model on "meta"; grows: whether they get
    rows for new tokens.

    Raises ModelError for a checkpoint of another model, and for files that can't be read or hold tensors that the model
    does not use.
    """
    checkpoint = _checkpoint(source)
    if checkpoint is None:
        stored = PretrainedWeights(cast(Path, model_folder(source)), empty)
        refuse_unused(empty, stored.unused, source)
        return GrownWeights(stored, empty) if grows else stored
    _check_shapes(checkpoint, empty)
    return checkpoint


def load_start(source: Source, model: Any) -> None:
    """Copy the parameters of the checkpoint that `source` names into `model`. Raises ModelError for other shapes."""
    stored = _checkpoint(source)
    if stored is not None:
        _check_shapes(stored, model)
        for name, parameter in model.named_parameters():
            parameter.data.copy_(stored.tensor(name))


def _checkpoint(source: Source) -> Reader | None:
    folder = (source.location["model"] or {}).get("checkpoint")
    return None if folder is None else Reader(Path(folder), PARAMETER)


def _check_shapes(stored: Reader, model: Any) -> None:
    for name, parameter in model.named_parameters():
        shape = stored.shape(name) if stored.has(name) else None
        if shape != tuple(parameter.shape):
            raise ModelError(
                f"train.warm_start_from names a checkpoint of another model: {name} is {shape or 'not there'}, and "
                f"{tuple(parameter.shape)} here",
                "use a model of the same architecture and labels, or name what its `consolidate` made",
            )
