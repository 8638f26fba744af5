"""A recipe whose stages a rehearsal of SageMaker runs: moto's API in a process, containers as namespaces. Nothing ran on AWS."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas
import pytest
import safetensors.numpy

from tests.conftest import PROJECT
from tests.flows.jobs.test_elsewhere import LONG, actions, curve, digests, planned_of, runs
from tests.flows.jobs.test_job import MODULE, write_own
from tests.helpers.command_line import InProcessShell, Shell
from tests.helpers.sagemaker import ROLE, Rehearsal, sagemaker
from tests.helpers.waiting import wait_for
from tests.platforms.test_sagemaker import check_by_schema
from trnflow.tasks.platforms.sagemaker import SageMaker

INSTANCE = "ml.m5.large"
"""Stands for an accelerator's: its container trains on the processor."""
ON_SAGEMAKER = (
    "launch.kind=sagemaker", f"launch.role={ROLE}", "launch.image=123456789012.dkr.ecr.us-east-1.amazonaws.com/trnflow:1",
    f"launch.python={sys.executable}", f"hardware.name={INSTANCE}", "train.device=cpu",
)  # fmt: skip


@pytest.fixture(scope="module")
def aws() -> Iterator[Rehearsal]:
    with sagemaker() as rehearsal:
        yield rehearsal


@pytest.fixture
def here(aws: Rehearsal, tmp_path: Path) -> Shell:
    return shell_in(aws, tmp_path / "here", tmp_path.name)


def shell_in(aws: Rehearsal, folder: Path, name: str) -> Shell:
    bucket = re.sub("[^a-z0-9-]", "-", name.lower())[:40].strip("-")
    aws.client("s3").create_bucket(Bucket=bucket)
    folder.mkdir()
    shell = Shell(folder)
    shell.environ |= aws.environ | {"TRNFLOW_STORE": f"s3://{bucket}/store"}
    write_own(shell.folder)
    return shell


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], dict[str, str]]:
    """{settings: {stage: digest}} of runs without a job."""
    made = {}
    for settings in ((), LONG):
        shell = Shell(tmp_path_factory.mktemp("alone"))
        write_own(shell.folder)
        made[settings] = digests(shell.json("run", "own.yaml", "--direct", "train.device=cpu", *settings))
    return made


def newest(aws: Rehearsal) -> str:
    return next(iter(aws.jobs()))


def nothing_is_paid_for(aws: Rehearsal) -> bool:
    return not aws.containers() and not {"InProgress", "Stopping"} & {*aws.jobs().values()}


@pytest.mark.slow
def test_a_run_whose_stages_sagemaker_runs_is_one_run(
    aws: Rehearsal, here: Shell, wanted: dict[tuple[str, ...], dict[str, str]]
) -> None:
    before = len(aws.requests())
    done = here.json("run", "own.yaml", "--direct", *ON_SAGEMAKER)
    assert digests(done) == wanted[()] and actions(done)["train"] == actions(done)["evaluate_model"] == "ran"
    assert curve(here, done["run"]) == sorted(set(curve(here, done["run"])))
    wait_for(lambda: nothing_is_paid_for(aws), 30)
    jobs = aws.jobs()
    assert {*planned_of(here, *ON_SAGEMAKER).values()} == {"hit"}
    again = here.json("run", "own.yaml", "--direct", *ON_SAGEMAKER)
    assert set(actions(again).values()) <= {"hit", "skip"} and aws.jobs() == jobs, "no job was needed"
    ((ticket, status),) = list(jobs.items())[:1]
    assert status == "Completed" and re.fullmatch(r"trnflow-[0-9a-f]{20}-1", ticket)
    # what was asked is valid, shows no secret, and lies within the policies
    requests = aws.requests()[before:]
    for request in requests:
        if request["operation"] == "CreateTrainingJob":
            check_by_schema(request["body"])
            assert "TEST" not in json.dumps(request["body"]) and "submitter" not in json.dumps(request["body"])
    # the job's own home is that of its instance, whose files are gone
    assert not any((aws.folder / "volumes").glob("*"))


@pytest.mark.slow
def test_ctrl_c_saves_the_state_there_and_the_next_run_goes_on(
    aws: Rehearsal, here: Shell, wanted: dict[tuple[str, ...], dict[str, str]]
) -> None:
    command = ("run", "own.yaml", "--direct", *ON_SAGEMAKER, *LONG)
    run = here.start(*command, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    wait_for(lambda: any(curve(here, name) for name in runs(here)), 180)
    first = newest(aws)
    run.send_signal(signal.SIGINT)
    _, said = run.communicate(timeout=120)
    assert run.returncode == 130 and "training was stopped at step" in said, said
    wait_for(lambda: nothing_is_paid_for(aws), 30)
    stopped = curve(here, runs(here)[-1])
    done = here.json(*command)
    assert digests(done)["train"] == wanted[LONG]["train"]
    steps = curve(here, done["run"])
    assert steps == sorted(set(steps)) and steps[0] > stopped[-2] and steps[-1] == 3000, "it went on"
    assert newest(aws) == f"{first[:-1]}2", "a name is used once"


ACTIONS = {
    ("s3", "GET"): "s3:GetObject", ("s3", "HEAD"): "s3:GetObject", ("s3", "PUT"): "s3:PutObject", ("s3", "POST"): "s3:PutObject",
    ("s3", "DELETE"): "s3:DeleteObject", ("secretsmanager", "GetSecretValue"): "secretsmanager:GetSecretValue",
}  # fmt: skip


def action_of(request: dict[str, Any]) -> str:
    """The IAM action that AWS asks for a request ("Actions, resources, and condition keys for Amazon S3")."""
    service, operation = request["service"], request["operation"]
    if service != "s3":
        return f"{service}:{operation}"
    of_bucket = "/" not in request["resource"].strip("/")
    if of_bucket and operation in ("GET", "HEAD"):
        return "s3:ListBucket"
    if operation == "DELETE" and "uploadId=" in request["query"]:
        return "s3:AbortMultipartUpload"
    # one request for many objects, as for each of them
    return "s3:DeleteObject" if operation == "POST" and "delete" in request["query"] else ACTIONS[service, operation]


def allowed(policy: str) -> set[str]:
    document = json.loads((PROJECT / f"services/aws/{policy}.json").read_text())
    found: set[str] = set()
    for statement in document["Statement"]:
        actions = statement["Action"]
        found |= {actions} if isinstance(actions, str) else {*actions}
    return found


OWN = {"ecr", "logs", "cloudwatch"}
"""What SageMaker itself does as the role: the image, what the container prints. The rehearsal has no such part."""
UNSEEN = {"submitter": {"iam:PassRole"}, "role": set()}
"""A permission that no request names: CreateTrainingJob hands over the role."""
RARE = {"s3:AbortMultipartUpload"}
"""An upload of parts that fails."""


@pytest.mark.nightly
def test_the_policies_allow_what_was_asked_and_no_more(
    aws: Rehearsal, here: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run with a secret, a stop, a failure and its log, and garbage collection."""
    aws.client("secretsmanager").create_secret(Name="trnflow-mine", SecretString='{"MY_TOKEN": "secret value of 2026"}')
    secret = ("launch.secret=trnflow-mine", "launch.environment.MY_VARIABLE=${MY_TOKEN}")
    here.environ["MY_TOKEN"] = "of this machine"
    done = here.json("run", "own.yaml", "--direct", *ON_SAGEMAKER, *secret)
    assert actions(done)["train"] == "ran"
    assert "secret value of 2026" not in str(aws.describe(newest(aws))) + aws.output(newest(aws))
    # a container that can't begin, whose last line is read from its log
    said = here.error(
        "run", "own.yaml", "--direct", *ON_SAGEMAKER, "train.max_steps=3", "launch.python=/bin/ls", code=1
    )
    assert "sagemaker ended job" in said and "before trnflow began" in said
    detached = here.json("run", "own.yaml", "--direct", "--detach", *ON_SAGEMAKER, *LONG)
    wait_for(lambda: newest(aws).startswith(f"trnflow-{detached['job']}"), 20)
    here.json("jobs")
    # by the call that ends a job at once
    for name, value in aws.environ.items():
        monkeypatch.setenv(name, value)
    SageMaker(here.environ["TRNFLOW_STORE"]).end(newest(aws))
    wait_for(lambda: nothing_is_paid_for(aws), 150)
    here("gc", "--yes", "--grace", "0")
    asked: dict[str, set[str]] = {"submitter": set(), "role": set()}
    for request in aws.requests():
        asked[request["who"].lower()].add(action_of(request))
    for who, seen in asked.items():
        policy = {action for action in allowed(who) if who == "submitter" or action.partition(":")[0] not in OWN}
        assert seen - policy == set(), f"{who} needs more"
        assert policy - seen - UNSEEN[who] - RARE == set(), f"{who} is allowed too much"


@pytest.mark.nightly
@pytest.mark.parametrize("term", [1, 0])
def test_a_spot_instance_that_is_taken_back_costs_at_most_the_steps_since_the_last_checkpoint(
    aws: Rehearsal, here: Shell, wanted: dict[tuple[str, ...], dict[str, str]], term: int
) -> None:
    run = here.start(
        "run", "own.yaml", "--direct", "--json", *ON_SAGEMAKER, *LONG, "launch.spot=true",
        stderr=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    wait_for(lambda: any(len(curve(here, name)) > 3 for name in runs(here)), 180)
    ticket = newest(aws)
    aws.rehearse(f"interrupt/{ticket}", term=term)
    printed, said = run.communicate(timeout=400)
    assert run.returncode == 0, said
    done = json.loads(printed)
    assert digests(done)["train"] == wanted[LONG]["train"] and newest(aws) == ticket
    steps = curve(here, done["run"])
    assert steps == sorted(set(steps)), "each event once"
    goes_on = re.findall(r"goes on from step (\d+)", aws.output(ticket))
    stopped = re.findall(r"stopped at step (\d+)", aws.output(ticket))
    assert len(goes_on) == 1 and (stopped == goes_on if term else int(goes_on[0]) % 100 == 0)
    assert aws.describe(ticket)["TrainingJobStatus"] == "Completed" and nothing_is_paid_for(aws)


@pytest.mark.nightly
def test_an_error_there_is_this_runs_and_awss_reason(aws: Rehearsal, here: Shell) -> None:
    (here.folder / "mine.py").write_text(MODULE.replace("return 0.5", "raise ValueError('no half')"))
    said = here.error("run", "own.yaml", "--direct", *ON_SAGEMAKER, code=1)
    assert "evaluate_model" in said and "no half" in said
    wait_for(lambda: nothing_is_paid_for(aws), 30)
    found = aws.describe(newest(aws))
    assert found["TrainingJobStatus"] == "Failed" and "no half" in found["FailureReason"]
    (job,) = here.json("jobs")["jobs"]
    assert job["state"] == "failed" and job["ticket"] == newest(aws)
    # a GPU that is not there, in the job's first seconds
    said = here.error("run", "own.yaml", "--direct", *ON_SAGEMAKER, "train.device=cuda", code=1)
    assert "the job trains on a GPU, and this machine can't: no NVIDIA GPU was found" in said
    wait_for(lambda: nothing_is_paid_for(aws), 30)
    assert "no NVIDIA GPU was found" in aws.describe(newest(aws))["FailureReason"]


LAUNCH = f"""
launch: {{role: "{ROLE}", python: {sys.executable}}}
hardware: {{name: {INSTANCE}}}
"""
SMALL = "{hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 64, model_type: bert}"


def write_recipe(folder: Path, shared: Path, name: str, rows: str) -> None:
    """A shipped recipe on rows of ours, with a small model from nothing, here and on SageMaker."""
    model = f"model: {{source: null, config: {SMALL}, tokenizer: {shared}/assets/bert-base-uncased}}\n"
    train = "train: {max_steps: 60, stochastic_rounding: false, dtype: float32}\nexport: {target: none}\n"
    plain = f"extends: [{name}, base/hardware/cpu]\n{rows}\n{model}{train}"
    (folder / "plain.yaml").write_text(f"{plain}hardware: {{name: {INSTANCE}}}\n")
    (folder / "elsewhere.yaml").write_text(f"extends: [plain.yaml, base/launch/sagemaker]\nname: plain\n{LAUNCH}")


@pytest.mark.nightly
def test_imdb_from_files_to_a_model_whose_digest_is_that_of_a_local_run(
    aws: Rehearsal, shared: Path, tmp_path: Path
) -> None:
    shell = shell_in(aws, tmp_path / "here", "imdb")
    (shell.folder / "imdb").mkdir()
    for split in ("train", "test"):
        rows = pandas.read_parquet(shared / f"data/imdb/{split}.parquet").sample(1000, random_state=1)
        rows.to_parquet(shell.folder / f"imdb/{split}.parquet")
    write_recipe(shell.folder, shared, "bert-imdb", "data: {source: imdb}")
    done = shell.json("run", "elsewhere.yaml", "--direct")
    alone = shell.json("run", "plain.yaml", "--direct", f"store.root={tmp_path}/store")
    assert digests(done) == digests(alone)
    assert actions(done)["load_data"] == "ran" and aws.jobs()[newest(aws)] == "Completed"
    # the model comes out, for a program that is not ours
    assert shell("get", "elsewhere.yaml", "consolidate", "model").returncode == 0
    weights = safetensors.numpy.load_file(shell.folder / "model/model.safetensors")
    assert weights["bert.embeddings.word_embeddings.weight"].shape == (30522, 32)


@pytest.mark.nightly
def test_book_reviews_with_a_sweep_whose_trials_are_jobs_on_one_warm_instance(
    aws: Rehearsal, shared: Path, tmp_path: Path
) -> None:
    there = shell_in(aws, tmp_path / "there", "books")
    rows = pandas.read_parquet(shared / "data/amazon_books/reviews.parquet").sample(600, random_state=1)
    rows.rename(columns={"title": "review_headline", "review_text": "review_body", "rating": "star_rating"}).to_csv(
        there.folder / "reviews.csv", index=False
    )
    write_recipe(there.folder, shared, "distilbert-book-reviews", "")
    settings = ("train.learning_rate=0.0003,0.001,0.003,0.01", "--sampler", "grid")
    alone = Shell(shutil.copytree(there.folder, tmp_path / "alone"))
    local = alone.json("sweep", "plain.yaml", *settings)
    jobs = len(aws.jobs())
    done = there.json("sweep", "elsewhere.yaml", *settings, "launch.keep_alive_minutes=10")
    assert [trial["value"] for trial in done["trials"]] == [trial["value"] for trial in local["trials"]]
    assert done["best"]["settings"] == local["best"]["settings"]
    names = list(aws.jobs())[: len(aws.jobs()) - jobs]
    pools = [aws.describe(name)["WarmPoolStatus"]["Status"] for name in names]
    # the trials, and the best one's test
    assert len(names) == 5 and pools == ["Available", *["Reused"] * 4]
    aws.rehearse("tick", seconds=120)
    assert there.json("jobs")["pools"] == [{"ticket": names[0], "instance": INSTANCE, "seconds": 120.0}]


BAD = {
    "launch.role=null": "role is missing, which kind sagemaker needs",
    "launch.role=arn:x": "launch.role: 'arn:x' does not match",
    "launch.image=null": "image is missing, which kind sagemaker needs",
    "hardware.name=ml.m5.lrge": "hardware ml.m5.lrge: SageMaker trains on no such instance",
    "launch.grace_seconds=115": "grace_seconds is 115, and SageMaker gives 120",
    "launch.max_hours=700": "max_hours is 700, and SageMaker gives 672 at most",
    "launch.nodes=2": "several nodes are not built",
    "launch.keep_alive_minutes=61": "launch.keep_alive_minutes",
    "launch.environment.HF_TOKEN=${HOME}": "environment.HF_TOKEN is a secret, which SageMaker would show",
    "launch.options.VpcConfg=1": "launch.options.VpcConfg: AWS knows no such field",
    "launch.options.RoleArn=x": "launch.options.RoleArn is set by launch.role",
    "store.root=/tmp/nowhere": "is on this machine, and the job can't reach it",
    "launch.stages=[tokenize_text]": "tokenize_text is a data stage",
}


@pytest.mark.slow
def test_bad_input_costs_nothing(aws: Rehearsal, here: Shell) -> None:
    jobs = aws.jobs()
    shell = InProcessShell(here.folder)
    shell.environ = here.environ
    for setting, words in BAD.items():
        done = shell("run", "own.yaml", "--direct", *ON_SAGEMAKER, setting)
        assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr, (setting, done.stderr)
    done = shell("run", "own.yaml", "--direct", *ON_SAGEMAKER, "launch.spot=true", "launch.keep_alive_minutes=3")
    assert done.returncode == 2 and "SageMaker keeps no spot instance" in done.stderr
    done = shell("run", "own.yaml", "launch.role=x")
    assert done.returncode == 2 and "role is of a job, and kind is local: set kind=sagemaker" in done.stderr
    assert aws.jobs() == jobs
    assert "the job ends in its first minute" in " ".join(
        shell("plan", "own.yaml", *ON_SAGEMAKER, "train.device=cuda").stdout.split()
    )
