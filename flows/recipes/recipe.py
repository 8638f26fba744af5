"""`Recipe`, the config class of a recipe; `load` reads and validates one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import PrivateAttr, ValidationError, field_validator, model_validator

from trnflow.flows.recipes import hardware
from trnflow.flows.recipes.files import RecipeTree, nearest, origin_of, read_tree
from trnflow.flows.recipes.schema import Tree
from trnflow.flows.recipes.sections import (
    HardwareConfig,
    LaunchConfig,
    OwnConfig,
    RunConfig,
    StoreConfig,
    SweepConfig,
    TaskRunnerConfig,
    TrackingConfig,
)
from trnflow.flows.recipes.validation_errors import Recipes, refused
from trnflow.tasks.config import StageConfig, hooks_in
from trnflow.tasks.consolidate import ConsolidateConfig
from trnflow.tasks.data.format.config import FormatConfig
from trnflow.tasks.data.tokenization.config import TokenizeConfig
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.evaluate_model import EvaluateConfig
from trnflow.tasks.evaluation.chosen_metric import check_metric
from trnflow.tasks.evaluation.scores import NAMES, PROMOTING
from trnflow.tasks.export.config import ExportConfig
from trnflow.tasks.keys.hooks import check_file, check_hook
from trnflow.tasks.kinds.kind import Kind
from trnflow.tasks.kinds.registry import FORMATS, kind_of
from trnflow.tasks.load_data import DataConfig
from trnflow.tasks.own_stage import OwnStage
from trnflow.tasks.pack_chunks import PackConfig
from trnflow.tasks.promotion.settings import CheckConfig, PromoteConfig
from trnflow.tasks.sources.model_source import ModelConfig
from trnflow.tasks.sources.paths import Folders, located
from trnflow.tasks.store.location import default_root
from trnflow.tasks.system.home import home_folder
from trnflow.tasks.system.redaction import add_secrets_of, fill_variables, hide_secrets
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.preference_losses import task_of

NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*")
LONGEST_NAME = 200


class Recipe(StageConfig):
    """A recipe: everything that defines a run. It has one section for each stage, and sections about the machine and
    services."""

    name: str
    """The name of the recipe, in reports, for `gc` and for `train.warm_start_from`. Default: the file's name. Not
    inherited."""
    description: str = ""
    """One line that `trnflow recipes` shows. Not inherited."""
    data: DataConfig
    """Where rows come from (stage `load_data`)."""
    format: FormatConfig
    """What text the model reads for each row (stage `format_prompts`)."""
    model: ModelConfig
    """The model and its tokenizer."""
    tokenize: TokenizeConfig
    """How text becomes tokens (stage `tokenize_text`)."""
    pack: PackConfig
    """How rows of tokens become chunks of fixed lengths (stage `pack_chunks`)."""
    train: TrainConfig
    """How the model is trained (stages `precompile` and `train`)."""
    consolidate: ConsolidateConfig = ConsolidateConfig()
    """The published model (stage `consolidate`)."""
    export: ExportConfig = ExportConfig()
    """The exported model (stage `export_neuron`)."""
    evaluate: EvaluateConfig = EvaluateConfig()
    """The evaluation (stage `evaluate_model`)."""
    promote: PromoteConfig = PromoteConfig()
    """When a model replaces the champion (`trnflow promote`)."""
    checks: tuple[CheckConfig, ...] = ()
    """What `trnflow retrain` checks of the data before it trains."""
    hardware: HardwareConfig = HardwareConfig()
    """The machine that the recipe is for."""
    store: StoreConfig = StoreConfig()
    """Where artifacts are kept."""
    launch: LaunchConfig = LaunchConfig()
    """How the stages' processes are started and stopped."""
    run: RunConfig = RunConfig()
    """What happens before the first stage."""
    task_runner: TaskRunnerConfig = TaskRunnerConfig()
    """The workers of the data stages."""
    tracking: TrackingConfig = TrackingConfig()
    """What MLflow records."""
    own: OwnConfig = OwnConfig()
    """What functions of your own read."""
    stages: dict[str, OwnStage] = {}
    """Stages of your own by names of your choice."""
    sweep: SweepConfig = SweepConfig()
    """What `trnflow sweep` varies."""

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        if not NAME.fullmatch(value):
            raise ValueError(
                "a recipe's name is made of letters, digits, `.`, `_` and `-`, with `/` between parts, none of which "
                "begins with `.` or `-`"
            )
        if len(value.encode()) > LONGEST_NAME:
            raise ValueError(f"a recipe's name has at most {LONGEST_NAME} bytes: it names files")
        return value

    @model_validator(mode="after")
    def _metric_is_known(self) -> Recipe:
        metric, own = self.promote.metric, [each.name for each in self.evaluate.metrics if each.may_promote]
        if metric is not None and metric not in (*PROMOTING, *own):
            close = nearest(metric, (*PROMOTING, *own))
            raise ValueError(
                f"promote.metric is {metric}, which is none of {', '.join((*PROMOTING, *own))}: "
                f"{f'did you mean {close}?' if close else 'name one of them, or add it to evaluate.metrics'}"
            )
        return self

    @model_validator(mode="after")
    def _bounds_are_of_metrics(self) -> Recipe:
        for setting in ("at_least", "at_most"):
            for name in getattr(self.promote, setting):
                # own functions and tasks of the harness name theirs when they run
                if name not in NAMES and not (self.evaluate.metrics or self.evaluate.harness):
                    close = nearest(name, NAMES)
                    fix = f"did you mean {close}?" if close else f"name one of {', '.join(NAMES)}"
                    raise ValueError(f"promote.{setting}: {name} is no metric: {fix}")
        return self

    @model_validator(mode="after")
    def _metrics_are_measured(self) -> Recipe:
        given, best = self.learns.measures(self.format), self.train.best_metric.removeprefix("eval_")
        known = {metric.name for kind in (self.learns, FORMATS[self.format.task]) for metric in kind.metrics}
        for setting, name in (("promote.metric", self.promote.metric), ("train.best_metric", best)):
            if name not in given and name in known:
                raise ValueError(f"{setting} is {name}, which these rows do not give: name one of {', '.join(given)}")
        return self

    @model_validator(mode="after")
    def _made_rows_have_a_state(self) -> Recipe:
        if self.data.make and not (self.data.version or self.own.identity):
            raise ValueError(
                "`data.make` needs a version, or its rows would be those of the first day for ever: set `data.version`, "
                "or `own.identity` to a function that tells it"
            )
        if self.own.identity and not self.data.make:
            raise ValueError("`own.identity` is of the rows that `data.make` gives: set that, or leave it out")
        return self

    @model_validator(mode="after")
    def _reward_model_is_possible(self) -> Recipe:
        if self.train.objective == "reward" and self.export.target == "gguf":
            raise ValueError("`export.target: gguf` is for language models, and `train.objective: reward` gives none")
        # trnflow.json does not tell predictions whether eos was added
        if self.train.objective == "reward" and not self.tokenize.add_eos:
            raise ValueError("`train.objective: reward` reads an answer at its end: leave `tokenize.add_eos` out")
        return self

    @model_validator(mode="after")
    def _best_metric_is_known(self) -> Recipe:
        check_metric(self.train, self.learns, self.evaluate.metrics)
        return self

    @model_validator(mode="after")
    def _harness_is_of_a_language_model(self) -> Recipe:
        if self.evaluate.harness and self.learns.per_row:
            raise ValueError(
                f"`evaluate.harness` is for language models, and these rows train a model for {self.learns.name}: leave it out"
            )
        return self

    _read: RecipeTree = PrivateAttr(default_factory=lambda: RecipeTree(Recipe, "", {}, {}))

    @property
    def machine(self) -> str:
        """What was chosen for this machine and why, or how the recipe differs here; "" if the recipe fixes all."""
        return self._read.machine

    @property
    def folders(self) -> Folders:
        """{setting: folder that a relative path in its value is joined to}; without an entry the working directory."""
        origins = self._read.origins.items()
        return {".".join(setting): origin.folder for setting, origin in origins if origin.folder}

    @property
    def own_folder(self) -> Path | None:
        """The folder of the recipe's file; None of a shipped recipe."""
        return self._read.folder

    def folder(self, setting: str) -> Path:
        """Return the folder that a relative path in a setting's value is joined to."""
        return self.folders.get(setting) or Path.cwd()

    @property
    def hooks(self) -> dict[str, tuple[str, Path | None]]:
        """{setting: (`package.module:name`, folder of the file in which it is set)} of the user's own functions."""
        hooks, folders = {}, self.folders
        for path, named in hooks_in(self):
            above = (".".join(path[:length]) for length in range(len(path), 0, -1))
            hooks[".".join(path)] = named, next((folders[name] for name in above if name in folders), None)
        return hooks

    @property
    def own_files(self) -> dict[str, Path]:
        """{name in `own.files`: path}."""
        folder = self.folders.get("own.files") or self.folder("own.files.0")
        return {name: folder.resolve() / name for name in self.own.files}

    @property
    def price_per_hour(self) -> float:
        """USD per hour; 0 if unknown for `train.device`."""
        return self.hardware.price_per_hour if self._runs_on_hardware else 0.0

    @property
    def loading(self) -> DataConfig:
        """The section `data`, with the column of `format.text_pair` among the texts, and those of `format.target`,
        `format.words`, `format.score` and `format.negative` among the columns that are kept."""
        kind, form = FORMATS[self.format.task], self.format
        kept = (*form.targets, *filter(None, [form.words, form.score, form.negative]))
        return self.data.reading(self.format.text_pair, queries=kind.queries).keeping(kept)

    @property
    def learns(self) -> Kind:
        """The task of the model, which the objective may change."""
        return kind_of(task_of(self.train.objective, FORMATS[self.format.task].name))

    @property
    def judging(self) -> PromoteConfig:
        """The section `promote`, with the metric that the rows give where they decide it."""
        given = self.learns.measures(self.format)
        return self.promote.model_copy(update={"metric": self.promote.metric or next(iter(given), None)})

    @property
    def training(self) -> TrainConfig:
        """The section `train`, with `device_memory_gib` taken from `hardware.memory_gib` if unset."""
        if self.train.device_memory_gib is not None or not self._runs_on_hardware:
            return self.train
        return self.train.model_copy(update={"device_memory_gib": self.hardware.memory_gib})

    @property
    def _runs_on_hardware(self) -> bool:
        return self.hardware.device in (None, self.train.device)

    @property
    def decided_here(self) -> tuple[str, ...]:
        """The settings that this machine decided, `hardware` as a whole; none if the recipe fixes them."""
        fixing = (f"train.{name}" for name in hardware.FIXING)
        return ("hardware", *fixing, *self._read.chosen) if self._read.chosen else ()

    def leaves_open(self, *names: str) -> bool:
        """Return whether this machine decides these settings, and has not yet set one."""
        return {*names} <= {*self._read.chosen} and not any(getattr(self.train, name.split(".")[1]) for name in names)

    def on_machine_of(self, recorded: Tree) -> Recipe | None:
        """Return this recipe with what a machine decides taken from a run's settings; None if no machine decides."""
        places = {setting: setting.split(".") for setting in self._read.chosen}
        values = {setting: recorded[part][name] for setting, (part, name) in places.items() if name in recorded[part]}
        try:
            return self.changed(values) if values else None
        except ValidationError:  # the recipe's own settings are for this machine alone
            return None

    def changed(self, settings: Mapping[str, Any]) -> Recipe:
        """Return the recipe with other values of some settings, such as {"train.epochs": 1}. Raises pydantic's
        ValidationError."""
        document = self.model_dump()
        for path, value in settings.items():
            *above, last = path.split(".")
            section = document
            for name in above:
                section = section[name]
            section[last] = value
        recipe = Recipe.model_validate(document)
        recipe._read = self._read
        return recipe

    def to_json(self) -> Tree:
        """Return all settings with defaults, secrets hidden."""
        document: Tree = hide_secrets(self.model_dump(mode="json"))
        return document


def store_root(recipe: Recipe) -> str:
    """Return the store's root: `store.root` with its variables filled in, else TRNFLOW_STORE, else `<home>/store`.
    Raises ConfigError if a variable is not set."""
    if recipe.store.root:
        return located(fill_variables(recipe.store.root, "store.root"), recipe.folder("store.root"))
    return default_root(home_folder())


def load(name: str, overrides: Iterable[str] = ()) -> Recipe:
    """Read and validate a recipe. Raises ConfigError, which names file, line and setting.

    name: a recipe of `conf/`, such as `demo`, or a YAML file; overrides: `section.setting=value`, or `on=NAME`.
    """
    return validated(read_tree(name, Recipe).with_overrides(overrides), name)


def validated(read: RecipeTree, name: str) -> Recipe:
    """Validate a recipe that was read. Raises ConfigError. name: of the recipe, for messages."""
    read = read.for_this_machine()
    tree = read.settings()
    add_secrets_of(tree)
    try:
        recipe = Recipe.model_validate(tree)
    except ValidationError as error:
        raise refused(error, Recipes(Recipe, name, tree, read.origins)) from None
    recipe._read = read
    for setting, (named, folder) in recipe.hooks.items():
        try:
            check_hook(setting, named, folder)
        except ConfigError as error:
            where = origin_of(tuple(setting.split(".")), read.origins)
            raise ConfigError(f"{where}: {error.message}", error.fix) from None
    for name, file in recipe.own_files.items():
        check_file(name, file)
    return recipe
