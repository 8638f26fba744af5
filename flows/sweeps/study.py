"""The Optuna study of a sweep: proposes each trial's settings and keeps the results in a database."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from trnflow.flows.recipes.sections import SweepConfig
from trnflow.flows.runner.context import new_run_id
from trnflow.flows.sweeps.space import Dimension, combinations
from trnflow.tasks.artifact import Json, Meta
from trnflow.tasks.errors import ConfigError, MissingDependency, StoreError
from trnflow.tasks.keys.explain import leaves
from trnflow.tasks.system.databases import missing_driver, reason
from trnflow.tasks.system.redaction import hide_secrets, scrub

if TYPE_CHECKING:
    from optuna import Study
    from optuna.samplers import BaseSampler
    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial, Trial

TRIALS = 20
"""The number of trials if none is given."""
RANDOM_TRIALS = 5
"""Trials that the sampler tpe draws at random before it uses results."""
DEFINITION, WINNER, STORE, SOURCES = "definition", "winner", "store", "sources"
"""The study's attributes in the database; RUN is one too."""
AGAIN, RUN, ERROR, SHARED, STOPPED = "again", "run", "error", "shared_seconds", "stopped"
"""A trial's attributes in the database. AGAIN: the number of the trial that this one repeats. STOPPED: not ended by its
own settings."""
# A trial during which the sweep was killed so often is not repeated: it may be the cause.
MOST_KILLS = 3
STATES = {"COMPLETE": "completed", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running", "WAITING": "waiting"}
BUSY_SECONDS = 60


class Tried(NamedTuple):
    """A trial as the database has it.

    Attributes:
        value: The trial's metric; None unless the trial completed.
        state: completed, pruned, failed, running, waiting, or killed (a later trial repeats it).
        error: Why the trial failed, such as "killed 3 times".
        shared_seconds: Saved because stages before training were in the store.
    """

    number: int
    settings: Meta
    value: float | None
    state: str
    run: str | None
    error: str | None
    shared_seconds: float


class Winner(TypedDict):
    """The best trial, run to its end. test: of `metrics` those of the test split; around: its sections `export` and
    `evaluate`."""

    trial: int
    settings: Meta
    run: str
    metrics: Meta
    test: Meta
    around: Meta


class SweepStudy:
    """The study of one sweep. Threads may share it. Methods raise StoreError.

    is_new: the study had no trial when it was opened; study: Optuna's.
    """

    def __init__(
        self, study: Study, config: SweepConfig, space: Sequence[Dimension], database: str, *, is_new: bool
    ) -> None:
        self.is_new = is_new
        self.study, self._config, self._space, self._database = study, config, space, database
        self._lock = threading.Lock()
        self._grid = combinations(space) if config.sampler == "grid" else None

    @property
    def identity(self) -> str:
        """The id of the sweep's own run, in which MLflow nests the trials' runs."""
        with self._access():
            return str(self.study.user_attrs[RUN])

    @property
    def total(self) -> int:
        """The number of trials to run: `sweep.trials`, by default 20; for `grid` at most all combinations."""
        if self._grid is None:
            return self._config.trials or TRIALS
        return min(self._config.trials or len(self._grid), len(self._grid))

    @property
    def has_trials_left(self) -> bool:
        """Whether trials are left to run; running ones count as done."""
        counted = [trial for trial in self.trials() if trial.state != "killed"]
        is_queued = any(trial.state == "waiting" for trial in counted)
        return is_queued or self._number([trial.settings for trial in counted]) < self.total

    def _number(self, tried: list[Meta]) -> int:
        """Return how many of these trials count: in a grid each combination once."""
        return len(tried) if self._grid is None else sum(some in tried for some in self._grid)

    def trials(self) -> list[Tried]:
        """Return all trials by number, also those that a killed sweep left running."""
        with self._access():
            records = self.study.get_trials(deepcopy=False)
        repeated = _repeated(records)
        return [_tried(trial, trial.number in repeated, _kills(trial, records)) for trial in records]

    def best(self) -> Tried | None:
        """Return `best_of` the trials so far."""
        return best_of(self.trials(), self._config)

    def queue_again(self) -> list[int]:
        """Queue each trial that a killed sweep left running, and failed ones if none ended well; return their numbers.

        Call it before the first `next`.
        """
        from optuna.trial import TrialState

        with self._access():
            records = self.study.get_trials(deepcopy=False)
            repeated, queued = _repeated(records), []
            states = {"RUNNING"}
            if not any(trial.state.name in ("COMPLETE", "PRUNED") for trial in records):
                states.add("FAIL")
            for trial in records:
                is_open = trial.state.name in states and trial.number not in repeated
                if is_open and _kills(trial, records) < MOST_KILLS:
                    # queued first: a kill between the two calls loses no trial
                    self.study.enqueue_trial(trial.params, user_attrs={AGAIN: trial.number})
                    queued.append(trial.number)
                if trial.state.name == "RUNNING":
                    self.study.tell(trial.number, state=TrialState.FAIL)
        return queued

    def next(self) -> Trial | None:
        """Begin a queued trial, else one that the sampler proposes; None if the sweep has all its trials."""
        with self._access():
            records = self.study.get_trials(deepcopy=False)
            repeated = _repeated(records)
            counted = [trial for trial in records if trial.number not in repeated]
            if not any(trial.state.name == "WAITING" for trial in records):
                tried = [trial.params for trial in counted]
                if self._number(tried) >= self.total:
                    return None
                if self._grid is not None:
                    self.study.enqueue_trial(next(some for some in self._grid if some not in tried))
            begun = sum(trial.state.name != "WAITING" for trial in counted)
            # proposals depend on the seed and earlier results alone, so that a resumed sweep proposes the same. After a
            # lost database this holds up to the first pruned trial: a training found in the store reports no
            # evaluations.
            self.study.sampler = self._sampler(self._config.seed + begun)
            return self.study.ask({dimension.setting: dimension.distribution() for dimension in self._space})

    def note(self, trial: Trial, attribute: str, value: Json) -> None:
        """Record an attribute of a trial, before its end."""
        with self._access():
            trial.set_user_attr(attribute, value)

    def note_stopped(self, trial: Trial) -> None:
        """Record, if the database can be used, that a trial was stopped for another reason than its settings."""
        with suppress(StoreError):  # the first cause is the one to show
            self.note(trial, STOPPED, True)

    def report(self, trial: Trial, value: float, step: int) -> bool:
        """Record a trial's metric at a step; return whether to prune it: worse than the median of earlier trials."""
        with self._access():
            trial.report(value, step)
            return bool(self._config.pruner == "median" and trial.should_prune())

    def complete(self, trial: Trial, value: float) -> None:
        """Record that a trial completed with this metric."""
        self._end(trial, "COMPLETE", value)

    def prune(self, trial: Trial) -> None:
        self._end(trial, "PRUNED")

    def fail(self, trial: Trial, why: str) -> None:
        """Record that a trial failed. why: the error's message."""
        self.note(trial, ERROR, why)
        self._end(trial, "FAIL")

    def _end(self, trial: Trial, state: str, value: float | None = None) -> None:
        from optuna.trial import TrialState

        with self._access():
            self.study.tell(trial, value, TrialState[state])

    @property
    def winner(self) -> Winner | None:
        """The one that `set_winner` recorded last, or None."""
        with self._access():
            document: Winner | None = self.study.user_attrs.get(WINNER)
        return document

    def set_winner(self, document: Winner) -> None:
        with self._access():
            self.study.set_user_attr(WINNER, document)

    def _sampler(self, seed: int) -> BaseSampler:
        from optuna.samplers import RandomSampler, TPESampler

        if self._config.sampler == "tpe":
            return TPESampler(seed=seed, n_startup_trials=RANDOM_TRIALS, constant_liar=self._config.parallel > 1)
        return RandomSampler(seed=seed)

    @contextmanager
    def _access(self) -> Iterator[None]:
        with self._lock, database_errors(self._database):
            yield


def best_of(trials: Sequence[Tried], config: SweepConfig) -> Tried | None:
    """Return the completed trial with the best metric, of equals the first, or None."""
    completed = [trial for trial in trials if trial.value is not None and trial.state == "completed"]
    sign = -1 if config.is_maximised else 1
    return min(completed, key=lambda trial: sign * (trial.value or 0.0), default=None)


def open_study(
    name: str,
    config: SweepConfig,
    space: Sequence[Dimension],
    definition: Meta,
    database: str,
    store: str = "",
    sources: Meta | None = None,
) -> SweepStudy:
    """Open the study with this name, or create it.

    definition: `Plan.definition`; database: its SQLAlchemy URL; store: `Plan.store_id`; sources: digests of data and model.

    Raises:
        ConfigError: The study has results and another definition or other sources, or is of another store.
        MissingDependency: Optuna is not installed.
        StoreError: The database can't be used.
    """
    try:
        import optuna
    except ImportError as error:
        raise MissingDependency("`trnflow sweep` needs Optuna", "pip install 'trnflow[sweep]'") from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with database_errors(database):
        options = {"connect_args": {"timeout": BUSY_SECONDS}} if database.startswith("sqlite") else {}
        storage = _storage(database, {**options, "pool_pre_ping": True})
        study = _opened(storage, name, config)
        if study.user_attrs.get(STORE, store) != store:
            raise ConfigError(
                f"the study {name} of this database belongs to a sweep of another store",
                "give this sweep a name of its own: --name NAME",
            )
        sources = sources or {}
        before = {**sources, **study.user_attrs.get(SOURCES, {})}
        changed = [kind for kind, digest in sources.items() if before[kind] != digest]
        if changed or study.user_attrs.get(DEFINITION) not in (None, definition):
            if any(trial.state.name in ("COMPLETE", "PRUNED") for trial in study.get_trials(deepcopy=False)):
                raise _other(name, study.user_attrs[DEFINITION], definition, changed)
            optuna.delete_study(study_name=name, storage=storage)  # it has no result
            study = _opened(storage, name, config)
        is_new = not study.get_trials(deepcopy=False)
        if RUN not in study.user_attrs:
            study.set_user_attr(RUN, new_run_id())
        study.set_user_attr(DEFINITION, definition)
        study.set_user_attr(SOURCES, before | sources)
        if store:
            study.set_user_attr(STORE, store)
    return SweepStudy(study, config, space, database, is_new=is_new)


def _storage(database: str, options: Meta) -> RDBStorage:
    from optuna.storages import RDBStorage

    try:  # Optuna calls `format` on the URL
        return RDBStorage(database.replace("{", "{{").replace("}", "}}"), engine_kwargs=options)
    # no driver; tables of another Optuna; a port that is no number
    except (ImportError, RuntimeError, ValueError) as error:
        if install := missing_driver(error):
            raise MissingDependency(
                f"the driver of the database {hide_secrets(database)} is not installed", install
            ) from error
        is_malformed = isinstance(error, ValueError)  # whose message may quote a part of the password
        problem = "its URL is malformed" if is_malformed else " ".join(str(error.__cause__ or error).split())
        raise StoreError(
            f"the database of the sweep, {hide_secrets(database)}, can't be used: {scrub(problem)}",
            "install its driver, or name another one: sweep.database=URL",
        ) from error


def _opened(storage: Any, name: str, config: SweepConfig) -> Study:
    import optuna

    direction = "maximize" if config.is_maximised else "minimize"
    pruner = optuna.pruners.MedianPruner(n_startup_trials=RANDOM_TRIALS)
    try:
        return optuna.create_study(
            storage=storage, study_name=name, direction=direction, pruner=pruner, load_if_exists=True
        )
    except ValueError:  # the study exists with the other direction
        return optuna.load_study(storage=storage, study_name=name, pruner=pruner)


def _other(name: str, before: Meta, now: Meta, sources: list[str]) -> ConfigError:
    """Return the error for a study of another definition, or of other sources of these kinds."""
    old, new = (dict(leaves(document)) for document in (before, now))
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    shown = [f"{setting} was {old.get(setting)} and is {new.get(setting)}" for setting in names[:2]]
    more = f", and {len(names) - 2} more" if len(names) > 2 else ""
    shown = shown or [f"the {' and the '.join(sources)} changed since its trials"]
    return ConfigError(
        scrub(f"the study {name} belongs to another sweep: {'; '.join(shown)}{more}"),
        "give this sweep a name of its own: --name NAME",
    )


def _repeated(trials: Sequence[FrozenTrial]) -> set[int]:
    return {trial.user_attrs[AGAIN] for trial in trials if AGAIN in trial.user_attrs}


def _kills(trial: FrozenTrial, trials: Sequence[FrozenTrial]) -> int:
    """Return how often the process died during a trial or one that it repeats."""
    before = trial.user_attrs.get(AGAIN)
    return (not {ERROR, STOPPED} & trial.user_attrs.keys()) + (0 if before is None else _kills(trials[before], trials))


def _tried(trial: FrozenTrial, is_repeated: bool, kills: int) -> Tried:
    state = "killed" if is_repeated else STATES[trial.state.name]
    value = trial.values[0] if trial.values and state == "completed" else None
    settings = trial.params or dict(trial.system_attrs.get("fixed_params", {}))
    attributes = trial.user_attrs
    error = attributes.get(ERROR) or (f"killed {kills} times" if state == "failed" else None)
    return Tried(trial.number, settings, value, state, attributes.get(RUN), error, attributes.get(SHARED, 0.0))


@contextmanager
def database_errors(database: str) -> Iterator[None]:
    """Raise a StoreError in place of an error of Optuna's database."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (StorageInternalError, SQLAlchemyError, KeyError, ModuleNotFoundError) as error:
        problem = reason(error)
        raise StoreError(
            f"the database of the sweep, {hide_secrets(database)}, can't be used: {scrub(problem)}",
            "finished trials stay in the store: mend the database or remove it, and run the same command again",
        ) from error
