"""The base of every stage's config: frozen, strict about names, and clear about which fields reach the result.

A field is part of its stage's key unless it is marked `NOT_KEYED` (it can't change the bytes: paths, intervals,
workers). A field of the training config marked `GRAPH` reaches the compiled graph, so `precompile` is keyed by it.

    class PackConfig(StageConfig):
        chunk_length: PositiveInt = 2048
        workers: Annotated[int, NOT_KEYED] = 0
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

SCHEMA = 1


class Mark:
    """A remark on a config field, found again in its pydantic metadata."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


NOT_KEYED = Mark("NOT_KEYED")
GRAPH = Mark("GRAPH")


class StageConfig(BaseModel):
    """Frozen, refuses unknown keys. Subclass it beside the stage it configures."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)


def marked(kind: type[BaseModel], mark: Mark) -> set[str]:
    """The names of the fields of `kind` that bear `mark`."""
    return {name for name, field in kind.model_fields.items() if any(entry is mark for entry in field.metadata)}


def keyed_params(config: StageConfig) -> dict[str, Any]:
    """The fields that can change the result, as plain JSON values, defaults filled in, nested configs likewise."""
    skip = marked(type(config), NOT_KEYED)
    return {name: _plain(getattr(config, name)) for name in type(config).model_fields if name not in skip}


def graph_params(config: StageConfig) -> dict[str, Any]:
    """The fields marked GRAPH: all that `precompile` may depend on."""
    return {name: _plain(getattr(config, name)) for name in sorted(marked(type(config), GRAPH))}


def _plain(value: Any) -> Any:
    if isinstance(value, StageConfig):
        return keyed_params(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value
