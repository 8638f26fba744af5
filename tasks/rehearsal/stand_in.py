"""Stage `stand_in`: a model like the recipe's, of one layer of each kind and with random weights."""

from __future__ import annotations

import shutil
from copy import deepcopy
from typing import Any

from trnflow.tasks.artifact import Meta, Source
from trnflow.tasks.config import StageConfig
from trnflow.tasks.errors import ModelError
from trnflow.tasks.sources.model_source import GENERATION, TOKENIZER_FILES, model_folder, tokenizer_folder
from trnflow.tasks.stage import Workdir, stage
from trnflow.tasks.system.model_process import model_environ

INDEXES = ("_idxs", "_indices", "_layers")
"""Ends of the names of fields that list the numbers of layers of a kind."""


class StandInConfig(StageConfig):
    """Settings of `stand_in`."""

    task: str
    """What the model is trained for: the name of a `Kind`."""


def environ(config: StandInConfig) -> dict[str, str]:
    """Return the environment of the process."""
    return model_environ()


@stage(kind="stand_in", environ=environ)
def stand_in(config: StandInConfig, model: Source, out: Workdir) -> Meta:
    """Write the model's folder with its tokenizer; without weights if the model is trained from scratch.

    Returns {"settings": {field of the model's configuration: value}}, those that make it small, and {"parameters": of
    the whole model}.

    Raises:
        ModelError: transformers does not know the model, or its files lack weights.
    """
    import torch

    from trnflow.tasks.training.model.build import architecture
    from trnflow.tasks.training.model.pretrained import OPTIONS, auto_class

    whole, kind = architecture(model), auto_class(config.task)
    with torch.device("meta"):
        large = kind.from_config(deepcopy(whole), **OPTIONS)
    if model.identity["weights"] is not None and "folder" in model.location["model"]:
        _check_weights(model, large)
    small, settings = smallest(whole, lambda tried: _builds(kind, tried))
    if model.identity["weights"] is not None:
        torch.manual_seed(0)
        kind.from_config(small, **OPTIONS).save_pretrained(out.path)
    for folder, names in ((tokenizer_folder(model), TOKENIZER_FILES), (model_folder(model), (GENERATION,))):
        for name in names:
            if folder is not None and (folder / name).is_file():
                (out.path / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(folder / name, out.path / name)
    return {"settings": settings, "parameters": sum(parameter.numel() for parameter in large.parameters())}


def smallest(config: Any, builds: Any) -> tuple[Any, Meta]:
    """Return a copy of a configuration with one layer of each kind, and the fields that differ; with more layers if
    `builds(copy)` returns False."""
    text = config.get_text_config()
    layers = text.num_hidden_layers
    lists = {name: value for name, value in text.to_dict().items() if isinstance(value, list) and value}
    indexes = {name: value for name, value in lists.items() if name.endswith(INDEXES) and _are_indexes(value, layers)}
    by_layer = {name: value for name, value in lists.items() if name not in indexes and len(value) == layers}
    dense = getattr(text, "first_k_dense_replace", 0) or 0
    kinds: dict[Any, int] = {}
    for layer in range(layers):
        of_lists = [str(value[layer]) for value in by_layer.values()]
        kinds.setdefault((*of_lists, layer < dense, *(layer in value for value in indexes.values())), layer)
    kept = sorted(kinds.values())
    while True:
        settings: Meta = {
            "num_hidden_layers": len(kept),
            **{name: [value[layer] for layer in kept] for name, value in by_layer.items()},
            **{name: [place for place, n in enumerate(kept) if n in value] for name, value in indexes.items()},
            **({"first_k_dense_replace": sum(layer < dense for layer in kept)} if dense else {}),
        }
        small = deepcopy(config)
        for name, value in settings.items():
            setattr(small.get_text_config(), name, value)
        if len(kept) >= layers or builds(small):
            return small, settings
        kept = [*range(min(layers, 2 * len(kept)))]


def _are_indexes(values: list[Any], layers: int) -> bool:
    """Return whether values are numbers of layers, ascending, such as [3, 7, 11]; those of each layer, [1, 0, 1], are not."""
    return all(type(n) is int and 0 <= n < layers for n in values) and values == sorted({*values})


def _builds(kind: Any, config: Any) -> bool:
    import torch

    from trnflow.tasks.training.model.pretrained import OPTIONS

    try:
        with torch.device("meta"):
            kind.from_config(deepcopy(config), **OPTIONS)
    except Exception:  # whatever a model's own code raises for a number of layers that it does not take
        return False
    return True


def _check_weights(model: Source, whole: Any) -> None:
    """Raise ModelError if the headers of the model's files lack a parameter outside the head. whole: on the meta device."""
    from trnflow.tasks.training.checkpoint.pretrained_weights import PretrainedWeights
    from trnflow.tasks.training.model.heads import in_head

    folder = model_folder(model)
    assert folder is not None
    held = PretrainedWeights(folder, whole)
    lacking = [name for name, _ in whole.named_parameters() if not in_head(name) and not held.has(name)]
    if lacking:
        raise ModelError(
            f"the weights of model.source lack {len(lacking)} tensors of {type(whole).__name__}, such as {lacking[0]}",
            "check model.overrides and the architecture against it, or download the model anew",
        )
