"""What a job needs travels through the store, and is the same there; what can't travel is refused by name."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from tests.flows.champions.conftest import write_tiny
from tests.flows.recipes.test_recipes import FILES
from tests.helpers import small_models
from tests.helpers.stores import new_store
from trnflow.flows.jobs.carry import ARCHIVE, FILE, carry_code, carry_recipe, has_code, unpack_code, write_archive
from trnflow.flows.recipes.recipe import Recipe, load
from trnflow.flows.runner.context import context_of
from trnflow.flows.runner.own_code import own_code
from trnflow.tasks.errors import CodeError, ConfigError
from trnflow.tasks.sources.model_source import model_source
from trnflow.tasks.store import Store

SECTIONS = ("format", "tokenize", "pack", "train", "consolidate", "export", "evaluate", "hardware", "stages")
MODULE = """
from trnflow.tasks.errors import DataError
from trnflow.tasks.stage import stage

from mine.words import PREFIX


@stage(kind="mine")
def after(config, given, out):
    return None


def form(row):
    return PREFIX + row["text"] + "prices.csv"


def check(challenger, champion):
    return None
"""
OWN = """
extends: [../../tiny.yaml, ../../parts/metric.yaml]
format: {task: classification, make: 'mine.formats:form'}
stages: {behind: {after: train, function: 'mine.formats:after'}}
promote: {checks: ['mine.formats:check']}
own: {files: [prices.csv]}
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return new_store(tmp_path / "home")


def carried(recipe: Recipe, store: Store, folder: Path) -> Recipe:
    context = context_of(recipe, store)
    digest = carry_recipe(recipe, store, context.resolver).digest
    assert carry_recipe(recipe, store, context.resolver).digest == digest, "twice the same"
    folder.mkdir()
    store.copy_files(store.artifact(digest), folder)
    return load(str(folder / FILE))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    small_models.bert(folder)
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n")
    (folder / "README.md").write_text("which nobody reads")
    return folder


@pytest.mark.parametrize("name", sorted(FILES))
def test_every_shipped_recipe_is_the_same_there(name: str, store: Store, model: Path, tmp_path: Path) -> None:
    source = [f"model.source={model}"] if load(name).model.source else []
    here = load(name, source)
    there = carried(here, store, tmp_path / "there")
    for section in SECTIONS:
        assert getattr(there, section) == getattr(here, section)
    assert (there.name, there.data.label, there.data.ignore) == (here.name, here.data.label, here.data.ignore)
    assert not there.tracking.enabled


def test_a_model_folder_travels_with_what_is_read_of_it(store: Store, model: Path, tmp_path: Path) -> None:
    here = load("classify", [f"model.source={model}", "model.name=org/model"])
    there = carried(here, store, tmp_path / "there")
    mine, theirs = (context_of(recipe, store).resolver.ask_once(model_source, recipe.model) for recipe in (here, there))
    assert mine.identity == theirs.identity and theirs.location["model"]["folder"] == str(tmp_path / "there/model")
    assert model.joinpath("model.safetensors").exists(), "copied, not moved"
    assert not (tmp_path / "there/model/README.md").exists()


def own_recipe(folder: Path) -> Recipe:
    folder.mkdir()
    write_tiny(folder)
    for place in (folder, folder / "parts"):
        (place / "mine").mkdir(parents=True, exist_ok=True)
        (place / "mine/__init__.py").touch()
    (folder / "mine/formats.py").write_text(MODULE)
    (folder / "mine/words.py").write_text("PREFIX = 'price: '\n")
    (folder / "parts/scores.py").write_text("def half(p):\n    return 0.5\n")
    (folder / "parts/metric.yaml").write_text(
        "evaluate: {metrics: [{function: 'scores:half', less_is_better: false}]}\n"
    )
    # two folders below the modules
    (folder / "conf/team").mkdir(parents=True)
    (folder / "pyproject.toml").touch()
    (folder / "conf/team/own.yaml").write_text(OWN)
    (folder / "conf/team/prices.csv").write_text("1,2\n")
    return load(str(folder / "conf/team/own.yaml"))


def test_own_code_of_two_folders_travels(store: Store, tmp_path: Path) -> None:
    here = own_recipe(tmp_path / "project")
    there = carried(here, store, tmp_path / "there")
    travels = {name: named for name, (named, _) in here.hooks.items() if not name.startswith("promote.")}
    assert {name: named for name, (named, _) in there.hooks.items()} == travels and len(travels) == 3
    for setting in travels:
        mine, theirs = (
            own_code(recipe, setting).find(store, context_of(recipe, store).resolver)  # type: ignore[union-attr]
            for recipe in (here, there)
        )
        assert mine.identity == theirs.identity
        assert ("own.files: prices.csv" in mine.identity["code"]) == (setting != "evaluate.metrics.0.function")
        assert all(
            str(tmp_path / "there") in file for name, file in theirs.location["files"].items() if name[:8] != "trnflow."
        )


def test_a_secret_is_refused_and_a_variable_travels(store: Store, tmp_path: Path) -> None:
    folder = write_tiny(tmp_path)
    with pytest.raises(ConfigError, match=r"launch\.environment\.TOKEN may be a secret") as caught:
        carried(load(str(folder / "tiny.yaml"), ["launch.environment.TOKEN=hunter2"]), store, tmp_path / "there")
    assert "hunter2" not in str(caught.value) and "hunter2" not in caught.value.fix
    there = carried(
        load(str(folder / "tiny.yaml"), ["launch.environment.TOKEN=${TOKEN_OF_TEST}"]), store, tmp_path / "here"
    )
    assert there.launch.environment == {"TOKEN": "${TOKEN_OF_TEST}"}


def test_what_the_machine_decides_is_decided_there(store: Store, model: Path, tmp_path: Path) -> None:
    folder = write_tiny(tmp_path)
    here = load("classify", [f"model.source={model}"])
    assert here.decided_here and "train.device" in here.decided_here
    context = context_of(here, store)
    store.copy_files(store.artifact(carry_recipe(here, store, context.resolver).digest), tmp_path / "there")
    settings = yaml.safe_load((tmp_path / "there" / FILE).read_text())
    assert "hardware" not in settings and not {"device", "engine", "dtype"} & settings["train"].keys()
    assert not load(str(folder / "tiny.yaml")).decided_here


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("data.arguments={url: 'postgres://me:hunter2@host/db'}", None),
        ("launch.environment.NCCL_DEBUG=INFO", None),
        ("launch.environment.API_KEY=hunter2", "launch.environment.API_KEY may be a secret"),
    ],
)
def test_what_no_stage_reads_and_what_is_no_secret_does_not_stop_a_job(
    setting: str, said: str | None, store: Store, tmp_path: Path
) -> None:
    recipe = load(str(write_tiny(tmp_path) / "tiny.yaml"), [setting])
    if said is None:
        there = carried(recipe, store, tmp_path / "there")
        assert "hunter2" not in (tmp_path / "there" / FILE).read_text() and not there.data.arguments
        return
    with pytest.raises(ConfigError, match=said):
        carried(recipe, store, tmp_path / "there")


def test_the_program_travels_whole_and_runs(store: Store, tmp_path: Path) -> None:
    artifact = store.artifact(carry_code(store))
    assert has_code(artifact) and carry_code(store) == artifact.digest
    store.copy_files(artifact, tmp_path / "code")
    unpack_code(tmp_path / "code" / ARCHIVE, tmp_path / "code")
    command = "import trnflow.flows.recipes.recipe as r, trnflow; print(trnflow.__file__); print(r.load('demo').name)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", command], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path / "code")}, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [str(tmp_path / "code/trnflow/__init__.py"), "demo"]
    with (tmp_path / "code/trnflow/flows/finetune.py").open("a") as file:
        file.write("\n")
    write_archive(tmp_path / "other.tar")
    store.copy_files(artifact, tmp_path / "again")
    assert (tmp_path / "again" / ARCHIVE).read_bytes() == (tmp_path / "other.tar").read_bytes()


@pytest.mark.parametrize("name", ["../outside.py", "link.py", "pipe"])
def test_an_archive_that_reaches_outside_its_folder_is_one_error(tmp_path: Path, name: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = {"link.py": (tarfile.SYMTYPE, "/etc/passwd"), "pipe": (tarfile.FIFOTYPE, "")}.get(
        name, (tarfile.REGTYPE, "")
    )
    with tarfile.open(tmp_path / ARCHIVE, "w") as archive:
        archive.addfile(entry)
    with pytest.raises(CodeError, match="the job's code can't be unpacked"):
        unpack_code(tmp_path / ARCHIVE, tmp_path / "code")
    assert {file.name for file in tmp_path.rglob("*")} <= {ARCHIVE, "code"}
