"""What SageMaker's answers mean, without a service: `test_sagemaker.py` has a rehearsal of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import cache
from types import SimpleNamespace
from typing import Any

import boto3
import pytest

from tests.helpers.sagemaker import ROLE
from trnflow.tasks.errors import ConfigError, MachineError
from trnflow.tasks.platforms.aws import Aws, AwsRefusal
from trnflow.tasks.platforms.protocol import Standing
from trnflow.tasks.platforms.sagemaker import NAMES, SageMaker, secret_values

Answers = Mapping[str, Any]
COMMAND = ["python3", "-P", "-m", "trnflow", "job", "s3://bucket/store#" + "0" * 64]


@cache
def client(service: str) -> Any:
    """A client, which takes half a second to make."""
    return boto3.session.Session(region_name="us-east-1").client(service)


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> SageMaker:
    for name, value in {"ACCESS_KEY_ID": "x", "SECRET_ACCESS_KEY": "y", "DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setattr(boto3, "Session", lambda: SimpleNamespace(client=lambda service, config: client(service)))
    return SageMaker("s3://bucket/store", "ml.g5.xlarge", ROLE, "image:1")


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answers], list[tuple[str, Answers]]]:
    """Give the services' answers, each a value, an error or a function of the request; return what is asked."""

    def give(answers: Answers) -> list[tuple[str, Answers]]:
        asked: list[tuple[str, Answers]] = []

        def ask(self: Aws, operation: str, **fields: Any) -> Any:
            asked.append((operation, fields))
            answer = answers[operation]
            answer = answer(fields) if callable(answer) else answer
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr(Aws, "ask", ask)
        return asked

    return give


def refusal(code: str) -> AwsRefusal:
    error = AwsRefusal("SageMaker refused it", "change it")
    error.code = code
    return error


def jobs(*found: tuple[str, str], after: str | None = None) -> Answers:
    page = {"TrainingJobSummaries": [{"TrainingJobName": name, "TrainingJobStatus": state} for name, state in found]}
    return page | ({"NextToken": after} if after else {})


def test_a_job_is_joined_while_it_is_in_progress_on_whatever_page_it_stands(platform: SageMaker, service: Any) -> None:
    first = jobs(("trnflow-a1-3", "Stopping"), ("mine-trnflow-a1-2", "InProgress"), after="t")
    second = jobs(("trnflow-a1-1x", "InProgress"), ("trnflow-a1-1", "InProgress"))
    asked = service({"list_training_jobs": lambda fields: second if fields.get("NextToken") == "t" else first})
    assert platform.find("a1") == "trnflow-a1-1"
    assert asked[0][1]["NameContains"] == "trnflow-a1-"
    service({"list_training_jobs": first | {"NextToken": ""}})
    assert platform.find("a1") is None and platform.find("../x") is None


def test_a_job_gets_the_name_behind_the_newest_one(platform: SageMaker, service: Any) -> None:
    listed = jobs(("trnflow-a1-2", "Completed"), ("trnflow-a1-10", "Failed"))
    service({"list_training_jobs": listed, "create_training_job": {}})
    assert platform.submit("a1", COMMAND) == "trnflow-a1-11"
    service({"list_training_jobs": jobs(), "create_training_job": {}})
    assert platform.submit("a1", COMMAND) == "trnflow-a1-1"


@pytest.mark.parametrize(("status", "tries"), [("InProgress", 1), ("Completed", NAMES)])
def test_a_name_that_is_taken_is_joined_or_passed_over(
    status: str, tries: int, platform: SageMaker, service: Any
) -> None:
    asked = service(
        {
            "list_training_jobs": jobs(),
            "create_training_job": refusal("ResourceInUse"),
            "describe_training_job": {"TrainingJobStatus": status, "SecondaryStatus": "Training"},
        }
    )
    if status == "InProgress":
        assert platform.submit("a1", COMMAND) == "trnflow-a1-1"
    else:
        with pytest.raises(MachineError, match="that it does not list"):
            platform.submit("a1", COMMAND)
    assert [name for name, _ in asked].count("create_training_job") == tries
    service({"list_training_jobs": jobs(), "create_training_job": refusal("ResourceLimitExceeded")})
    with pytest.raises(AwsRefusal):
        platform.submit("a1", COMMAND)


@pytest.mark.parametrize(
    ("answer", "standing"),
    [
        ({"TrainingJobStatus": "InProgress", "SecondaryStatus": "Pending"}, Standing("waiting", "Pending")),
        ({"TrainingJobStatus": "InProgress", "SecondaryStatus": "Training"}, Standing("running", "Training")),
        ({"TrainingJobStatus": "Stopping", "SecondaryStatus": "Stopping"}, Standing("running", "Stopping")),
        ({"TrainingJobStatus": "Completed", "SecondaryStatus": "Completed"}, Standing("ended")),
        ({"TrainingJobStatus": "Stopped", "SecondaryStatus": "MaxWaitTimeExceeded"}, Standing("ended", "MaxWaitTimeExceeded")),
        ({"TrainingJobStatus": "Failed", "FailureReason": "a\n b"}, Standing("ended", "a b")),
        (refusal("ValidationException"), Standing("ended")),
        (refusal("AccessDeniedException"), Standing("unknown", "SageMaker refused it")),
        (MachineError("AWS can't be reached"), Standing("unknown", "AWS can't be reached")),
    ],
)  # fmt: skip
def test_each_status_of_sagemaker_waits_runs_or_has_ended(
    answer: Any, standing: Standing, platform: SageMaker, service: Any
) -> None:
    service({"describe_training_job": answer})
    assert platform.look("trnflow-a1-1") == standing


def test_what_ends_a_job_again_is_harmless_and_no_error_is_the_user_s(platform: SageMaker, service: Any) -> None:
    service({"stop_training_job": refusal("ValidationException")})
    platform.end("trnflow-a1-1")
    for error in (refusal("AccessDeniedException"), ConfigError("AWS refused the credentials")):
        service({"stop_training_job": error})
        with pytest.raises(MachineError):
            platform.end("trnflow-a1-1")


@pytest.mark.parametrize(
    ("region", "ahead", "wrong"),
    [
        ("us-east-1", 0, ""),
        (None, 290, ""),
        ("eu-west-1", 0, "the store's bucket is in eu-west-1, and the job would be in us-east-1"),
        ("us-east-1", 400, "clock is 7 min ahead of S3's"),
        ("us-east-1", -400, "clock is 7 min behind S3's"),
    ],
)
def test_a_bucket_elsewhere_and_a_clock_that_is_off_are_named(
    region: str | None, ahead: float, wrong: str, platform: SageMaker, service: Any
) -> None:
    date = format_datetime(datetime.now(UTC) - timedelta(seconds=ahead), usegmt=True)
    asked = service({"head_bucket": {"BucketRegion": region, "ResponseMetadata": {"HTTPHeaders": {"date": date}}}})
    try:
        platform._check_bucket()
        said = ""
    except (ConfigError, MachineError) as error:
        said = str(error)
    assert wrong in said and bool(said) == bool(wrong)
    assert asked[0][1] == {"Bucket": "bucket"}


def test_the_newest_of_a_job_s_logs_is_printed(platform: SageMaker, service: Any) -> None:
    streams = [{"logStreamName": name, "lastEventTimestamp": time} for name, time in (("a", 1), ("c", 3), ("b", 2))]
    service(
        {
            "describe_log_streams": {"logStreams": [*streams, {"logStreamName": "empty"}]},
            "get_log_events": lambda fields: {"events": [{"message": fields["logStreamName"]}, {"message": "end\n"}]},
        }
    )
    assert platform.printed("trnflow-a1-1") == "c\nend"
    service({"describe_log_streams": {"logStreams": []}})
    assert platform.printed("trnflow-a1-1") == ""
    service({"describe_log_streams": refusal("ResourceNotFoundException")})
    assert platform.printed("trnflow-a1-1") == ""


def test_a_kept_instance_is_counted_by_the_bill_or_from_the_end_of_its_job(platform: SageMaker, service: Any) -> None:
    job = {
        "TrainingJobName": "trnflow-a1-1",
        "ResourceConfig": {"InstanceType": "ml.g5.xlarge"},
        "TrainingEndTime": datetime.now(UTC) - timedelta(minutes=10),
    }
    asked = service({"list_training_jobs": jobs(("trnflow-a1-1", "Completed")), "describe_training_job": job})
    assert platform.pools()[0].seconds == pytest.approx(600, abs=20)
    assert asked[0][1]["WarmPoolStatusEquals"] == "Available"
    job["WarmPoolStatus"] = {"ResourceRetainedBillableTimeInSeconds": 0}
    assert platform.pools()[0].seconds == 0


@pytest.mark.parametrize("text", ["", "[]", '{"A": 1}', "not JSON"])
def test_a_secret_that_is_no_object_of_texts_is_refused(text: str, platform: SageMaker, service: Any) -> None:
    service({"get_secret_value": {"SecretString": text}})
    with pytest.raises(ConfigError, match="the secret mine is no JSON object of texts"):
        secret_values("mine")
    service({"get_secret_value": {"SecretString": json.dumps({"A": "b"})}})
    assert secret_values("mine") == {"A": "b"}
