"""SageMaker's platform: what it asks, against AWS's own model of the service, and against a rehearsal of its part."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import jsonschema
import pytest

from tests.helpers.sagemaker import ROLE, Rehearsal, sagemaker
from tests.helpers.waiting import wait_for
from trnflow.tasks.errors import ConfigError, MachineError
from trnflow.tasks.platforms.aws import Aws, AwsRefusal, python_pattern
from trnflow.tasks.platforms.protocol import SECRET, Standing
from trnflow.tasks.platforms.sagemaker import SageMaker, secret_values

PLATFORM = SageMaker(
    "s3://bucket/store", "ml.g5.xlarge", ROLE, "123456789012.dkr.ecr.us-east-1.amazonaws.com/trnflow:1"
)
COMMAND = ["python3", "-P", "-m", "trnflow", "job", "s3://bucket/store#" + "0" * 64]
OPTIONS = {
    "Tags": [{"Key": "team", "Value": "nlp"}],
    "VpcConfig": {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]},
    "ResourceConfig": {
        "VolumeSizeInGB": 500, "VolumeKmsKeyId": "key",
        "TrainingPlanArn": "arn:aws:sagemaker:us-east-1:123456789012:training-plan/mine",
    },
    "OutputDataConfig": {"KmsKeyId": "key"},
}  # fmt: skip
SAVES = """
import signal, sys, time
def end(*_):
    print("saved", flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, end)
print("begun", flush=True)
time.sleep(100)
"""


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"ACCESS_KEY_ID": "x", "SECRET_ACCESS_KEY": "y", "DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)


def refused(**fields: Any) -> str:
    platform = replace(PLATFORM, **fields)
    with pytest.raises(ConfigError) as caught:
        platform._check_request(platform.request("trnflow-0-1", COMMAND))
    return str(caught.value)


def test_what_sagemaker_would_refuse_is_named_by_its_setting() -> None:
    assert "SageMaker trains on no such instance (" in (said := refused(instance="ml.g5.xlrage"))
    assert said.endswith("Fix: did you mean ml.g5.xlarge?")
    assert "hardware this machine: SageMaker trains on no such instance" in refused(instance="this machine")
    assert refused(role="arn:aws:iam::12:role/x").startswith(
        "launch.role: 'arn:aws:iam::12:role/x' does not match arn:aws"
    )
    assert refused(image="x" * 300).startswith("launch.image: 300 characters")
    assert refused(options={"VpcConfg": 1}).startswith("launch.options.VpcConfg: AWS knows no such field")
    assert refused(options={"Tags": [{"Key": "a"}]}).startswith("launch.options.Tags[0].Value: it is missing")
    assert "VolumeSizeInGB: '2' is no integer" in refused(options={"ResourceConfig": {"VolumeSizeInGB": "2"}})
    assert "VolumeSizeInGB: True is no integer" in refused(options={"ResourceConfig": {"VolumeSizeInGB": True}})
    assert "VolumeSizeInGB: -1, and AWS wants 0" in refused(options={"ResourceConfig": {"VolumeSizeInGB": -1}})
    assert f"Environment.{SECRET}" not in PLATFORM.request("trnflow-0-1", COMMAND)["Environment"]
    assert refused(secret="x" * 600).startswith("launch.secret: 600 characters, and AWS takes 512")
    assert "Tags: 'x' is no list" in refused(options={"Tags": "x"})
    traffic = {"EnableInterContainerTrafficEncryption": "yes"}
    assert "EnableInterContainerTrafficEncryption: 'yes' is no boolean" in refused(options=traffic)


def test_options_that_are_settings_are_named() -> None:
    taken = {
        "launch.role": {"RoleArn": ROLE}, "launch.max_hours": {"StoppingCondition": {"MaxRuntimeInSeconds": 1}},
        "--on": {"ResourceConfig": {"InstanceType": "ml.m5.large"}}, "trnflow": {"ResourceConfig": {"InstanceCount": 2}},
        "launch.image": {"AlgorithmSpecification": {"TrainingImage": "x"}},
        "store.root": {"OutputDataConfig": {"S3OutputPath": "x"}},
    }  # fmt: skip
    for setting, options in taken.items():
        said = refused(options=options)
        assert said.startswith("launch.options.") and f"is set by {setting}" in said
    assert "launch.options.Environment: set launch.environment" in refused(options={"Environment": {"TOKEN": "x"}})
    assert "the job reads its store in S3" in refused(options={"EnableNetworkIsolation": True})
    assert "launch.options.ResourceConfig is set by trnflow" in refused(options={"ResourceConfig": 1})
    assert "state is kept in the store" in refused(options={"CheckpointConfig": {"S3Uri": "s3://bucket/x"}})


def schema_of(shape: Any) -> dict[str, Any]:
    """A shape of botocore's as a JSON schema: another program than ours judges by it."""
    limits = shape.metadata
    match shape.type_name:
        case "structure":
            members = {name: schema_of(member) for name, member in shape.members.items()}
            return {
                "type": "object",
                "properties": members,
                "required": shape.required_members,
                "additionalProperties": False,
            }
        case "list":
            counts = {f"{name}Items": limits[name] for name in ("min", "max") if name in limits}
            return {"type": "array", "items": schema_of(shape.member), **counts}
        case "map":
            names = {"propertyNames": schema_of(shape.key), "additionalProperties": schema_of(shape.value)}
            return {"type": "object", **names}
        case "string":
            lengths = {f"{name}Length": limits[name] for name in ("min", "max") if name in limits}
            pattern = {"pattern": f"^(?:{python_pattern(limits['pattern'])})$"} if "pattern" in limits else {}
            return {"type": "string", **lengths, **pattern, **({"enum": shape.enum} if shape.enum else {})}
        case "boolean":
            return {"type": "boolean"}
        case _:
            ends = {"minimum": limits.get("min"), "maximum": limits.get("max")}
            return {"type": "integer", **{name: end for name, end in ends.items() if end is not None}}


def check_by_schema(request: Any) -> None:
    shape = (
        boto3.client("sagemaker", region_name="us-east-1")
        .meta.service_model.operation_model("CreateTrainingJob")
        .input_shape
    )
    jsonschema.validate(request, schema_of(shape))


def test_requests_are_valid_by_awss_model_and_hold_all_settings() -> None:
    plain = PLATFORM.request("trnflow-0-1", COMMAND)
    check_by_schema(plain)
    assert plain["AlgorithmSpecification"]["ContainerEntrypoint"] == COMMAND[:4]
    assert plain["AlgorithmSpecification"]["ContainerArguments"] == COMMAND[4:]
    assert plain["ResourceConfig"] == {"InstanceType": "ml.g5.xlarge", "InstanceCount": 1, "VolumeSizeInGB": 100}
    assert (
        "InputDataConfig" not in plain and "CheckpointConfig" not in plain and "EnableManagedSpotTraining" not in plain
    )
    full = replace(
        PLATFORM, max_hours=2, max_wait_hours=1, retries=99, keep_alive_minutes=30, secret="mine", options=OPTIONS
    )
    request = full.request("trnflow-0-1", COMMAND)
    full._check_request(request)
    check_by_schema(request)
    assert request["StoppingCondition"] == {"MaxRuntimeInSeconds": 7200}
    assert request["RetryStrategy"] == {"MaximumRetryAttempts": 30}
    assert request["ResourceConfig"] == {
        **OPTIONS["ResourceConfig"], "InstanceType": "ml.g5.xlarge", "InstanceCount": 1, "KeepAlivePeriodInSeconds": 1800,  # type: ignore[dict-item]
    }  # fmt: skip
    assert request["Environment"][SECRET] == "mine" and request["Environment"]["AWS_DEFAULT_REGION"] == "us-east-1"
    assert request["Tags"] == OPTIONS["Tags"] and request["OutputDataConfig"]["KmsKeyId"] == "key"
    spot = replace(PLATFORM, spot=True, max_hours=2, max_wait_hours=1).request("trnflow-0-1", COMMAND)
    assert spot["StoppingCondition"] == {"MaxRuntimeInSeconds": 7200, "MaxWaitTimeInSeconds": 10800}
    assert spot["EnableManagedSpotTraining"] is True
    for wrong in ({**plain, "RoleArn": "x"}, {**plain, "Nope": 1}):
        with pytest.raises(jsonschema.ValidationError):
            check_by_schema(wrong)


def test_settings_of_this_machine_that_are_missing_or_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the store /home/x is on this machine, and the job can't reach it"):
        replace(PLATFORM, root="/home/x").check()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr("trnflow.tasks.platforms.aws.TRIES", 0)
    with pytest.raises(MachineError, match="AWS can't be reached: .*127.0.0.1:9"):
        Aws("sagemaker", "SageMaker").ask("list_training_jobs")
    assert PLATFORM.look("trnflow-0-1").state == "unknown"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="Unable to locate credentials"):
        Aws("sagemaker", "SageMaker").ask("list_training_jobs")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(ConfigError, match="no AWS region is set"):
        Aws("sagemaker", "SageMaker")


def test_what_aws_says_no_to_becomes_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    aws = Aws("sagemaker", "SageMaker")
    said = {
        "ExpiredTokenException": (ConfigError, "AWS refused the credentials: no"),
        "AccessDeniedException": (AwsRefusal, "services/aws/submitter.json"),
        "ResourceLimitExceeded": (AwsRefusal, "Service Quotas"),
        "ThrottlingException": (MachineError, "SageMaker limits requests: no"),
        "ValidationException": (AwsRefusal, "SageMaker refused it: no (ValidationException)"),
    }
    for code, (kind, words) in said.items():
        error = aws._refusal({"Code": code, "Message": "no"})
        assert type(error) is kind and words in str(error)


@pytest.fixture(scope="module")
def aws() -> Iterator[Rehearsal]:
    with sagemaker() as rehearsal:
        rehearsal.client("s3").create_bucket(Bucket="bucket")
        yield rehearsal


@pytest.fixture
def platform(aws: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> SageMaker:
    for name, value in aws.environ.items():
        monkeypatch.setenv(name, value)
    return replace(PLATFORM, instance="ml.m5.large")


def ended(platform: SageMaker, ticket: str, seconds: float = 60) -> Standing:
    return wait_for(lambda: (at := platform.look(ticket)).state == "ended" and at, seconds)


def shell(platform: SageMaker, job: str, script: str) -> str:
    return platform.submit(job, ["sh", "-c", script, "job", "x#0"])


@pytest.mark.slow
def test_a_job_waits_runs_ends_and_its_name_is_never_used_again(
    platform: SageMaker, aws: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform.check()
    ticket = shell(platform, "a1", "echo hello; until [ -e /opt/ml/go ]; do sleep 0.1; done; exit 0")
    assert ticket == "trnflow-a1-1" and platform.find("a1") == ticket and platform.find("a") is None
    wait_for(lambda: platform.look(ticket) == Standing("running", "Training"), 20)
    # of two who submit at a time the second joins
    with monkeypatch.context() as patched:
        patched.setattr(SageMaker, "_named", lambda self, job: iter(()))
        assert shell(platform, "a1", "exit 0") == ticket
    (volume,) = (aws.folder / "volumes").glob("trnflow-a1-1-*")
    (volume / "ml/go").touch()
    assert ended(platform, ticket) == Standing("ended") and platform.find("a1") is None
    wait_for(lambda: platform.printed(ticket) == "hello", 10)
    failed = shell(platform, "a1", "printf 'no rows' > /opt/ml/output/failure; exit 1")
    assert failed == "trnflow-a1-2"
    assert ended(platform, failed) == Standing("ended", "AlgorithmError: no rows, exit code: 1")
    assert [name for name in aws.jobs() if "-a1-" in name] == [failed, ticket]
    # somebody's name that only contains ours
    fields = platform.request("my-trnflow-a1-7", ["sh", "-c", "exit 0", "job", "x#0"])
    aws.client("sagemaker").create_training_job(**fields)
    assert platform.find("a1") is None and shell(platform, "a1", "exit 0") == "trnflow-a1-3"
    platform.end(ticket)
    platform.end("trnflow-nope-1")
    assert platform.look("trnflow-nope-1") == Standing("ended") and platform.printed("trnflow-nope-1") == ""


@pytest.mark.slow
def test_a_job_that_is_ended_gets_term_as_its_first_process_and_leaves_none(
    platform: SageMaker, aws: Rehearsal
) -> None:
    ticket = platform.submit("b1", [sys.executable, "-c", SAVES, "job", "x#0"])
    wait_for(lambda: (aws.folder / f"{ticket}.log").exists() and "begun" in aws.output(ticket), 20)
    platform.end(ticket)
    assert ended(platform, ticket) == Standing("ended", "Stopped")
    assert "saved" in aws.output(ticket) and aws.containers() == []


@pytest.mark.slow
def test_limited_requests_are_asked_again(platform: SageMaker, aws: Rehearsal, monkeypatch: pytest.MonkeyPatch) -> None:
    aws.rehearse("throttle", times=2)
    assert ended(platform, shell(platform, "c1", "exit 0")) == Standing("ended")
    aws.rehearse("throttle", times=2)
    monkeypatch.setattr("trnflow.tasks.platforms.aws.TRIES", 1)
    with pytest.raises(MachineError, match=r"SageMaker limits requests: .*Rate exceeded"):
        shell(replace(platform), "c2", "exit 0")
    assert not [name for name in aws.jobs() if "-c2-" in name]


@pytest.mark.slow
def test_a_warm_pool_is_seen_until_the_next_job_takes_it(platform: SageMaker, aws: Rehearsal) -> None:
    keeps = replace(platform, keep_alive_minutes=10)
    first = shell(keeps, "d1", "exit 0")
    ended(platform, first)
    aws.rehearse("tick", seconds=600)
    ((ticket, instance, seconds),) = platform.pools()
    assert (ticket, instance, seconds) == (first, "ml.m5.large", 600.0)
    second = shell(keeps, "d2", "sleep 1")
    assert aws.describe(first)["WarmPoolStatus"]["ReusedByJob"] == second
    ended(platform, second)
    assert [pool.ticket for pool in platform.pools()] == [second]


@pytest.mark.slow
def test_a_bucket_that_is_elsewhere_or_not_there(platform: SageMaker, aws: Rehearsal) -> None:
    there = aws.client("s3")
    there.create_bucket(Bucket="far", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    with pytest.raises(ConfigError, match="the store's bucket is in eu-west-1, and the job would be in us-east-1"):
        replace(platform, root="s3://far/store").check()
    with pytest.raises(ConfigError, match=r"S3 refused it: .*404"):
        replace(platform, root="s3://nobodys/store").check()


@pytest.mark.slow
@pytest.mark.parametrize(("minutes", "which"), [(10, "10 min ahead of"), (-6, "6 min behind")])
def test_a_clock_that_is_far_off_is_said(
    minutes: int, which: str, platform: SageMaker, aws: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws.client("s3").create_bucket(Bucket=f"clock{abs(minutes)}")
    there = replace(platform, root=f"s3://clock{abs(minutes)}/store")
    there.check()

    class Clock(datetime):
        @classmethod
        def now(cls, zone: Any = None) -> datetime:
            return datetime.now(zone) + timedelta(minutes=minutes)

    monkeypatch.setattr("trnflow.tasks.platforms.sagemaker.datetime", Clock)
    with pytest.raises(MachineError, match=f"this machine's clock is {which} S3's"):
        there.check()


@pytest.mark.slow
def test_a_secret_holds_the_values_of_variables(platform: SageMaker, aws: Rehearsal) -> None:
    secrets = aws.client("secretsmanager")
    secrets.create_secret(Name="trnflow-mine", SecretString=json.dumps({"HF_TOKEN": "hf_x"}))
    secrets.create_secret(Name="trnflow-wrong", SecretString='["hf_x"]')
    assert secret_values("trnflow-mine") == {"HF_TOKEN": "hf_x"}
    with pytest.raises(ConfigError) as caught:
        secret_values("trnflow-wrong")
    assert "is no JSON object of texts" in str(caught.value) and "hf_x" not in str(caught.value)
    with pytest.raises(ConfigError, match="Secrets Manager refused it"):
        secret_values("trnflow-none")
