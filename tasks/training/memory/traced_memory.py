"""Find the memory that a training takes from one pass on "meta" tensors: about a millisecond an operation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from trnflow.tasks.artifact import Input, Json, Source
from trnflow.tasks.errors import ModelError
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.layout.slices import check_length, layout_of
from trnflow.tasks.training.memory.estimate import Memory, estimate
from trnflow.tasks.training.partition_specs import check_heads

if TYPE_CHECKING:
    from trnflow.tasks.metadata import PackedMeta


class Untraceable(ModelError):
    """The model's code needs the values of tensors, which "meta" tensors lack."""


def trace_memory(config: TrainConfig, model: Source, rows: Mapping[str, Json]) -> Memory:
    """Return the memory that training takes on one device, from a step over the longest rows on "meta" tensors.

    rows: metadata of packed rows. Raises Untraceable when the model needs values, ModelError when layout or rows do not
    fit.
    """
    from trnflow.tasks.training.memory.traced_pass import trace_pass
    from trnflow.tasks.training.model.adapters import adapt
    from trnflow.tasks.training.model.build import build
    from trnflow.tasks.training.objective import learnt

    packed = learnt(config, Input(Path(), "packed", cast("PackedMeta", rows), ""))
    built = adapt(config, build(model, packed, seed=0, weights=False))
    length = max(rows["lengths"])
    check_heads(built.model.config.get_text_config().to_dict(), config.tensor_parallel_size)
    check_length(config, length)
    layout = layout_of(config, built)
    try:
        return estimate(config, layout, trace_pass(config, built, layout, length))
    except (NotImplementedError, RuntimeError) as error:
        why = str(error).splitlines()[0]
        raise Untraceable(f"{layout.model} can't be traced, so its memory is not known: {why}") from error
