"""The base class of stage configs, and marks on their fields.

class PackConfig(StageConfig):
    chunk_length: Tokens = 2048
    workers: Annotated[int, NOT_KEYED] = 0
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

SCHEMA = 1

# Numbers have upper bounds, so that a typing error (1e12 for 1e2) is found when the recipe is read, not when it runs.
PositiveCount = Annotated[int, Field(gt=0, le=1_000_000_000)]
NonNegativeCount = Annotated[int, Field(ge=0, le=1_000_000_000)]
Tokens = Annotated[int, Field(gt=0, le=1 << 24)]  # tokens in a row
BatchRows = Annotated[int, Field(gt=0, le=1 << 20)]  # rows in a batch
Parallel = Annotated[int, Field(gt=0, le=4096)]  # devices, processes, threads
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
Positive = Annotated[float, Field(gt=0, le=1e30)]
NonNegative = Annotated[float, Field(ge=0, le=1e30)]
Seconds = Annotated[float, Field(gt=0, le=604_800)]  # a week


class Mark(Enum):
    """A mark in a field's `Annotated` type."""

    NOT_KEYED = "the field can't change the bytes of the result: it is in no key"
    GRAPH = "the field changes training's graphs: it is also in precompile's key"


NOT_KEYED, GRAPH = Mark


class StageConfig(BaseModel):
    """The settings of one stage, immutable; unknown fields are refused. Subclasses stand beside their stages."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


def marked(kind: type[BaseModel], mark: Mark) -> set[str]:
    """Return the names of the fields with a mark."""
    return {name for name, field in kind.model_fields.items() if any(entry is mark for entry in field.metadata)}


def keyed_params(config: StageConfig) -> dict[str, Any]:
    """Return {field: value} of all fields not marked NOT_KEYED, nested configs included, as plain JSON."""
    skip = marked(type(config), NOT_KEYED)
    return {name: _plain(getattr(config, name)) for name in type(config).model_fields if name not in skip}


def graph_params(config: StageConfig) -> dict[str, Any]:
    """Return {field: value} of the fields marked GRAPH, as plain JSON."""
    return {name: _plain(getattr(config, name)) for name in sorted(marked(type(config), GRAPH))}


def _plain(value: Any) -> Any:
    if isinstance(value, StageConfig):
        return keyed_params(value)
    if isinstance(value, tuple | list):
        return [_plain(entry) for entry in value]
    if isinstance(value, dict):
        return {name: _plain(entry) for name, entry in value.items()}
    return value
