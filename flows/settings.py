"""The recipe: the stages' configs side by side, and the settings of the house around them.

`load(name, overrides)` gives a validated Recipe or a ConfigError that names the file, the line, the setting and the fix.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    BaseModel,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    field_validator,
    model_validator,
)

from flows.recipes import Origins, nearest, origin_of, read_recipe
from tasks.compilers import FLAGS
from tasks.config import StageConfig
from tasks.consolidate import ConsolidateConfig
from tasks.errors import ConfigError
from tasks.evaluate_model import EvaluateConfig
from tasks.export_neuron import ExportConfig
from tasks.format_prompts import FormatConfig
from tasks.load_data import DataConfig
from tasks.model_source import ModelConfig
from tasks.pack_chunks import PackConfig
from tasks.tokenize_text import TokenizeConfig
from tasks.training.config import TrainConfig


class HardwareConfig(StageConfig):
    """What the run is paid for. price_per_hour: USD; memory_gib: of each device, 2^30 bytes; device: its kind, where a
    recipe that is overridden to train on another kind runs elsewhere, and has neither. The devices themselves are
    `train.device` and `train.devices`."""

    name: str = "this machine"
    price_per_hour: NonNegativeFloat = 0.0
    memory_gib: PositiveFloat | None = None
    device: Literal["cpu", "cuda", "neuron"] | None = None


class StoreConfig(StageConfig):
    """root: a folder or an fsspec URL, `<home>/store` when not set; min_free_gb: left free on the disk, 10^9 bytes;
    lease_ttl_seconds: after so long without a sign of life another run takes over a stage that one began."""

    root: str | None = None
    min_free_gb: NonNegativeFloat = 1.0
    lease_ttl_seconds: PositiveFloat = 60.0


class LaunchConfig(StageConfig):
    """kind: where training processes run; grace_seconds: between TERM and KILL, for training to save its state (a spot instance
    has two minutes in all); environment: further variables for them."""

    kind: Literal["local"] = "local"
    grace_seconds: PositiveFloat = 100.0
    environment: dict[str, str] = {}

    @field_validator("environment")
    @classmethod
    def _changes_no_result(cls, value: dict[str, str]) -> dict[str, str]:
        for name in FLAGS:
            if name in value:
                raise ValueError(f"{name} changes results: set it around the command, where the key sees it")
        return value


class TaskRunnerConfig(StageConfig):
    """Who makes the shards of the data stages. kind: `threads` of the flow's process, or one of Prefect's task runners:
    `processes` of this machine, `ray`, `dask`; workers: how many, the cores of this machine when not set (of a cluster with an
    address: how many shards are handed out at once); address: of a Ray or Dask cluster, a local one is started when not set."""

    kind: Literal["threads", "processes", "ray", "dask"] = "threads"
    workers: PositiveInt | None = None
    address: str | None = None

    @model_validator(mode="after")
    def _address_has_a_cluster(self) -> TaskRunnerConfig:
        if self.address and self.kind not in ("ray", "dask"):
            raise ValueError(f"`address` is of a Ray or Dask cluster, and kind is {self.kind}")
        return self

    @property
    def count(self) -> int:
        return self.workers or len(os.sched_getaffinity(0))


class TrackingConfig(StageConfig):
    """MLflow. uri: of the tracking server, `sqlite:///<home>/mlflow.db` when not set (MLFLOW_TRACKING_URI serves too)."""

    enabled: bool = True
    uri: str | None = None
    experiment: str = "trnflow"


class Recipe(StageConfig):
    """A whole run. Sections bear the names of what they configure."""

    name: str
    description: str = ""
    data: DataConfig
    format: FormatConfig
    model: ModelConfig
    tokenize: TokenizeConfig
    pack: PackConfig
    train: TrainConfig
    consolidate: ConsolidateConfig = ConsolidateConfig()
    export: ExportConfig = ExportConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    hardware: HardwareConfig = HardwareConfig()
    store: StoreConfig = StoreConfig()
    launch: LaunchConfig = LaunchConfig()
    task_runner: TaskRunnerConfig = TaskRunnerConfig()
    tracking: TrackingConfig = TrackingConfig()

    @property
    def price_per_hour(self) -> float:
        """USD, of where it runs."""
        return self.hardware.price_per_hour if self._runs_on_hardware else 0.0

    @property
    def training(self) -> TrainConfig:
        """`train`, told how much memory the hardware's devices have."""
        if self.train.device_memory_gib is not None or not self._runs_on_hardware:
            return self.train
        return self.train.model_copy(update={"device_memory_gib": self.hardware.memory_gib})

    @property
    def _runs_on_hardware(self) -> bool:
        return self.hardware.device in (None, self.train.device)

    def to_json(self) -> dict[str, Any]:
        """The resolved recipe: every setting, defaults filled in."""
        return self.model_dump(mode="json")


def home_folder() -> Path:
    """The project's local state: TRNFLOW_HOME, or `.trnflow` where the command runs."""
    return Path(os.environ.get("TRNFLOW_HOME", ".trnflow")).expanduser().absolute()


def store_root(recipe: Recipe) -> str:
    """`store.root` of the recipe or an override, else TRNFLOW_STORE, else `<home>/store`."""
    return recipe.store.root or os.environ.get("TRNFLOW_STORE") or str(home_folder() / "store")


def load(name: str, overrides: Iterable[str] = ()) -> Recipe:
    """The validated recipe of a name or file with `section.setting=value` overrides."""
    tree, origins = read_recipe(name, overrides)
    tree.setdefault("name", Path(name).stem)
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        raise _explained(error, name, origins) from error


def _explained(error: ValidationError, recipe: str, origins: Origins) -> ConfigError:
    """All that is wrong in one message; the fix speaks of the first."""
    problems = [_problem(entry, recipe, origins) for entry in error.errors(include_url=False)]
    return ConfigError("; ".join(text for text, _ in problems), problems[0][1])


def _problem(entry: Any, recipe: str, origins: Origins) -> tuple[str, str]:
    path = tuple(str(part) for part in entry["loc"])
    setting = ".".join(path) or "recipe"
    where = origin_of(path, origins)
    if entry["type"] == "extra_forbidden":
        close = nearest(path[-1], _known_keys(path[:-1]))
        below = ".".join((*path[:-1], close))
        return (
            f"{where}: {setting} is not a setting",
            f"did you mean {below}?" if close else f"`trnflow config {recipe}` shows them all",
        )
    if entry["type"] == "missing":
        return f"{recipe}: {setting} is missing", f"set it in the recipe, or give {setting}=..."
    message = entry["msg"].removeprefix("Value error, ").rstrip(".")
    given = "" if isinstance(entry["input"], dict | BaseModel) else f" (given: {entry['input']!r})"
    return f"{where}: {setting}: {message}{given}", f"change {setting}"


def _known_keys(path: tuple[str, ...]) -> list[str]:
    """The settings at a path; below a table of configs, such as `data.mix`, a name is the user's."""
    kind: Any = Recipe
    names = iter(path)
    for name in names:
        field = kind.model_fields.get(name) if isinstance(kind, type) and issubclass(kind, BaseModel) else None
        if field is None:
            return []
        kind = _model_in(field.annotation)
        if _is_table(field.annotation):
            next(names, None)
    return list(kind.model_fields) if kind is not None else []


def _is_table(annotation: Any) -> bool:
    return any(getattr(part, "__origin__", part) is dict for part in (annotation, *getattr(annotation, "__args__", ())))


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The config class an annotation such as `TrainTokenizer | None` holds."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = (_model_in(part) for part in getattr(annotation, "__args__", ()))
    return next((found for found in inner if found is not None), None)
