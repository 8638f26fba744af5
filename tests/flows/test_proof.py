"""A stage that uses code or files of the project that its key does not know: nothing is published and the file is named."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from flows.plan import Planner
from flows.stage import Listener, Runner
from tasks.artifact import Source
from tasks.errors import CodeError, ConfigError
from tasks.resolve import Resolver
from tasks.store import Store
from tests.store.conftest import s3_endpoint, s3_root  # noqa: F401 -- fixtures

PROJECT = Path(__file__).resolve().parents[2]

STAGES = """
import importlib, os, subprocess, sys, threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated
from tasks.artifact import Input, Meta, Source
from tasks.config import NOT_KEYED, StageConfig
from tasks.stage import Workdir, stage
from house import known

HERE = Path(__file__).parent

class Config(StageConfig):
    how: str

def make(config, source, out):
    text = WAYS[config.how](Path(source.location["path"]), out)
    (out.path / "text").write_text(str(text))
    return {}

def lazily(path, out):
    from house.lazy import VALUE
    return VALUE

def swallowed(path, out):
    try:
        return importlib.import_module("house.other").VALUE
    except Exception:
        return "fallback"

def renamed(path, out):
    try:
        return (HERE / "letter.txt").read_text()
    except Exception as error:
        raise RuntimeError("no letter") from error

def pooled(path, out):
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda name: (HERE / name).read_text(), ["letter.txt"]))

def shown(path, out):
    import linecache, traceback
    linecache.clearcache()
    try:
        known.fail()
    except ValueError:
        return len(traceback.format_exc()) + len(linecache.getlines(str(HERE / "other.py")))

def local_state(path, out):
    return (HERE.parent / ".cache/state").read_text(), (HERE.parent / "store/FORMAT.json").read_text()

def edited(path, out):
    (HERE / "lazy.py").write_text("VALUE = 9")
    from house.lazy import VALUE
    return VALUE

def touched(path, out):
    (HERE / "lazy.py").write_text("# the same\\nfrom house.deep import VALUE")
    from house.lazy import VALUE
    return VALUE

def spoken(path, out):
    out.info("load something")
    return 1

WAYS = {
    "known": lambda path, out: known.VALUE,
    "lazy": lazily,
    "input": lambda path, out: path.read_text(),
    "asset": lambda path, out: (HERE / "template.txt").read_text(),
    "shown": shown,
    "local state": local_state,
    "writes": lambda path, out: (HERE.parent / "made.txt").write_text("x"),
    "probes": lambda path, out: Path("setup.cfg").exists() or (HERE / "nothing.txt").exists(),
    "spoken": spoken,
    "touched": touched,
    "edited": edited,
    "import_module": lambda path, out: importlib.import_module("house.other").VALUE,
    "__import__": lambda path, out: __import__("house.other").other.VALUE,
    "sys.modules": lambda path, out: sys.modules.get("house.other", importlib).VALUE,
    "run": lambda path, out: __import__("runpy").run_path(str(HERE / "other.py"))["VALUE"],
    "swallowed": swallowed,
    "file": lambda path, out: (HERE / "letter.txt").read_text(),
    "descriptor": lambda path, out: os.read(os.open(HERE / "letter.txt", os.O_RDONLY), 9),
    "relative": lambda path, out: open("house/../house/letter.txt").read(),
    "renamed": renamed,
    "pooled": pooled,
    "script": lambda path, out: subprocess.check_output([sys.executable, str(HERE / "other.py")]),
}

@stage(kind="texts", assets=("house/template.txt",))
def here(config: Config, source: Source, out: Workdir) -> Meta:
    return make(config, source, out)

@stage(kind="texts", assets=("house/template.txt",), process=True)
def apart(config: Config, source: Source, out: Workdir) -> Meta:
    return make(config, source, out)

@stage(kind="texts")
def here_again(config: Config, texts: Input, out: Workdir) -> Meta:
    (out.path / "text").write_text((texts.path / "made.txt").read_text())
    (out.path / "real").write_text((texts.path / "made.txt").resolve().read_text())
    return {}

@stage(kind="texts", process=True)
def apart_again(config: Config, texts: Input, out: Workdir) -> Meta:
    return here_again(config, texts, out)
"""

ALLOWED = ("known", "lazy", "input", "asset", "shown", "local state", "writes", "probes", "spoken", "touched")
MODULE = ("import_module", "__import__", "run", "swallowed", "script")
FILE = ("file", "descriptor", "relative", "renamed", "pooled")


class Project:
    """A checkout with the package `house`, its store within."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.root = str(folder / "store")
        files = {
            "pyproject.toml": "", "rows.txt": "rows", ".cache/state": "warm", "house/__init__.py": "",
            "house/stages.py": STAGES, "house/template.txt": "Dear {{ name }}", "house/letter.txt": "Dear all",
            "house/known.py": "VALUE = 1\ndef fail():\n    raise ValueError\n",
            "house/lazy.py": "from house.deep import VALUE\n", "house/deep.py": "VALUE = 2\n",
            "house/other.py": "VALUE = 3\n",
        }  # fmt: skip
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        self.store().prepare()

    def store(self) -> Store:
        return Store(self.root, self.home)

    @property
    def stages(self) -> ModuleType:
        return importlib.import_module("house.stages")

    def run(self, stage: str, how: str, *listeners: Listener) -> str:
        """What became of the one stage."""
        store = self.store()
        runner = Runner(store, Resolver(store.home), run="r", min_free_gb=0.0, listeners=listeners)
        self._call(runner, stage, how)
        return runner.outcomes[stage].action

    def plan(self, stage: str, how: str) -> tuple[str, str]:
        """(action, why)"""
        planner = Planner(self.store(), Resolver(self.folder / "home", offline=True))
        self._call(planner, stage, how)
        return planner.outcomes[stage].action, planner.outcomes[stage].why

    def _call(self, stages: Any, stage: str, how: str) -> None:
        source = Source(
            "data", {"digest": "sha256:rows"}, {"files": [{"path": str(self.folder / "rows.txt")}]} | self.at
        )
        stages(getattr(self.stages, stage), self.stages.Config(how=how), source)

    @property
    def at(self) -> dict[str, str]:
        return {"path": str(self.folder / "rows.txt")}

    def published(self, stage: str) -> list[Any]:
        return self.store().records(stage)


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
@pytest.mark.parametrize("loaded", [False, True])
def test_a_module_loaded_by_name_is_named(project: Project, how: str, loaded: bool) -> None:
    if loaded and how not in ("run", "script"):
        importlib.import_module("house.other")  # as another stage would have
    assert "import house.other" in refused(project, "here", how, r"here used house/other\.py")


def test_a_loaded_module_taken_from_sys_modules_is_named(project: Project) -> None:
    importlib.import_module("house.other")
    refused(project, "here", "sys.modules", r"house/other\.py")


@pytest.mark.parametrize("how", FILE)
def test_an_undeclared_file_is_named(project: Project, how: str) -> None:
    assert 'assets=("house/letter.txt",)' in refused(project, "here", how, r"here read house/letter\.txt")


def test_a_process_of_its_own_is_held_to_the_same(project: Project) -> None:
    for how in ("lazy", "asset"):
        assert project.run("apart", how) == "ran"
        assert project.run("apart", how) == "hit"


@pytest.mark.parametrize(("how", "file"), [("swallowed", "house/other.py"), ("renamed", "house/letter.txt")])
def test_a_process_of_its_own_publishes_nothing_either(project: Project, how: str, file: str) -> None:
    refused(project, "apart", how, file)


@pytest.mark.parametrize("stage", ["here", "apart"])
def test_a_module_edited_before_it_is_loaded_is_not_what_the_key_says(project: Project, stage: str) -> None:
    assert "run again" in refused(project, stage, "edited", r"house/lazy\.py was edited")
    assert project.run(stage, "edited") == "ran"  # now it is


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
    for stage, how in (("here", "import_module"), ("apart", "file")):
        with pytest.raises(CodeError, match="house/"):
            project.run(stage, how)
        assert project.published(stage) == []
        assert project.plan(stage, how)[0] == "run"
        assert [project.run(stage, "lazy"), project.run(stage, "lazy")] == ["ran", "hit"]


def test_the_project_may_be_home_and_store_itself(project: Project) -> None:
    """Inputs laid out below it are no files of the project."""
    project.home, project.root = project.folder, str(project.folder)
    project.store().prepare()
    first = project.store().ingest(made(project.folder / "out", "made.txt"), "texts", {})
    for stage in ("here", "apart"):
        runner = Runner(project.store(), Resolver(project.home), run="r", min_free_gb=0.0)
        assert runner(getattr(project.stages, f"{stage}_again"), project.stages.Config(how=""), first).files


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


def test_what_listeners_load_meanwhile_is_not_the_stages_doing(project: Project) -> None:
    class Curious(Listener):
        def event(self, stage: str, event: dict[str, Any]) -> None:
            heard.append(
                (importlib.import_module("house.other").VALUE, (project.folder / "house/letter.txt").read_text())
            )

    heard: list[tuple[int, str]] = []
    assert project.run("here", "spoken", Curious()) == "ran"
    assert heard == [(3, "Dear all")]


EDITS = """
import json, sys
from pathlib import Path
from flows import settings
from flows.run import Options, execute
from flows.stage import Listener
from tasks.store import Store

class Editor(Listener):
    def stage_ended(self, outcome):
        if outcome.stage == sys.argv[1]:
            path = Path("tasks/text/packers.py")
            path.write_text(path.read_text() + "EDITED = 1\\n")

store = Store("store", Path("home"))
store.prepare()
recipe = settings.load("demo", ["data.limit=40", "tokenize.train.vocab_size=200"])
result = execute(recipe, store, Options(until="pack_chunks"), listeners=(Editor(),))
print(json.dumps([{outcome.stage: outcome.action for outcome in result.outcomes}, str(result.error or "")]))
"""


def test_an_edit_while_the_run_is_going_publishes_nothing_under_the_new_code_s_key(tmp_path: Path) -> None:
    """pack_chunks was loaded when the run began; its helper is edited while load_data runs."""
    for name in ("flows", "tasks", "conf"):
        shutil.copytree(PROJECT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))

    def run(edit_after: str) -> Any:
        environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
        done = subprocess.run([sys.executable, "-c", EDITS, edit_after], cwd=tmp_path, env=environ, capture_output=True)
        return json.loads(done.stdout), done.stderr

    (stages, error), _ = run("load_data")
    assert list(stages.values()) == ["ran"] * 3
    assert "tasks.text.packers was edited while this run was going" in error
    assert not (tmp_path / "store/records/pack_chunks").exists()
    (stages, error), _ = run("")
    assert (list(stages.values()), error) == (["hit"] * 3 + ["ran"], "")
    assert list(run("")[0][0].values()) == ["hit"] * 4


def test_afterwards_nothing_is_watched(project: Project) -> None:
    other = importlib.import_module("house.other")
    with pytest.raises(CodeError):
        project.run("here", "import_module")
    assert type(other) is ModuleType
    assert other.VALUE == 3
    assert (project.folder / "house/letter.txt").read_text() == "Dear all"
