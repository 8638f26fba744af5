"""AWS on this machine: moto's services in a process, whose SageMaker runs a training job's container as Linux namespaces.

    python -m tests.helpers.sagemaker_server FOLDER     prints its port

What is ours, and not AWS's, is `Rehearsal`: the states of a training job, its container, TERM and KILL, spot interruptions,
warm pools. Each request is written to FOLDER/requests.jsonl: who, service, operation, resource, and what SageMaker is asked.
A container shares this machine's network and disk, but for /opt/ml and /tmp/trnflow, which are those of its instance.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from moto.logs.models import logs_backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from moto.sagemaker.exceptions import ResourceInUseException, SagemakerClientError, ValidationError
from moto.sagemaker.models import FakeTrainingJob, SageMakerModelBackend, sagemaker_backends
from moto.sagemaker.responses import SageMakerResponse
from werkzeug.serving import make_server

ACCOUNT, REGION = "123456789012", "us-east-1"
STOP_SECONDS = 120.0
MOUNTS = ("/opt/ml", "/tmp/trnflow")
GROUP = "/aws/sagemaker/TrainingJobs"
START = """\
mount --make-rprivate / && mount -t proc proc /proc && mount --bind "$1" /opt/ml && mount --bind "$2" /tmp/trnflow || exit 99
mount --bind "$3" /etc/hosts && hostname algo-1 || exit 99
shift 3
exec "$@"
"""
LOCK = threading.Lock()
create, listed = SageMakerModelBackend.create_training_job, SageMakerModelBackend.list_training_jobs


class Throttled(SagemakerClientError):
    code = "ThrottlingException"


class Rehearsal:
    """SageMaker's part."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.containers: dict[str, Container] = {}
        self.throttled = 0

    def create(self, backend: SageMakerModelBackend, environment: dict[str, str], **fields: Any) -> FakeTrainingJob:
        with LOCK:
            if self.throttled:
                self.throttled -= 1
                raise Throttled("Rate exceeded")
            name = fields["training_job_name"]
            if name in backend.training_jobs:
                raise ResourceInUseException(
                    f"Training job names must be unique within an AWS account and region: {name}"
                )
            job = create(backend, **fields)
            job.training_job_status, job.secondary_status = "InProgress", "Starting"
            job.training_end_time = None
            self._take_pool(backend, job)
            self.containers[name] = Container(job, environment, self)
        threading.Thread(target=self.containers[name].live, daemon=True).start()
        return job

    def _take_pool(self, backend: SageMakerModelBackend, job: FakeTrainingJob) -> None:
        for other in backend.training_jobs.values():
            same = ("role_arn", "enable_network_isolation")
            if (
                getattr(other, "warm_pool_status", {}).get("Status") == "Available"
                and other.resource_config == job.resource_config
                and all(getattr(other, name) == getattr(job, name) for name in same)
            ):
                other.warm_pool_status = {
                    **other.warm_pool_status,
                    "Status": "Reused",
                    "ReusedByJob": job.training_job_name,
                }
                job.reused = True
                return

    def stop(self, backend: SageMakerModelBackend, name: str) -> None:
        if name not in backend.training_jobs:
            backend.describe_training_job(name)
        job = backend.training_jobs[name]
        if job.training_job_status not in ("InProgress", "Stopping"):
            raise ValidationError(
                f"The request was rejected because the training job is in status {job.training_job_status}."
            )
        job.training_job_status = job.secondary_status = "Stopping"
        threading.Thread(target=self.containers[name].stop, daemon=True).start()


class Container:
    """The container of a training job, on one instance after another if it is a spot instance."""

    def __init__(self, job: FakeTrainingJob, environment: dict[str, str], rehearsal: Rehearsal) -> None:
        self.job, self.environment, self.rehearsal = job, environment, rehearsal
        self.process: subprocess.Popen[bytes] | None = None
        self.is_stopped = self.is_interrupted = False
        self.ended = threading.Event()
        self.output = rehearsal.folder / f"{job.training_job_name}.log"

    def live(self) -> None:
        job = self.job
        try:
            while True:
                job.secondary_status = "Downloading"
                code, failure = self._run()
                if self.is_stopped or not self.is_interrupted:
                    break
                # another instance comes
                self.is_interrupted, job.secondary_status = False, "Interrupted"
                time.sleep(3)
            status = "Stopped" if self.is_stopped else "Failed" if code else "Completed"
            if status == "Failed":
                job.failure_reason = f"AlgorithmError: {failure[:1024] or ''}, exit code: {code}"
        except Exception as error:
            status, job.failure_reason = "Failed", f"InternalServerError: {error!r}"
        job.secondary_status = status
        job.training_end_time = datetime.now(UTC)
        self._write_logs()
        kept = job.resource_config.get("KeepAlivePeriodInSeconds")
        if kept:
            job.warm_pool_status = {"Status": "Available", "ResourceRetainedBillableTimeInSeconds": 60}
        job.training_job_status = status
        self.ended.set()

    def _run(self) -> tuple[int, str]:
        """Run the container's command on a fresh instance; return its exit code, and what it wrote as failure."""
        volume = self.rehearsal.folder / "volumes" / f"{self.job.training_job_name}-{time.monotonic_ns()}"
        for name in ("ml/output/data", "ml/model", "ml/input/config", "home"):
            (volume / name).mkdir(parents=True)
        instance = self.job.resource_config["InstanceType"]
        group = {"instance_group_name": "homogeneousCluster", "instance_type": instance, "hosts": ["algo-1"]}
        resources = {
            "current_host": "algo-1", "current_instance_type": instance, "current_group_name": "homogeneousCluster",
            "hosts": ["algo-1"], "instance_groups": [group], "network_interface_name": "eth0",
        }  # fmt: skip
        documents = {
            "resourceconfig": resources,
            "inputdataconfig": {},
            "hyperparameters": self.job.hyper_parameters or {},
        }
        for name, document in documents.items():
            (volume / f"ml/input/config/{name}.json").write_text(json.dumps(document))
        (volume / "hosts").write_text("127.0.0.1 localhost algo-1\n")
        algorithm = self.job.algorithm_specification
        command = [*algorithm["ContainerEntrypoint"], *algorithm["ContainerArguments"]]
        environ = {
            "PATH": os.environ["PATH"], "HOME": "/root", "LANG": "C.UTF-8", "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": self.rehearsal.url, "AWS_ACCESS_KEY_ID": "ROLE", "AWS_SECRET_ACCESS_KEY": "role",
            "TRAINING_JOB_NAME": self.job.training_job_name, **self.environment,
        }  # fmt: skip
        space = ["unshare", "--mount", "--pid", "--uts", "--fork", "--kill-child", "sh", "-c", START, "sh"]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [*space, str(volume / "ml"), str(volume / "home"), str(volume / "hosts"), *command],
                env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/", start_new_session=True,
            )  # fmt: skip
        if not self.is_stopped:
            self.job.secondary_status = "Training"
        code = self.process.wait()
        failure = volume / "ml/output/failure"
        said = failure.read_text() if failure.exists() else ""
        shutil.rmtree(volume)
        return code, said

    def stop(self) -> None:
        self.is_stopped = True
        self._end()

    def interrupt(self, with_term: bool) -> None:
        """Take the spot instance back: with TERM, and KILL two minutes later, or with KILL alone."""
        self.is_interrupted = True
        self._end(with_term=with_term)

    def _end(self, with_term: bool = True) -> None:
        process = self.process
        if process is None:
            return
        (first,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        if with_term:
            os.kill(int(first), signal.SIGTERM)
        until = time.monotonic() + STOP_SECONDS * with_term
        while process.poll() is None and time.monotonic() < until:
            time.sleep(0.1)
        if process.poll() is None:
            os.kill(int(first), signal.SIGKILL)

    def _write_logs(self) -> None:
        backend = logs_backends[ACCOUNT][REGION]
        stream = f"{self.job.training_job_name}/algo-1-{time.time():.0f}"
        if GROUP not in backend.groups:
            backend.create_log_group(GROUP, {})
        backend.create_log_stream(GROUP, stream)
        lines = self.output.read_text(errors="replace").splitlines() if self.output.exists() else []
        now = time.time() * 1000
        events = [{"timestamp": int(now), "message": line or " "} for line in lines[-50:]]
        if events:
            backend.put_log_events(GROUP, stream, events)


def patch(rehearsal: Rehearsal) -> None:
    """Put what moto lacks into its SageMaker."""
    plain = SageMakerResponse.create_training_job
    asked = threading.local()

    def create_training_job(response: Any) -> Any:
        asked.environment = response._get_param("Environment") or {}
        return plain(response)

    def create_in(backend: Any, **fields: Any) -> FakeTrainingJob:
        return rehearsal.create(backend, asked.environment, **fields)

    def stop_training_job(response: Any) -> str:
        rehearsal.stop(response.sagemaker_backend, response._get_param("TrainingJobName"))
        return "{}"

    def list_training_jobs(response: Any) -> str:
        backend = response.sagemaker_backend
        found = listed(
            backend, next_token="", max_results=0, creation_time_after=None, creation_time_before=None,
            last_modified_time_after=None, last_modified_time_before=None, name_contains=response._get_param("NameContains"),
            status_equals=response._get_param("StatusEquals"),
        )  # fmt: skip
        pool = response._get_param("WarmPoolStatusEquals")
        summaries = [
            {
                "TrainingJobName": one["TrainingJobName"], "TrainingJobArn": one["TrainingJobArn"],
                "CreationTime": one["CreationTime"].timestamp(), "TrainingJobStatus": one["TrainingJobStatus"],
            }
            for one in found["TrainingJobSummaries"]
            if pool is None
            or getattr(backend.training_jobs[one["TrainingJobName"]], "warm_pool_status", {}).get("Status") == pool
        ]  # fmt: skip
        if response._get_param("SortOrder") == "Descending":
            summaries.reverse()
        # as AWS does, page by page
        first, size = int(response._get_param("NextToken") or 0), 3
        page: dict[str, Any] = {"TrainingJobSummaries": summaries[first : first + size]}
        if first + size < len(summaries):
            page["NextToken"] = str(first + size)
        return json.dumps(page)

    SageMakerResponse.create_training_job = create_training_job
    SageMakerResponse.stop_training_job = stop_training_job
    SageMakerResponse.list_training_jobs = list_training_jobs
    SageMakerModelBackend.create_training_job = create_in


class Recorder:
    """Writes each request down, and takes the tests' own below /rehearsal/."""

    def __init__(self, application: Any, rehearsal: Rehearsal) -> None:
        self.application, self.rehearsal = application, rehearsal
        self.file = (rehearsal.folder / "requests.jsonl").open("a", buffering=1)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        if environ["PATH_INFO"].startswith("/rehearsal/"):
            self._rehearse(environ["PATH_INFO"].split("/")[2:], parse_qs(environ.get("QUERY_STRING", "")))
            start_response("200 OK", [])
            return [b""]
        credential = re.search(r"Credential=([^/]+)/\d+/[^/]+/([^/]+)/", environ.get("HTTP_AUTHORIZATION", ""))
        if credential:
            who, service = credential.groups()
            target = environ.get("HTTP_X_AMZ_TARGET", "").rpartition(".")[2]
            line = {
                "who": who, "service": service, "operation": target or environ["REQUEST_METHOD"],
                "resource": environ["PATH_INFO"], "query": environ.get("QUERY_STRING", ""),
            }  # fmt: skip
            if service == "sagemaker":
                body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                environ["wsgi.input"] = io.BytesIO(body)
                line["body"] = json.loads(body or b"{}")
            self.file.write(json.dumps(line) + "\n")
        return self.application(environ, start_response)

    def _rehearse(self, path: list[str], query: dict[str, list[str]]) -> None:
        if path[0] == "throttle":
            self.rehearsal.throttled = int(query["times"][0])
        elif path[0] == "interrupt":
            self.rehearsal.containers[path[1]].interrupt(query["term"][0] == "1")
        elif path[0] == "tick":
            # what has been kept so far
            for job in sagemaker_backends[ACCOUNT][REGION].training_jobs.values():
                if getattr(job, "warm_pool_status", None):
                    job.warm_pool_status["ResourceRetainedBillableTimeInSeconds"] = int(query["seconds"][0])


def main() -> None:
    folder = Path(sys.argv[1])
    for name in MOUNTS:
        Path(name).mkdir(parents=True, exist_ok=True)
    rehearsal = Rehearsal(folder, "")
    application = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, Recorder(application, rehearsal), threaded=True)
    rehearsal.url = f"http://127.0.0.1:{server.port}"
    patch(rehearsal)
    print(server.port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
