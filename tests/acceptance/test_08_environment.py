"""8. What a new library, compiler, flag or data set re-runs, and what not: the environment counts where it reaches bytes."""

from __future__ import annotations

import importlib.metadata
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.ending import check_ending
from tests.helpers.metadata import metadata_of
from trnflow.flows import finetune
from trnflow.flows.finetune import finetune as graph_of
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.runner.context import context_of, plan_of
from trnflow.flows.runner.plan import Options, Plan
from trnflow.flows.runner.run import Result, run
from trnflow.tasks.artifact import Artifact, Meta
from trnflow.tasks.keys.distributions import VERSIONS, normal_name
from trnflow.tasks.keys.key_document import key_document, key_of
from trnflow.tasks.stage import stage_of
from trnflow.tasks.store import Store
from trnflow.tasks.system.compiler_flags import FLAGS

DATA = ("load_data", "format_prompts", "tokenize_text", "pack_chunks")
BELOW = ("precompile", "train", "consolidate", "export_neuron", "evaluate_model")
PROMISED: dict[str, Meta] = {
    "precompile": {"engine": "xla", "graphs": []},
    "train": {"task": "classification", "labels": ["neg", "pos"], "lengths": [64], "steps": 3, "metrics": {}},
    "consolidate": {"task": "classification", "labels": ["neg", "pos"], "lengths": [64], "parameters": 9, "dtype": "float32"},
    "export_neuron": {"target": "stablehlo", "batch": 1, "lengths": [64], "max_difference": 0.0},
    "evaluate_model": {"task": "classification", "split": "test", "metrics": {}},
}  # fmt: skip


class Project:
    """The demo recipe on forty rows, in a store in which all nine stages are on record: the data stages truly ran, of the
    others the records and artifacts are written here."""

    def __init__(self, folder: Path, root: str) -> None:
        self.folder, self.root = folder, root
        self.home = folder / "home"

    def make(self) -> None:
        self.write_rows("good", "bad")
        self.store().prepare()
        assert self.run(Options(until="pack_chunks")).error is None
        for stage in BELOW:
            self._record(stage)

    def write_rows(self, *words: str) -> None:
        for split in ("train", "validation", "test"):
            rows = [f'{{"text": "{split} {n} {words[n % 2]}", "label": "{("pos", "neg")[n % 2]}"}}' for n in range(40)]
            (self.folder / f"{split}.jsonl").write_text("\n".join(rows))

    def recipe(self, *overrides: str) -> Recipe:
        data = f"data={{source: {self.folder}, name: null, text: text, label: label}}"
        return settings.load("demo", [data, "tokenize.train.vocab_size=90", *overrides])

    def store(self) -> Store:
        return Store(self.root, self.home)

    def run(self, options: Options) -> Result:
        recipe = self.recipe()
        return run(graph_of(recipe), context_of(recipe, self.store()), options)

    def look(self, *overrides: str) -> Plan:
        recipe = self.recipe(*overrides)
        return plan_of(graph_of(recipe), recipe, self.store())

    def actions(self, *overrides: str) -> dict[str, str]:
        return {name: step.action for name, step in self.look(*overrides).steps.items()}

    def keys(self, *overrides: str) -> dict[str, str]:
        return {name: step.key for name, step in self.look(*overrides).steps.items() if step.key}

    def _record(self, stage: str) -> Artifact:
        store, out = self.store(), self.folder / "out"
        out.mkdir()
        (out / "file").write_text(stage)
        document = self.look().steps[stage].document
        artifact = store.ingest(out, stage_of(getattr(finetune, stage)).kind, metadata_of(stage, **PROMISED[stage]))
        store.publish(
            {"schema": 1, "stage": stage, "key": key_of(document), "document": document, "artifact": artifact.digest,
             "attempt": "a", "created": "2026-01-01T00:00:00Z"}
        )  # fmt: skip
        (out / "file").unlink(missing_ok=True)
        out.rmdir()
        return artifact


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    Project(folder, str(folder / "store")).make()
    return folder


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.nightly)])
def project(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    for name in FLAGS:
        monkeypatch.delenv(name, raising=False)
    if request.param == "local":
        shutil.copytree(request.getfixturevalue("made"), tmp_path, dirs_exist_ok=True)
        return Project(tmp_path, str(tmp_path / "store"))
    project = Project(tmp_path, request.getfixturevalue("s3_root"))
    project.make()
    return project


@pytest.fixture
def install(project: Project, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Say that other versions of distributions are installed; what is remembered of them is forgotten."""

    def pretend(**versions: str) -> None:
        told = {normal_name(name): version for name, version in versions.items()}
        version = property(lambda self: told.get(normal_name(self.name)) or self.metadata["Version"])
        # not the standard library's class once a test has imported the package importlib_metadata
        monkeypatch.setattr(type(importlib.metadata.distribution("torch")), "version", version)
        with sqlite3.connect(project.home / "memo.db") as connection:
            forgotten = connection.execute("delete from known where kind = ?", (VERSIONS,))
        assert forgotten.rowcount

    return pretend


def check_end(project: Project) -> None:
    def again() -> dict[str, str]:
        result = project.run(Options())
        assert result.error is None
        return {step.name: step.action for step in result.steps}

    check_ending(project.store(), again)


def export_key(project: Project, weights: Artifact) -> str:
    stage, config = stage_of(finetune.export_neuron), project.recipe().export
    return key_of(key_document(stage, config, {"weights": weights}, project.store().memo))


def plan(**actions: str) -> dict[str, str]:
    return {stage: actions.get(stage, "hit") for stage in (*DATA, *BELOW)}


MAYBE = dict.fromkeys(("consolidate", "export_neuron", "evaluate_model"), "maybe")


def test_other_libraries_rerun_what_they_reach(project: Project, install: Callable[..., None]) -> None:
    assert project.actions() == plan()
    before = project.keys()
    weights = project.look().steps["consolidate"].artifact
    assert weights is not None
    assert export_key(project, weights) == before["export_neuron"]

    install(tokenizers="99.0")
    assert project.actions() == plan(
        tokenize_text="run", **dict.fromkeys(("pack_chunks", "precompile", "train"), "maybe"), **MAYBE
    )
    assert project.look().steps["tokenize_text"].why.startswith("env.tokenizers: ")
    assert export_key(project, weights) == before["export_neuron"]

    install(torch_xla="99.0")
    assert project.actions() == plan(precompile="run", train="run", **MAYBE)
    assert export_key(project, weights) != before["export_neuron"]
    install(jinja2="99.0")
    assert project.actions()["load_data"] == "hit"
    assert project.actions()["format_prompts"] == "run"
    install(matplotlib="99.0")
    assert project.actions() == plan(evaluate_model="run")
    install(prefect="99.0", mlflow="99.0", fsspec="99.0", rich="99.0", pydantic="99.0", huggingface_hub="99.0")
    assert project.keys() == before
    check_end(project)


def test_flags_count_and_their_order_does_not(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--one=1 --two=2")
    flagged = project.look()
    assert {name: step.action for name, step in flagged.steps.items()} == plan(precompile="run", train="run", **MAYBE)
    assert "accel.flags" in flagged.steps["train"].why
    before = project.keys()
    monkeypatch.setenv("XLA_FLAGS", " --two=2  --one=1")
    assert project.keys() == before
    monkeypatch.setenv("XLA_FLAGS", "--two=2 --one=3")
    assert project.keys()["precompile"] != before["precompile"]
    monkeypatch.delenv("XLA_FLAGS")
    check_end(project)


def test_how_it_runs_changes_nothing(project: Project) -> None:
    how = ("train.log_every=1", "train.checkpoint_every=7", "train.keep_checkpoints=9", "launch.grace_seconds=3",
           "launch.environment={A: b}", "tracking.enabled=false", "hardware.price_per_hour=9", "store.min_free_gb=0")  # fmt: skip
    assert project.actions(*how) == plan()
    check_end(project)


def test_other_data_of_the_same_shapes_compiles_nothing(project: Project) -> None:
    before = project.keys()
    project.write_rows("bad", "good")
    assert project.run(Options(until="pack_chunks")).error is None
    assert project.actions() == plan(train="run", **MAYBE)
    after = project.keys()
    assert after["pack_chunks"] != before["pack_chunks"]
    assert after["precompile"] == before["precompile"]
    assert project.keys("train.learning_rate=1")["precompile"] == before["precompile"]
    assert project.keys("train.global_batch=64")["precompile"] != before["precompile"]
    project.write_rows("good", "bad")
    check_end(project)
