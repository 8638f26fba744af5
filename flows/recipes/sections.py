"""The sections of a recipe that belong to no stage: the machine, services, what `own` functions read, sweeps."""

from __future__ import annotations

import math
import os
import re
from pathlib import PurePath, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from trnflow.tasks.config import (
    BOUND,
    NOT_KEYED,
    REACHES_OUT,
    RUNS_CODE,
    Hook,
    NonNegative,
    Parallel,
    Positive,
    PositiveCount,
    Seconds,
    Seed,
    StageConfig,
)
from trnflow.tasks.evaluation.scores import is_less_better
from trnflow.tasks.launch import GRACE_SECONDS
from trnflow.tasks.platforms.sagemaker import LONGEST_GRACE, LONGEST_KEEP_ALIVE, MOST_HOURS
from trnflow.tasks.platforms.slurm import check_times, option_error
from trnflow.tasks.store.lease import LONGEST_TTL
from trnflow.tasks.system.compiler_flags import FLAGS
from trnflow.tasks.system.redaction import variables_in


class HardwareConfig(StageConfig):
    """The machine that the recipe is written for: its price and memory. Which devices train is set by `train.device` and
    `train.devices`."""

    name: str = "this machine"
    """The name of the machine, as shown in reports."""
    price_per_hour: NonNegative = 0.0
    """The price of the machine in USD per hour. Plans and reports show dollars when it is above 0."""
    memory_gib: Positive | None = None
    """The memory of each device, in GiB (2^30 bytes). Default: what is found on the device."""
    device: Literal["cpu", "cuda", "neuron"] | None = None
    """The kind of device that the price and the memory belong to. When `train.device` is another kind, price and memory
    are ignored."""


class StoreConfig(StageConfig):
    """The store: where artifacts are kept, and how long a run that gives no sign of life keeps the right to make a
    stage's result."""

    root: Annotated[str | None, REACHES_OUT] = None
    """The folder or fsspec URL (`s3://bucket/prefix`) of the store. Default: the variable TRNFLOW_STORE, else
    `store` in the home (TRNFLOW_HOME)."""
    min_free_gb: Annotated[NonNegative, BOUND] = 1.0
    """The space that must stay free on the store's disk, in GB (10^9 bytes)."""
    lease_ttl_seconds: Annotated[float, Field(gt=0, le=LONGEST_TTL)] = 60.0
    """The time without a heartbeat, in seconds, after which another run takes over a stage that this run began."""


OF_SAGEMAKER = ("role", "image", "spot", "keep_alive_minutes", "secret")
"""The settings of `launch` that only kind `sagemaker` has."""
PLATFORM_SETTINGS = ("stages", "nodes", "python", "max_hours", "max_wait_hours", "retries", "options", *OF_SAGEMAKER)
"""The settings of `launch` that say how a job runs; `local` has no job."""


class LaunchConfig(StageConfig):
    """Where stages run, how their processes are started and stopped, and which devices training uses."""

    kind: Literal["local", "slurm", "sagemaker"] = "local"
    """Where stages run. `local` is this machine. `slurm` gives the stages behind the data stages, as a job, to the cluster
    whose login node this machine is, `sagemaker` to Amazon SageMaker, on the instance that `--on` names."""
    grace_seconds: Seconds = GRACE_SECONDS
    """The time between SIGTERM and SIGKILL, in seconds, in which training saves its state. AWS stops a spot instance
    120 seconds after its notice."""
    memory_gib: Annotated[Positive | None, BOUND] = None
    """The memory that the processes of a stage may hold together, in GiB (2^30 bytes), files that they map aside; a stage
    that holds more is ended. Default: what the machine, or its cgroup, has less a tenth (at least 1 GiB), but at least half."""
    environment: Annotated[dict[str, str], RUNS_CODE] = {}
    """Further environment variables of the processes of stages that load PyTorch. Their values are never shown."""
    device_names: tuple[str, ...] | None = None
    """The names of the devices that training uses, of which each serves one training at a time: another training of this
    machine and store that names one of them waits. Default: the GPUs that CUDA_VISIBLE_DEVICES names, all NeuronCores as
    one, and none on the CPU, whose cores trainings share."""
    stages: tuple[str, ...] | None = None
    """The stages that run as a job, with another kind than `local`. Default: all behind the data stages."""
    nodes: Parallel = 1
    """The number of machines of a job. Several are not built yet."""
    python: Annotated[str | None, RUNS_CODE] = None
    """The Python interpreter there, with trnflow installed: an absolute path. Default: with kind `slurm` the path of this one,
    which the nodes see where they share the disk; with kind `sagemaker` the image's `python3`."""
    max_hours: Annotated[float, Field(gt=0, le=8760)] = 24.0
    """The time limit of a job in hours. Training saves its state before it. With kind `slurm` it is that of each start, and the
    job starts again; with kind `sagemaker` (672 at most) the same command goes on, in a new job."""
    max_wait_hours: Annotated[float, Field(gt=0, le=8760)] = 24.0
    """The longest time in hours that a job waits for a machine; then it is cancelled. With `spot` also that between stops."""
    retries: Annotated[int, Field(ge=0, le=1000)] = 3
    """How often a job starts again that was stopped with its state saved, or was killed; with kind `sagemaker` after errors
    of SageMaker's own (30 at most)."""
    role: Annotated[str | None, REACHES_OUT] = None
    """With kind `sagemaker`: the ARN of the IAM role that the job takes (services/aws/role.json)."""
    image: Annotated[str | None, RUNS_CODE] = None
    """With kind `sagemaker`: the container image in ECR, with trnflow installed (services/aws/Dockerfile)."""
    spot: bool = False
    """With kind `sagemaker`: whether to use a spot instance, which AWS may take back. What was trained since the last
    `train.checkpoint_every` may then be lost."""
    keep_alive_minutes: Annotated[int, Field(ge=0, le=LONGEST_KEEP_ALIVE)] = 0
    """With kind `sagemaker`: how long the instance is kept, and paid for, after a job, in minutes. The next job of the same
    image, role and hardware, such as a sweep's next trial, starts on it."""
    secret: Annotated[str | None, REACHES_OUT] = None
    """With kind `sagemaker`: the secret of AWS Secrets Manager, by name or ARN, that holds the variables to which
    `launch.environment` refers: a JSON object, such as `{"HF_TOKEN": "..."}`."""
    options: Annotated[dict[str, Any], RUNS_CODE] = {}
    """With kind `slurm`: further long options of `sbatch`, such as `{partition: gpu, gres: "gpu:1"}`; `true` is an option
    without a value. With kind `sagemaker`: further fields of CreateTrainingJob, such as `{VpcConfig: {...}, Tags: [...]}`."""

    @field_validator("nodes")
    @classmethod
    def _is_a_single_machine(cls, value: int) -> int:
        if value > 1:
            raise ValueError(f"{value} machines: several nodes are not built, set it to 1")
        return value

    @field_validator("python")
    @classmethod
    def _is_a_path(cls, value: str | None) -> str | None:
        if value is not None and not (PurePosixPath(value).is_absolute() and value.isprintable()):
            raise ValueError(f"{value!r} is no absolute path, such as /shared/trnflow/.venv/bin/python")
        return value

    @model_validator(mode="after")
    def _is_of_its_kind(self) -> LaunchConfig:
        if self.kind == "sagemaker":
            self._check_sagemaker()
            return self
        absent = OF_SAGEMAKER if self.kind == "slurm" else PLATFORM_SETTINGS
        for name in absent:
            if getattr(self, name) != type(self).model_fields[name].default:
                wanted = "sagemaker" if name in OF_SAGEMAKER else "slurm"
                raise ValueError(
                    f"{name} is of a job, and kind is {self.kind}: set kind={wanted}, or launch={{}} to run all of it here"
                )
        if self.kind == "slurm":
            check_times(self.max_hours, self.grace_seconds)
            for name, value in self.options.items():
                if why := option_error(name, value):
                    raise ValueError(f"options: {why}")
        return self

    def _check_sagemaker(self) -> None:
        for name, example in (
            ("role", "arn:aws:iam::123456789012:role/trnflow"),
            ("image", "...amazonaws.com/trnflow:1"),
        ):
            if not getattr(self, name):
                raise ValueError(f"{name} is missing, which kind sagemaker needs: set it, such as {example}")
        if self.grace_seconds > LONGEST_GRACE:
            raise ValueError(
                f"grace_seconds is {self.grace_seconds:g}, and SageMaker gives 120: set it to {LONGEST_GRACE:g} or less"
            )
        if self.max_hours > MOST_HOURS:
            raise ValueError(f"max_hours is {self.max_hours:g}, and SageMaker gives {MOST_HOURS} at most: 28 days")
        if self.spot and self.keep_alive_minutes:
            raise ValueError("keep_alive_minutes: SageMaker keeps no spot instance: set it to 0, or spot to false")
        secret = next((name for name, value in self.environment.items() if variables_in(value)), None)
        if secret and not self.secret:
            raise ValueError(
                f"environment.{secret} is a secret, which SageMaker would show to whoever sees the job: put it into AWS "
                "Secrets Manager, and name that in launch.secret"
            )

    def here(self) -> LaunchConfig:
        """Return the section as the job itself reads it, which runs its stages where it is."""
        fields = type(self).model_fields
        return self.model_copy(update={"kind": "local", **{name: fields[name].default for name in PLATFORM_SETTINGS}})

    @field_validator("environment")
    @classmethod
    def _changes_no_result(cls, value: dict[str, str]) -> dict[str, str]:
        for name in FLAGS:
            if name in value:
                raise ValueError(
                    f"{name} changes results: set train.compiler_flags, or {name} around the command, where the key sees it"
                )
        return value


class TaskRunnerConfig(StageConfig):
    """The workers that make parts (pieces of the work) of the data stages in parallel: their kind and number."""

    kind: Literal["threads", "processes", "ray", "dask"] = "threads"
    """The workers: `threads` of the stage's process, `processes` of this machine, or a `ray` or `dask` cluster."""
    workers: Parallel | None = None
    """The number of workers; with `address`, the largest number of parts that are sent to the cluster at once. Default:
    the number of CPU cores of this machine."""
    address: Annotated[str | None, RUNS_CODE] = None
    """The address of a Ray or Dask cluster. Default: a local cluster is started."""

    @model_validator(mode="after")
    def _address_has_a_cluster(self) -> TaskRunnerConfig:
        if self.address and self.kind not in ("ray", "dask"):
            raise ValueError(f"`address` is of a Ray or Dask cluster, but `kind` is {self.kind}")
        return self

    @property
    def count(self) -> int:
        """The number of workers."""
        return self.workers or len(os.sched_getaffinity(0))


class RunConfig(StageConfig):
    """What `trnflow run` does before the first stage."""

    rehearse_above_minutes: NonNegative = 10.0
    """A run that is expected to take longer, in minutes, or of which nothing tells how long, is rehearsed first, if its
    model has more than 10 million parameters. A first run's training is estimated. `run --no-rehearse` skips that."""


class TrackingConfig(StageConfig):
    """Whether runs are recorded in MLflow, and where."""

    enabled: bool = True
    """Whether runs are recorded in MLflow."""
    uri: Annotated[str | None, REACHES_OUT] = None
    """The address of the MLflow tracking server. Default: the variable MLFLOW_TRACKING_URI, else
    `sqlite:///<home>/mlflow.db`."""
    experiment: str = "trnflow"
    """The name of the MLflow experiment."""
    also: Annotated[tuple[Literal["tensorboard", "wandb", "trackio"], ...], REACHES_OUT] = ()
    """Other trackers, each with the extra of its name: `tensorboard` writes its files to `<home>/tensorboard`, `wandb` an
    offline run to `<home>/wandb` (unless the variable WANDB_MODE says otherwise), `trackio` to `<home>/trackio`."""


class OwnConfig(StageConfig):
    """What your own functions read beside what they are given."""

    files: tuple[str, ...] = ()
    """The files that your functions read, below the folder of the recipe's file. A file's content is in the key of each stage
    whose functions name it in a text."""
    identity: Annotated[Hook | None, NOT_KEYED] = None
    """A function of yours that returns the state of what `data.make` reads as a text, `package.module:name`, called with
    `data.arguments` whenever a plan is made. Another state loads the rows anew; `data.version` may then be left out."""

    @field_validator("files")
    @classmethod
    def _are_below_the_recipe(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if PurePath(name).is_absolute() or ".." in PurePath(name).parts or not PurePath(name).name:
                raise ValueError(f"{name!r} is no path below the recipe's folder: put the file there, and name it so")
        return value


UNITS = {"s": 1, "m": 60, "h": 3600}


def _seconds(text: str) -> float:
    """Return the seconds of a time such as `30m`. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh])", text)
    seconds = float(match[1]) * UNITS[match[2]] if match else 0.0
    if not 0 < seconds < 1e9:
        raise ValueError(f"{text} is no time, which is a number above 0 with s, m or h, such as 30m")
    return seconds


class SweepConfig(StageConfig):
    """Which settings `trnflow sweep` varies, how many trials (trainings with varied settings) it runs, and by which
    metric it chooses the best trial. Other runs of the recipe ignore this section."""

    settings: dict[str, str | list[Any]] = {}
    """The settings that vary, by dotted name: a range (`1e-5..1e-4`, `1e-5..1e-4:log`, `16..64:16` with a step) or a list
    of choices."""
    within: str | None = None
    """A time such as `30m`, `2h` or `90s`. With it, a sweep tries a ladder of learning rates and numbers of epochs until the
    time is used, instead of `settings` and `trials`. Unless `metric` is set, it compares by `train.best_metric`, or if that is
    not set either, by eval_accuracy where each row has one class."""
    trials: PositiveCount | None = None
    """The number of trials. Default: 20; with `sampler` grid all combinations."""
    metric: str = "eval_loss"
    """The metric of stage `train` by which trials are compared, such as eval_loss or eval_accuracy."""
    direction: Literal["min", "max"] | None = None
    """Whether a low or a high metric is good. Default: `max` where more is better, as of accuracy, else
    `min`."""
    sampler: Literal["tpe", "random", "grid"] = "tpe"
    """How the settings of a trial are chosen: `tpe` from the results of earlier trials, `random`, or `grid` (every
    combination)."""
    pruner: Literal["median", "none"] = "median"
    """Whether a trial ends early when an evaluation during training is worse than the median of earlier trials."""
    parallel: Parallel = 1
    """The number of trials at a time."""
    seed: Seed = 0
    """The seed of the sampler."""
    name: str | None = None
    """The name of the study and of its folder in `<home>/sweeps`. Default: the recipe's name."""
    database: Annotated[str | None, REACHES_OUT] = None
    """The SQLAlchemy URL of Optuna's database. Default: `sqlite:///<home>/optuna.db`."""

    @field_validator("within", mode="before")
    @classmethod
    def _is_a_time(cls, value: Any) -> Any:
        if value is not None:
            _seconds(str(value))
        return value

    @property
    def within_seconds(self) -> float:
        """`within` in seconds; infinite if it is not set."""
        return _seconds(self.within) if self.within else math.inf

    @property
    def is_maximised(self) -> bool:
        """Whether a higher `metric` is better."""
        if self.direction is None:
            return not is_less_better(self.metric)
        return self.direction == "max"
