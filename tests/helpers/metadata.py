"""Metadata as a stage writes them, for artifacts that tests put into a store without running the stage."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from trnflow.tasks.artifact import Meta
from trnflow.tasks.metadata import BY_STAGE


def metadata_of(stage: str, **facts: Any) -> Meta:
    """The facts that a stage's metadata must have, each empty or 0 unless it is given."""
    shape: Any = BY_STAGE[stage]
    hints = get_type_hints(shape)
    needed = {name: _least(hints[name]) for name in shape.__required_keys__}
    return {**needed, **({"task": "classification"} if "task" in needed else {}), **facts}


def _least(kind: Any) -> Any:
    if get_origin(kind) in (Union, UnionType):
        return None if NoneType in get_args(kind) else _least(get_args(kind)[0])
    plain = get_origin(kind) or kind
    return plain() if plain in (str, int, float, bool, list, dict) else {}
