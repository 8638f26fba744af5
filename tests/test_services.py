"""compose.yaml and the systemd units of services/: their structure, and that each variable is one that its program reads."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import PROJECT
from tests.helpers.units import INSTALLED, SERVICES, entries, environment, file_of, settings_of
from trnflow.flows.recipes.sections import LaunchConfig

UNITS = sorted(file.stem for file in SERVICES.glob("*.service"))
SERVERS = {"prefect": "trnflow-prefect", "mlflow": "trnflow-mlflow", "worker": "trnflow-worker"}
"""{service of compose.yaml: unit}"""
SECRET = ("AUTH_STRING", "PASSWORD", "SECRET", "ENCRYPTION_KEY", "ACCESS_KEY")
LIBPQ = {"PGPASSWORD"}
PASSED_ON = {"AWS_ENDPOINT_URL"}
"""Variables that compose.yaml gives no value: a container has them where the environment of compose has."""
AWS = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION", *PASSED_ON}
OF_IMAGE = {"POSTGRES_USER", "POSTGRES_PASSWORD", "POSTGRES_DB"}
"""Variables that the image `postgres` documents."""
OURS = {"TRNFLOW_STORE", "TRNFLOW_HOME", "DO_NOT_TRACK"}
KEYS_OF_A_SERVICE = {
    "image", "build", "restart", "command", "environment", "configs", "volumes", "ports", "depends_on", "healthcheck",
    "shm_size", "stop_grace_period", "init",
}  # fmt: skip
"""The keys of the Compose Specification that the file uses."""


@pytest.fixture(scope="module")
def compose() -> Any:
    return yaml.safe_load((PROJECT / "compose.yaml").read_text())


def is_read(name: str) -> bool:
    """Whether one of the programs reads an environment variable of this name."""
    if name in LIBPQ | AWS | OURS | OF_IMAGE:
        return True
    if name.startswith("HF_"):
        return f'"{name}"' in (package("huggingface_hub") / "constants.py").read_text()
    if name.startswith("MLFLOW_"):  # its import takes 5 s
        files = ("cli/__init__.py", "utils/cli_args.py", "environment_variables.py")
        return any(f'"{name}"' in (package("mlflow") / file).read_text() for file in files)
    if name == "PREFECT_SERVER_ENCRYPTION_KEY":  # no setting: the server asks the environment itself
        return name in (package("prefect") / "server/utilities/encryption.py").read_text()
    from prefect.settings import Settings
    from prefect.settings.legacy import _get_settings_fields

    return name in _get_settings_fields(Settings)


def package(name: str) -> Path:
    found = importlib.util.find_spec(name)
    assert found and found.origin
    return Path(found.origin).parent


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_accepts_the_unit(unit: str, tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    text = (SERVICES / f"{unit}.service").read_text()
    for name in UNITS:  # the units name each other
        other = (SERVICES / f"{name}.service").read_text()
        (tmp_path / f"{name}.service").write_text(other.replace(INSTALLED, str(Path(sys.prefix).parent)))
    done = subprocess.run([program, "verify", tmp_path / f"{unit}.service"], capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    (tmp_path / f"{unit}.service").write_text(text.replace("Restart=", "Restrat="))
    refused = subprocess.run([program, "verify", tmp_path / f"{unit}.service"], capture_output=True, text=True)
    assert "Restrat" in refused.stderr  # a mistake would have been seen


def test_the_worker_is_shut_in() -> None:
    """systemd's measure of what a taken-over service could reach: 10 is worst, the unit had 9.0."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    worker = SERVICES / "trnflow-worker.service"
    command = [program, "security", "--offline=true", "--threshold=40", worker]
    done = subprocess.run(command, capture_output=True, text=True)
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze is too old to judge a file")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("unit", UNITS)
def test_each_variable_of_a_unit_is_one_that_its_program_reads(unit: str) -> None:
    named = environment(unit) | settings_of(file_of(unit))
    assert not [name for name in named if not is_read(name)]
    assert dict(entries(unit))["EnvironmentFile"].startswith("/etc/trnflow/")


def test_no_file_has_a_secret(compose: Any) -> None:
    for file in SERVICES.glob("*.env"):
        secret = {name: value for name, value in settings_of(file).items() if name.endswith(SECRET) or name in LIBPQ}
        assert not any(secret.values()), f"{file.name}: {secret}"
    for name, service in compose["services"].items():
        for variable, value in service["environment"].items():
            assert not re.search(r"://[^/]*:[^/]*@", value or ""), f"{name}: a password in {variable}"
            if variable.endswith(SECRET) or variable in LIBPQ:
                assert re.fullmatch(r"\$\{\w+:\?[^}]+\}", value), f"{name}: {variable} is not asked for"


def test_git_and_the_image_leave_out_the_files_that_hold_secrets() -> None:
    in_image = (PROJECT / ".dockerignore").read_text().split()
    assert {".env*", "services/*.env", "*.key", "*.login"} <= set(in_image)
    assert {".env", "*.key", "*.login"} <= {*(PROJECT / ".gitignore").read_text().split()}


def test_a_stop_of_the_worker_signals_no_training() -> None:
    """Signalled with the worker, flow runs that could go on would end with it."""
    unit = dict(entries("trnflow-worker"))
    assert (unit["KillMode"], unit["OOMPolicy"]) == ("process", "continue")
    assert float(unit["TimeoutStopSec"]) > LaunchConfig().grace_seconds


def test_servers_listen_on_this_machine_alone_unless_asked(compose: Any) -> None:
    for unit, name in (("trnflow-prefect", "PREFECT_SERVER_API_HOST"), ("trnflow-mlflow", "MLFLOW_HOST")):
        assert environment(unit)[name] == "127.0.0.1"
    ports = {name: service.get("ports", []) for name, service in compose["services"].items()}
    prefix = "${TRNFLOW_BIND:-127.0.0.1}"
    assert ports == {
        "postgres": [], "prefect": [f"{prefix}:4200:4200"], "mlflow": [f"{prefix}:5000:5000"], "worker": [],
    }  # fmt: skip


def test_what_compose_refers_to_is_there(compose: Any) -> None:
    assert {name for name in compose if not name.startswith("x-")} == {"name", "services", "configs", "volumes"}
    for name, service in compose["services"].items():
        assert service.keys() <= KEYS_OF_A_SERVICE, name
        assert {key for key, value in service["environment"].items() if not isinstance(value, str)} <= PASSED_ON, name
        for other, how in service.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"} and "healthcheck" in compose["services"][other], name
        for mounted in service.get("volumes", []):
            assert mounted.partition(":")[0] in compose["volumes"]
        for config in service.get("configs", []):
            assert config["source"] in compose["configs"]
        assert not [variable for variable in service["environment"] if not is_read(variable)], name
    assert {"test", "interval", "timeout", "retries"} <= compose["services"]["postgres"]["healthcheck"].keys()


@pytest.mark.parametrize("service", SERVERS)
def test_compose_starts_what_the_unit_starts(compose: Any, service: str) -> None:
    """Whatever the slow test shows of the units' commands holds of the containers' too."""
    unit = SERVERS[service]
    found = compose["services"][service]
    program, _, rest = dict(entries(unit))["ExecStart"].partition(" ")
    assert [Path(program).name, *rest.split()] == found["command"]
    of_unit = environment(unit).keys() | settings_of(file_of(unit)).keys()
    needed = {"PREFECT_UI_API_URL", "PREFECT_UI_URL", *PASSED_ON}
    assert found["environment"].keys() - needed <= of_unit
