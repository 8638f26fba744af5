"""An environment without torch_xla: what needs it is refused before a stage runs, and the rest runs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.helpers.command_line import Shell, write_project
from tests.helpers.environments import environment_without
from trnflow.flows.cli import doctor
from trnflow.tasks.errors import MissingDependency
from trnflow.tasks.system import optional_packages

DIRECT = ("--direct", "tracking.enabled=false", "train.max_steps=2")
RUNNER = """
from trnflow.tasks.evaluation.config import PredictConfig
from trnflow.tasks.predict_rows import needs
from trnflow.tasks.stage import Known

list(needs(PredictConfig(), Known({}, {"export": {"target": "stablehlo"}}, here=%s)))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment_without(tmp_path_factory.mktemp("without"), "torch_xla", "jax")


@pytest.fixture
def shell(python: Path, tmp_path: Path) -> Shell:
    return Shell(write_project(tmp_path), str(python), "-m", "trnflow")


def scripted(shell: Shell, script: str) -> subprocess.CompletedProcess[str]:
    command = [shell.program[0], "-c", script]
    return subprocess.run(command, cwd=shell.folder, env=shell.environ, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("arguments", "refusal", "fix"),
    [
        ((), "train.engine is xla, and torch_xla is not installed", "train.engine=native"),
        (("--until", "precompile"), "train.engine is xla, and torch_xla is not installed", "train.engine=native"),
        (
            ("--on", "cpu", "export.target=stablehlo"),
            "export.target is stablehlo, and torch_xla is not installed",
            "export.target=none",
        ),
    ],
)
def test_what_needs_torch_xla_is_refused_in_one_line_before_a_stage_runs(
    arguments: tuple[str, ...], refusal: str, fix: str, shell: Shell
) -> None:
    printed = shell.error("run", "mine.yaml", *arguments, *DIRECT, code=1)
    assert f"error: {refusal}\n" in printed and fix in printed
    assert not list((shell.folder / ".trnflow/store").glob("records/*/*"))


def test_torch_xla_beside_a_torch_that_it_can_not_load_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optional_packages, "find_spec", lambda name: name == "torch_xla")
    monkeypatch.setattr(optional_packages, "version", {"torch": "2.15.0", "torch-xla": "2.9.0"}.__getitem__)
    beside = "torch_xla 2.9 is installed beside torch 2.15, which it can't load"
    with pytest.raises(MissingDependency, match=f"train.engine is xla, and {beside}"):
        optional_packages.require_torch_xla("train.engine is xla", "train.engine=native")
    with pytest.raises(MissingDependency, match="neither is installed"):
        optional_packages.export_runner()
    monkeypatch.setattr(doctor, "find_spec", optional_packages.find_spec)
    check = doctor._environment()
    assert not check.ok and check.found == f"two are mixed: {beside}"
    monkeypatch.setattr(optional_packages, "version", {"torch": "2.9.1+cpu", "torch-xla": "2.9.0"}.__getitem__)
    assert optional_packages.export_runner() == "torch_xla"


def test_an_export_that_another_machine_made_can_not_be_evaluated(shell: Shell) -> None:
    refused = scripted(shell, RUNNER % "{}")
    assert (
        "MissingDependency: a StableHLO export is run by jax or torch_xla, and neither is installed" in refused.stderr
    )
    assert scripted(shell, RUNNER % None).returncode == 0  # evaluated elsewhere


def test_the_doctor_names_what_is_there(shell: Shell) -> None:
    checks = {check["name"]: check for check in shell.json("doctor")["checks"]}
    assert checks["environment"]["ok"] and checks["environment"]["found"].startswith("native: ")
    build = scripted(
        shell, "import json, torch; print(json.dumps([torch.version.cuda, torch._C._cuda_getArchFlags()]))"
    )
    cuda, architectures = json.loads(build.stdout)
    assert checks["torch's cuda"]["found"] == (f"{cuda}, with code for {architectures}" if cuda else "none")


@pytest.mark.slow
def test_engine_native_runs_all_the_stages(shell: Shell) -> None:
    done = shell.json("run", "mine.yaml", "--on", "cpu", *DIRECT)
    assert [stage["action"] for stage in done["stages"]] == ["ran"] * 8
    assert "no export: torch_xla is not installed" in done["notes"]
