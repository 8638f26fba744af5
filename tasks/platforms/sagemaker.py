"""Amazon SageMaker: a job is a training job of one instance, whose container runs `trnflow job` as its first process.

AWS's own `train` and the drivers of its SDK keep SIGTERM to themselves: a job that they run is never told that it ends.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

from trnflow.tasks.errors import ConfigError, MachineError, TrnflowError
from trnflow.tasks.platforms.aws import Aws, AwsRefusal, request_faults
from trnflow.tasks.platforms.protocol import FAILURE_FILE, SECRET, Standing

LONGEST_GRACE = 110.0
"""Seconds; SageMaker kills a container 120 seconds after its SIGTERM."""
NAME = "trnflow-"
HOME = "/tmp/trnflow"
"""On the instance's volume, as `/opt/ml` is."""
FAILURE = "/opt/ml/output/failure"
"""What DescribeTrainingJob shows as the reason of a failure: its first 1,024 characters."""
LOG_GROUP = "/aws/sagemaker/TrainingJobs"
LAST_EVENTS = 20
MOST_SKEW = 300.0
"""Seconds that this machine's clock may differ from S3's, which refuses 900."""
NAMES = 8
"""Tries to find a name that no training job has had."""
LONGEST_KEEP_ALIVE, MOST_RETRIES, MOST_HOURS = 60, 30, 672
"""Minutes, starts and hours that SageMaker allows."""
DEFAULTS: Mapping[str, Any] = {"ResourceConfig": {"VolumeSizeInGB": 100}}
"""What `launch.options` may say otherwise."""
ALIVE = frozenset({"InProgress", "Stopping"})
TRAINS = frozenset({"Training", "Uploading", "Stopping", "MaxRuntimeExceeded", "MaxWaitTimeExceeded"})
"""The secondary states of a job whose container runs."""
OUR_FIELDS = {
    "TrainingJobName": "trnflow",
    "RoleArn": "launch.role",
    "AlgorithmSpecification.TrainingImage": "launch.image",
    "AlgorithmSpecification.ContainerEntrypoint[0]": "launch.python",
    "AlgorithmSpecification.ContainerArguments[1]": "store.root",
    "OutputDataConfig.S3OutputPath": "store.root",
    "ResourceConfig.InstanceType": "--on",
    "ResourceConfig.KeepAlivePeriodInSeconds": "launch.keep_alive_minutes",
    "StoppingCondition.MaxRuntimeInSeconds": "launch.max_hours",
    "StoppingCondition.MaxWaitTimeInSeconds": "launch.max_wait_hours",
    "EnableManagedSpotTraining": "launch.spot",
    "RetryStrategy.MaximumRetryAttempts": "launch.retries",
    f"Environment.{SECRET}": "launch.secret",
}
"""{field of the request: the setting that it comes from}"""
LEFT_OUT = {
    "CheckpointConfig": "state is kept in the store",
    "InputDataConfig": "data is read from the store",
    "EnableNetworkIsolation": "the job reads its store in S3",
    "EnableManagedSpotTraining": "set launch.spot",
    "Environment": "set launch.environment, whose values the job's description does not show",
}
"""{field that `launch.options` may not have: why}"""


class Pool(NamedTuple):
    """An instance that is kept, and paid for, after a job.

    ticket: the job that left it; instance: such as `ml.g5.xlarge`; seconds: how long it has been kept.
    """

    ticket: str
    instance: str
    seconds: float


@dataclass(frozen=True)
class SageMaker:
    """SageMaker in the region and account of this process's AWS settings.

    Attributes:
        root: The store's, in S3.
        instance: Such as `ml.g5.xlarge`.
        role: The ARN of the role that the job takes.
        image: Of the container, with trnflow.
        max_hours: The longest time of a job.
        max_wait_hours: On a spot instance, the longest time beside it in which the job may wait for one.
        retries: How often SageMaker starts a job again after an error of its own.
        keep_alive_minutes: How long the instance is kept, and paid for, after a job.
        secret: A secret of Secrets Manager: a JSON object with the values of the job's variables.
        options: Further fields of CreateTrainingJob.
    """

    kind: ClassVar[str] = "sagemaker"
    python: ClassVar[str] = "python3"
    root: str
    instance: str = ""
    role: str = ""
    image: str = ""
    max_hours: float = 24.0
    max_wait_hours: float = 24.0
    retries: int = 0
    spot: bool = False
    keep_alive_minutes: int = 0
    secret: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Raise ConfigError for what SageMaker would refuse, and for a store in another region."""
        if not self.root.startswith("s3://"):
            raise ConfigError(
                f"the store {self.root} is on this machine, and the job can't reach it",
                "set store.root=s3://bucket/prefix",
            )
        self._check_request(self.request(f"{NAME}job-1", [self.python, "job", self.root]))
        self._check_bucket()

    def submit(self, job: str, command: Sequence[str]) -> str:
        """Create a training job; of two who do so at a time the second joins the first one's."""
        newest = max((_number_of(one["TrainingJobName"], job) or 0 for one in self._named(job)), default=0)
        for number in range(newest + 1, newest + 1 + NAMES):
            request = self.request(f"{NAME}{job}-{number}", command)
            self._check_request(request)
            ticket = str(request["TrainingJobName"])
            try:
                self._sagemaker.ask("create_training_job", **request)
            except AwsRefusal as error:
                if error.code != "ResourceInUse":
                    raise
                # a name serves once, as long as its job is not deleted
                if self.look(ticket).state == "ended":
                    continue
            return ticket
        raise MachineError(f"SageMaker has jobs of the names {NAME}{job}-N that it does not list", "try again later")

    def find(self, job: str) -> str | None:
        if not re.fullmatch("[0-9a-z]+", job):
            return None
        # one that stops saves its state, and the next goes on from there
        return next(
            (one["TrainingJobName"] for one in self._named(job) if one["TrainingJobStatus"] == "InProgress"), None
        )

    def look(self, ticket: str) -> Standing:
        try:
            found = self._sagemaker.ask("describe_training_job", TrainingJobName=ticket)
        except AwsRefusal as error:
            is_gone = error.code in ("ValidationException", "ResourceNotFound")
            return Standing("ended") if is_gone else Standing("unknown", error.message)
        except TrnflowError as error:
            return Standing("unknown", error.message)
        status, second = found["TrainingJobStatus"], str(found.get("SecondaryStatus", ""))
        if status in ALIVE:
            return Standing("running" if second in TRAINS else "waiting", second)
        why = found.get("FailureReason") or ("" if status == "Completed" else second)
        return Standing("ended", " ".join(str(why).split())[:300])

    def end(self, ticket: str) -> None:
        try:
            self._sagemaker.ask("stop_training_job", TrainingJobName=ticket)
        except AwsRefusal as error:
            # of a job that has ended
            if error.code not in ("ValidationException", "ResourceNotFound"):
                raise MachineError(error.message, error.fix) from None
        except ConfigError as error:
            raise MachineError(error.message, error.fix) from None

    def printed(self, ticket: str) -> str:
        logs = Aws("logs", "CloudWatch")
        try:
            streams = logs.ask("describe_log_streams", logGroupName=LOG_GROUP, logStreamNamePrefix=f"{ticket}/")
            # of a name that was used again, the newest
            newest = max(streams["logStreams"], key=lambda stream: stream.get("lastEventTimestamp", 0))
            name = newest["logStreamName"]
            events = logs.ask("get_log_events", logGroupName=LOG_GROUP, logStreamName=name, limit=LAST_EVENTS)["events"]
        except (TrnflowError, ValueError):
            return ""
        return "\n".join(event["message"] for event in events).strip()

    def pools(self) -> list[Pool]:
        """Return the instances that jobs of trnflow's have left warm. Raises TrnflowError."""
        pages = self._sagemaker.pages("list_training_jobs", NameContains=NAME, WarmPoolStatusEquals="Available")
        tickets = [one["TrainingJobName"] for page in pages for one in page["TrainingJobSummaries"]]
        jobs = [self._sagemaker.ask("describe_training_job", TrainingJobName=ticket) for ticket in tickets]
        return [Pool(job["TrainingJobName"], job["ResourceConfig"]["InstanceType"], _kept_seconds(job)) for job in jobs]

    def request(self, name: str, command: Sequence[str]) -> dict[str, Any]:
        """Return the fields of CreateTrainingJob. Raises ConfigError for options that trnflow sets itself."""
        *entry, word, address = command
        seconds = math.ceil(self.max_hours * 3600)
        ours: dict[str, Any] = {
            "TrainingJobName": name,
            "RoleArn": self.role,
            "AlgorithmSpecification": {
                "TrainingImage": self.image,
                "TrainingInputMode": "File",
                "ContainerEntrypoint": entry,
                "ContainerArguments": [word, address],
            },
            # the API wants it; results go into the store
            "OutputDataConfig": {"S3OutputPath": f"{self.root.rstrip('/')}/sagemaker"},
            "ResourceConfig": {"InstanceType": self.instance, "InstanceCount": 1},
            "StoppingCondition": {"MaxRuntimeInSeconds": seconds},
            "Environment": {"TRNFLOW_HOME": HOME, FAILURE_FILE: FAILURE, "AWS_DEFAULT_REGION": self._sagemaker.region},
        }
        if self.secret:
            ours["Environment"][SECRET] = self.secret
        if self.retries:
            ours["RetryStrategy"] = {"MaximumRetryAttempts": min(self.retries, MOST_RETRIES)}
        if self.keep_alive_minutes:
            ours["ResourceConfig"]["KeepAlivePeriodInSeconds"] = self.keep_alive_minutes * 60
        if self.spot:
            ours["EnableManagedSpotTraining"] = True
            ours["StoppingCondition"]["MaxWaitTimeInSeconds"] = seconds + math.ceil(self.max_wait_hours * 3600)
        for name, why in LEFT_OUT.items():
            if name in self.options:
                raise ConfigError(f"launch.options.{name}: {why}", "leave it out")
        return _merged({**DEFAULTS}, self.options, ours)

    def _check_request(self, request: Mapping[str, Any]) -> None:
        model = self._sagemaker.model
        known = model.shape_for("TrainingInstanceType").enum
        if self.instance not in known:
            near = difflib.get_close_matches(self.instance, known, 1)
            raise ConfigError(
                f"hardware {self.instance}: SageMaker trains on no such instance ({len(known)} are known)",
                f"did you mean {near[0]}?" if near else "choose one with --on, such as ml.g5.xlarge",
            )
        shape = model.operation_model("CreateTrainingJob").input_shape
        for path, why in request_faults(shape, request):
            setting = OUR_FIELDS.get(path, f"launch.options.{path}")
            raise ConfigError(f"{setting}: {why}", f"correct {setting}")

    def _check_bucket(self) -> None:
        bucket = self.root.removeprefix("s3://").partition("/")[0]
        answer = Aws("s3", "S3").ask("head_bucket", Bucket=bucket)
        here, there = self._sagemaker.region, answer.get("BucketRegion")
        if there and there != here:
            raise ConfigError(
                f"the store's bucket is in {there}, and the job would be in {here}",
                f"export AWS_DEFAULT_REGION={there}, or use a bucket in {here}",
            )
        ahead = (
            datetime.now(UTC) - parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
        ).total_seconds()
        if abs(ahead) > MOST_SKEW:
            which = "ahead of" if ahead > 0 else "behind"
            raise MachineError(
                f"this machine's clock is {abs(ahead) / 60:.0f} min {which} S3's, which refuses 15", "set it, as by NTP"
            )

    def _named(self, job: str) -> Iterator[Mapping[str, Any]]:
        """Yield the training jobs of a job, the newest first."""
        order = {"SortBy": "CreationTime", "SortOrder": "Descending"}
        for page in self._sagemaker.pages("list_training_jobs", NameContains=f"{NAME}{job}-", **order):
            # a name that only contains it is somebody else's
            yield from (
                one for one in page["TrainingJobSummaries"] if _number_of(one["TrainingJobName"], job) is not None
            )

    @cached_property
    def _sagemaker(self) -> Aws:
        return Aws("sagemaker", "SageMaker")


def _number_of(ticket: str, job: str) -> int | None:
    """Return which of a job's training jobs has this name; None for another job's."""
    found = re.fullmatch(rf"{NAME}{re.escape(job)}-(\d+)", ticket)
    return int(found[1]) if found else None


def _kept_seconds(job: Mapping[str, Any]) -> float:
    """Return how long a job's instance has been kept, by AWS's bill, else by its end."""
    billed = job.get("WarmPoolStatus", {}).get("ResourceRetainedBillableTimeInSeconds")
    return float((datetime.now(UTC) - job["TrainingEndTime"]).total_seconds() if billed is None else billed)


def secret_values(secret: str) -> dict[str, str]:
    """Return the variables in a secret of AWS Secrets Manager, which holds a JSON object of texts. Raises ConfigError."""
    text = Aws("secretsmanager", "Secrets Manager").ask("get_secret_value", SecretId=secret).get("SecretString", "")
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise ConfigError(f"the secret {secret} is no JSON object of texts", 'store {"NAME": "value"} in it')
    return values


def _merged(
    defaults: Mapping[str, Any], options: Mapping[str, Any], ours: Mapping[str, Any], path: str = ""
) -> dict[str, Any]:
    """Return the fields of all three, those that are objects merged likewise. Raises ConfigError for an option that is ours."""
    merged = {**defaults, **options, **ours}
    for name in merged:
        at = f"{path}.{name}" if path else name
        parts = [each[name] for each in (defaults, options, ours) if name in each]
        if len(parts) > 1 and all(isinstance(part, Mapping) for part in parts):
            merged[name] = _merged(defaults.get(name, {}), options.get(name, {}), ours.get(name, {}), at)
        elif name in options and name in ours:
            raise ConfigError(
                f"launch.options.{at} is set by {OUR_FIELDS.get(at, 'trnflow')}", "leave it out of launch.options"
            )
    return merged
