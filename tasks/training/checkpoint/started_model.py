"""Build the model with the values with which training begins."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Input, Source
from trnflow.tasks.training.checkpoint.grown_weights import load_grown
from trnflow.tasks.training.checkpoint.starting_weights import base_weights, has_weights, load_start
from trnflow.tasks.training.model.build import build
from trnflow.tasks.training.model.pretrained import load_pretrained
from trnflow.tasks.training.shared_types import Built

if TYPE_CHECKING:
    from trnflow.tasks.metadata import PackedMeta


def build_started(
    source: Source, packed: Input[PackedMeta], *, seed: int, dtype: str = "float32", parts: bool = False
) -> Built:
    """Build the model of `source` (`starting_from`), as `build`. parts: what lies in files is read when it is placed."""
    grows = "new_tokens" in packed.meta
    opens = partial(base_weights, source, grows=grows) if parts and has_weights(source) else None
    loads = load_grown if grows else load_pretrained
    built = build(source, packed, seed=seed, weights=True, dtype=dtype, opens=opens, loads=loads)
    if opens is None:
        load_start(source, built.model)
    return built
