"""A stage that uses code or files of the project that its key does not know: nothing is published and the file is named."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.flows.house import STAGES, Project
from tests.helpers.checkouts import copy_program
from tests.helpers.runs import context, run_stage
from tests.store.conftest import s3_endpoint, s3_root  # noqa: F401 -- fixtures
from trnflow.tasks.errors import CodeError, ConfigError
from trnflow.tasks.events import Event, Reader, RunState
from trnflow.tasks.keys.code_hash import code_hash
from trnflow.tasks.keys.file_audit import OF_TORCH, Permit, Witness, watch_process

PROJECT = Path(__file__).resolve().parents[2]

ALLOWED = (
    "known", "lazy", "input", "asset", "shown", "local state", "writes", "probes", "spoken", "touched", "system", "temporary",
)  # fmt: skip
MODULE = ("import_module", "__import__", "run", "swallowed", "script")
FILE = ("file", "descriptor", "relative", "renamed", "pooled")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(folder)
    yield Project(folder)
    for name in [name for name in sys.modules if name.split(".")[0] == "house"]:
        del sys.modules[name]


def refused(project: Project, stage: str, how: str, file: str) -> str:
    """The fix that the error says; it names the file, and nothing was published."""
    with pytest.raises(CodeError, match=file) as caught:
        project.run(stage, how)
    assert caught.value.stage == stage
    assert project.published(stage) == []
    attempts = [json.loads(path.read_text()) for path in (project.folder / "store/attempts").rglob("*.json")]
    assert [(attempt["outcome"], attempt["error"]["type"]) for attempt in attempts] == [("failed", "CodeError")]
    return caught.value.fix


@pytest.mark.parametrize("how", ALLOWED)
def test_what_the_key_knows_may_be_used(project: Project, how: str) -> None:
    assert project.run("here", how) == "ran"
    assert project.run("here", how) == "hit"


@pytest.mark.parametrize("how", MODULE)
def test_a_module_loaded_by_name_is_named(project: Project, how: str) -> None:
    importlib.import_module("house.other")  # what the flow has loaded is nothing to the stage's process
    assert "import house.other" in refused(project, "here", how, r"here used house/other\.py")


def test_a_part_that_uses_an_unknown_module_is_refused_and_not_published(project: Project) -> None:
    refused(project, "sharded", "swallowed", r"sharded used house/other\.py")
    assert project.published("sharded.shard") == []
    source = project.folder / "house/stages.py"
    source.write_text(f"{STAGES}\ndef unused():\n    import house.other\n")
    assert project.run("sharded", "swallowed") == "ran"
    assert len(project.published("sharded.shard")) == 1


@pytest.mark.parametrize("how", FILE)
def test_an_undeclared_file_is_named(project: Project, how: str) -> None:
    assert 'assets=("house/letter.txt",)' in refused(project, "here", how, r"here read house/letter\.txt")


def test_a_folder_without_a_mark_is_checked_too(project: Project) -> None:
    """What lies beside the stage's package and elsewhere, where no pyproject.toml or .git says that it is a project."""
    (project.folder / "pyproject.toml").unlink()
    refused(project, "here", "sibling by name", r"here used beside\.py")


@pytest.mark.parametrize(
    ("how", "file"),
    [
        ("beside", "letter.txt"),
        ("outside", "/prices.csv"),
        ("hidden", "/.else/prices.csv"),
        ("module outside", "/else/strange.py"),
    ],
)
def test_what_lies_elsewhere_is_named(project: Project, how: str, file: str) -> None:
    (project.folder / "pyproject.toml").unlink()
    refused(project, "here", how, re.escape(file))


def test_what_torch_imports_from_a_temporary_folder_is_no_own_code() -> None:
    importlib.import_module("torch.distributed.nn.api.remote_module")
    module, other = sys.modules[OF_TORCH], ModuleType("other")
    other.__file__ = module.__file__
    witness = Witness(Permit("here", (), frozenset(), (), {}, elsewhere=("/usr/",)))
    witness.used(module)
    with pytest.raises(CodeError, match=OF_TORCH):
        witness.used(other)


def test_a_sibling_counts_as_code(project: Project) -> None:
    (project.folder / "pyproject.toml").unlink()
    assert [project.run("here", "sibling"), project.run("here", "sibling")] == ["ran", "hit"]
    (project.folder / "single.py").write_text("VALUE = 7\n")
    assert project.plan("here", "sibling") == ("run", "code of single changed")


def test_a_module_edited_before_it_is_loaded_is_not_what_the_key_says(project: Project) -> None:
    assert "run again" in refused(project, "here", "edited", r"house/lazy\.py was edited")
    assert project.run("here", "edited") == "ran"  # now it is


def test_the_fix_is_the_fix(project: Project) -> None:
    refused(project, "here", "import_module", r"house/other\.py")
    source = project.folder / "house/stages.py"
    source.write_text(f"{STAGES}\ndef unused():\n    import house.other\n")
    assert project.run("here", "import_module") == "ran"
    assert project.run("here", "import_module") == "hit"
    (project.folder / "house/other.py").write_text("VALUE = 4\n")
    assert project.plan("here", "import_module") == ("run", "code of house.other changed")


def test_a_shared_store_is_told_nothing_either(project: Project, request: pytest.FixtureRequest) -> None:
    project.root = request.getfixturevalue("s3_root")
    project.store().prepare()
    for stage, how in (("here", "import_module"), ("sharded", "file")):
        with pytest.raises(CodeError, match="house/"):
            project.run(stage, how)
        assert project.published(stage) == []
        assert project.plan(stage, how)[0] == "run"
        assert [project.run(stage, "lazy"), project.run(stage, "lazy")] == ["ran", "hit"]


def test_the_project_may_be_home_and_store_itself(project: Project) -> None:
    """Inputs laid out below it are no files of the project, and its other files are checked as ever."""
    project.home, project.root = project.folder, str(project.folder)
    project.store().prepare()
    with pytest.raises(CodeError, match="house/"):
        project.run("here", "import_module")
    first = project.store().ingest(made(project.folder / "out", "made.txt"), "texts", {})
    step = run_stage(project.stages.here_again, project.stages.Config(how=""), context(project.store()), texts=first)
    assert step.artifact is not None and step.artifact.files


def made(folder: Path, name: str) -> Path:
    folder.mkdir()
    (folder / name).write_text("made")
    return folder


def test_an_asset_counts_as_code(project: Project) -> None:
    project.run("here", "asset")
    (project.folder / "house/template.txt").touch()
    assert project.plan("here", "asset")[0] == "hit"
    (project.folder / "house/template.txt").write_text("Hi {{ name }}")
    assert project.plan("here", "asset") == ("run", "code of house/template.txt changed")
    (project.folder / "house/template.txt").unlink()
    with pytest.raises(ConfigError, match=r"asset house/template\.txt"):
        project.plan("here", "asset")


def test_what_readers_load_meanwhile_is_not_the_stages_doing(project: Project) -> None:
    class Curious(Reader):
        critical = True

        def read(self, event: Event, state: RunState) -> None:
            if event["event"] == "note":
                letter = (project.folder / "house/letter.txt").read_text()
                heard.append((importlib.import_module("house.other").VALUE, letter))

    heard: list[tuple[int, str]] = []
    assert project.run("here", "spoken", Curious()) == "ran"
    assert heard == [(3, "Dear all")]


EDITS = """
import json, sys
from pathlib import Path
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.finetune import finetune
from trnflow.flows.runner.context import context_of
from trnflow.flows.runner.plan import Options
from trnflow.flows.runner.run import run
from trnflow.tasks.events import EventLog, Reader
from trnflow.tasks.store import Store

class Editor(Reader):
    def read(self, event, state):
        if event["event"] == "stage_ended" and event["stage"] == sys.argv[1]:
            path = Path("tasks/data/pack/packers.py")
            path.write_text(path.read_text() + "EDITED = 1\\n")

store = Store("store", Path("home"))
store.prepare()
recipe = settings.load("demo", ["data.limit=40", "tokenize.train.vocab_size=200"])
result = run(finetune(recipe), context_of(recipe, store).for_run(EventLog(Editor())), Options(until="pack_chunks"))
print(json.dumps([{step.name: step.action for step in result.steps}, str(result.error or "")]))
"""


def test_a_stage_whose_code_is_edited_while_another_runs_runs_the_new_code_under_its_key(tmp_path: Path) -> None:
    """The flow has loaded pack_chunks when the run begins; its helper is edited while load_data runs."""
    copy_program(tmp_path)

    def run(edit_after: str) -> Any:
        environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
        done = subprocess.run([sys.executable, "-c", EDITS, edit_after], cwd=tmp_path, env=environ, capture_output=True)
        return json.loads(done.stdout), done.stderr

    (stages, error), said = run("load_data")
    assert (list(stages.values()), error) == (["ran"] * 4, ""), said
    (record,) = (tmp_path / "store/records/pack_chunks").iterdir()
    edited = code_hash(ast.parse((tmp_path / "tasks/data/pack/packers.py").read_text()))
    assert json.loads(record.read_text())["document"]["code"]["trnflow.tasks.data.pack.packers"] == edited
    assert list(run("")[0][0].values()) == ["hit"] * 4


def test_afterwards_nothing_is_watched(project: Project) -> None:
    other = importlib.import_module("house.other")
    with pytest.raises(CodeError):
        project.run("here", "import_module")
    assert type(other) is ModuleType
    assert other.VALUE == 3
    assert (project.folder / "house/letter.txt").read_text() == "Dear all"


def test_an_error_of_a_stage_that_read_nothing_else_is_told_as_it_is() -> None:
    with pytest.raises(ValueError, match="of its own"), watch_process(Permit("train", (), frozenset(), (), {})):
        raise ValueError("of its own")
