"""The base class of stage configs, and marks on their fields.

class PackConfig(StageConfig):
    chunk_length: Tokens = 2048
    workers: Annotated[int, NOT_KEYED] = 0
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from functools import cache
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

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
    HOOK = "the field names a function of the user's: its code is in the key of the stages that call it"
    WHEN_SET = "the field is newer than results that are kept: it is in keys where it differs from its default"
    ORDERED = "the order of the table's names counts: its key has it"
    RUNS_CODE = "it may run code"
    REACHES_OUT = "it says where a run's data goes, or what a run reads of the machine"
    SOURCE = "it names bytes to read, by a path, a URL or a hub's name"
    BOUND = "it bounds what a run may take of the machine"


NOT_KEYED, GRAPH, HOOK, WHEN_SET, ORDERED, RUNS_CODE, REACHES_OUT, SOURCE, BOUND = Mark
GUARDED = (RUNS_CODE, REACHES_OUT, SOURCE, BOUND)
"""Marks of fields that Prefect may not set as it likes (`flows/recipes/sent.py`). They are left out of the hashes of code."""


def _names_a_function(value: str) -> str:
    module, _, name = value.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), name)):
        raise ValueError("a function is named package.module:name, and stands at the top of a file beside the recipe")
    return value


Hook = Annotated[str, AfterValidator(_names_a_function), HOOK]
"""Names a function of the user's, `package.module:name`. Its field is NOT_KEYED: the name is in the table `code`."""


class StageConfig(BaseModel):
    """The settings of one stage, immutable; unknown fields are refused. Subclasses stand beside their stages."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true and false for a number, also in a list or table: pydantic takes them for 1 and 0."""
        annotation = cls.model_fields[str(info.field_name)].annotation
        # configs below look at their own values
        if _takes_bool(annotation) or _holds_configs(annotation):
            return value
        if isinstance(value, bool):
            raise PydanticCustomError("bool_type", "true or false stands where another value belongs")
        return _without_truth(value)


class _Truth:
    """Stands for true or false in a list or table: no type takes it, so that pydantic's error has its place."""


def _without_truth(value: Any) -> Any:
    """Return a value of a recipe with a `_Truth` in place of each true or false in its lists and tables."""
    if isinstance(value, dict):
        return {name: _without_truth(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [*map(_without_truth, value)]
    return _Truth() if isinstance(value, bool) else value


def _takes_bool(annotation: Any) -> bool:
    inner = get_args(annotation)
    return annotation in (Any, bool) or bool in map(type, inner) or any(map(_takes_bool, inner))


@cache
def marked(kind: type[BaseModel], mark: Mark) -> frozenset[str]:
    """Return the names of the fields with a mark."""
    fields = kind.model_fields.items()
    return frozenset(name for name, field in fields if any(entry is mark for entry in field.metadata))


def is_hook(annotation: Any) -> bool:
    """Return whether a type annotation is a `Hook`, or has one in it."""
    return HOOK in getattr(annotation, "__metadata__", ()) or any(map(is_hook, get_args(annotation)))


def hooks_in(config: BaseModel) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield (path, `package.module:name`) of the hooks that a config and those in it set."""
    for name, hooks in _may_hold_hooks(type(config)).items():
        for path, value in _values_in(getattr(config, name), (name,)):
            if isinstance(value, BaseModel):
                yield from (((*path, *below), named) for below, named in hooks_in(value))
            elif hooks and isinstance(value, str):
                yield path, value


@cache
def _may_hold_hooks(kind: type[BaseModel]) -> dict[str, bool]:
    """Return {field: whether it names functions} of the fields that do, and of those that hold configs."""
    fields = kind.model_fields.items()
    hooks = {name: HOOK in field.metadata or is_hook(field.annotation) for name, field in fields}
    return {name: hooks[name] for name, field in fields if hooks[name] or _holds_configs(field.annotation)}


def _holds_configs(annotation: Any) -> bool:
    is_config = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return is_config or any(map(_holds_configs, get_args(annotation)))


def _values_in(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, tuple | list) else None
    )
    if entries is None:
        yield path, value
    for name, entry in entries or ():
        yield from _values_in(entry, (*path, str(name)))


def keyed_params(config: StageConfig) -> dict[str, Any]:
    """Return {field: value} of all fields not marked NOT_KEYED, or WHEN_SET and not set, nested configs included, as plain
    JSON."""
    skip = marked(type(config), NOT_KEYED) | _unset(config)
    return {name: _keyed(config, name) for name in type(config).model_fields if name not in skip}


def graph_params(config: StageConfig) -> dict[str, Any]:
    """Return {field: value} of the fields marked GRAPH, but WHEN_SET and not set, as plain JSON."""
    names = sorted(marked(type(config), GRAPH) - _unset(config))
    return {name: _keyed(config, name) for name in names}


def sorted_tables(config: BaseModel) -> dict[str, Any]:
    """Return a config as JSON with the names of its tables sorted, as in keys, but not of tables marked ORDERED."""
    return dict(_sorted(config, config.model_dump(mode="json")))


def _sorted(value: Any, document: Any, *, is_ordered: bool = False) -> Any:
    """Return `document`, the JSON of `value`, with sorted tables."""
    if isinstance(value, BaseModel):
        ordered = marked(type(value), ORDERED)
        return {
            name: _sorted(getattr(value, name), part, is_ordered=name in ordered) for name, part in document.items()
        }
    if isinstance(value, dict):
        return {name: _sorted(value[name], document[name]) for name in (value if is_ordered else sorted(value))}
    if isinstance(value, tuple | list):
        return [_sorted(*both) for both in zip(value, document, strict=True)]
    return document


def _unset(config: StageConfig) -> set[str]:
    """Return the fields marked WHEN_SET that have their default."""
    newer, fields = marked(type(config), WHEN_SET), type(config).model_fields
    return {name for name in newer if getattr(config, name) == fields[name].default}


def _keyed(config: StageConfig, name: str) -> Any:
    """Return a field's value as plain JSON; of a table whose order counts a list of pairs, since JSON objects have none."""
    value = _plain(getattr(config, name))
    return [*map(list, value.items())] if value and name in marked(type(config), ORDERED) else value


def _plain(value: Any) -> Any:
    if isinstance(value, StageConfig):
        return keyed_params(value)
    if isinstance(value, tuple | list):
        return [_plain(entry) for entry in value]
    if isinstance(value, dict):
        return {name: _plain(entry) for name, entry in value.items()}
    return value
