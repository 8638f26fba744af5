"""What Prefect may set of a recipe: who reaches its API gets no shell by an override or another recipe's file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args
from uuid import uuid4

import pytest
import yaml
from pydantic import BaseModel

from tests.flows.champions.conftest import write_tiny
from trnflow.flows import deployments
from trnflow.flows.recipes.files import read_tree
from trnflow.flows.recipes.recipe import Recipe, load
from trnflow.flows.recipes.schema import annotation_at, choices, config_in
from trnflow.flows.recipes.sent import check_sent, guarded, load_sent
from trnflow.flows.retraining import crashed
from trnflow.flows.services.deployed_recipes import check_recipes
from trnflow.flows.sweeps.plan import read_plan
from trnflow.tasks.config import GUARDED, RUNS_CODE, Mark, StageConfig, is_hook
from trnflow.tasks.errors import ConfigError

HARMLESS = """
name description data.name data.revision data.text data.label data.labels data.columns data.version data.arguments
data.split_by data.ignore format.target format.labels format.words format.text_pair format.negative format.score
format.separator format.instruction format.context format.response format.messages format.system format.history
format.text format.prompt_template format.response_template format.chat_template format.tools format.documents
format.template_arguments format.date model.revision model.name model.config model.overrides tokenize.new_tokens
train.lora.rank_pattern train.lora.alpha_pattern train.lora.modules_to_save train.freeze train.warm_start_from
train.tensor_parallel_rules train.learning_rate_mapping train.best_metric train.lora.targets train.class_weights
consolidate.max_shard_size evaluate.prompts evaluate.harness.tasks promote.metric promote.at_least promote.at_most
checks.column hardware.name launch.device_names launch.stages tracking.experiment own.files stages.after stages.arguments
sweep.settings sweep.within sweep.metric sweep.name
"""
"""Settings that hold texts of the user's, and neither a path to code, an address nor a place to read: names of columns, labels
and models in the store, templates (rendered apart), what own functions get, and files below the recipe's own folder. The
settings that `sweep.settings` varies are checked one by one."""

VALUES: dict[str, Any] = {
    "launch.environment": {"PYTHONPATH": "/tmp/theirs"},
    "launch.python": "/tmp/theirs/python",
    "launch.options": {"bcast": "/tmp/theirs"},
    "launch.image": "theirs",
    "launch.role": "arn:aws:iam::123456789012:role/theirs",
    "launch.secret": "theirs",
    "evaluate.harness.include_path": "/tmp/theirs",
    "export.neuron_python": "/tmp/theirs/python",
    "task_runner.address": "tcp://theirs:8786",
    "train.compile_cache": True,
    "train.compiler_flags": ["--xla_gpu_cuda_data_dir=/tmp/theirs"],
    "tracking.uri": "http://theirs:5000",
    "tracking.also": ["wandb"],
    "sweep.database": "postgresql://theirs/optuna",
    "store.root": "/tmp/theirs",
    "data.variables": ["AWS_SECRET_ACCESS_KEY"],
    "data.max_growth": 1e30,
    "data.max_cell_mb": 1e30,
    "launch.memory_gib": 1e30,
    "store.min_free_gb": 0,
    "data.source": "/etc",
    "data.splits": {"test": "/etc/passwd"},
    "data.mix.theirs.source": "/etc",
    "data.mix.theirs.splits": {"test": "../../etc/passwd"},
    "model.source": "/root/model",
    "model.tokenizer": "~/model",
}
"""A value of each guarded setting, as someone would send it who wants a shell or the rows."""


def fields_of(kind: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """(dotted name, type annotation with its marks) of each setting in a config and in those in it."""
    for name in kind.model_fields:
        annotation = annotation_at(kind, (name,))
        yield ".".join((*above, name)), annotation
        for inner in configs_in(annotation):
            yield from fields_of(inner, (*above, name))


def configs_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from configs_in(part)


def holds_free_text(annotation: Any) -> bool:
    if isinstance(annotation, type):
        return issubclass(annotation, str)
    return annotation is Any or any(map(holds_free_text, get_args(annotation)))


def unmarked(kind: type[BaseModel]) -> set[str]:
    """The settings that hold texts, and have no mark that says who may set them."""
    return {
        name
        for name, annotation in fields_of(kind)
        if holds_free_text(annotation) and not is_hook(annotation) and not {*GUARDED} & marks_of(annotation)
        and not [*configs_in(annotation)] and not (choices(annotation) and config_in(annotation))
    }  # fmt: skip


def marks_of(annotation: Any) -> set[Mark]:
    return {mark for mark in getattr(annotation, "__metadata__", ()) if isinstance(mark, Mark)}


def flagged(*marks: Mark) -> set[str]:
    return {name for name, annotation in fields_of(Recipe) if {*marks} & marks_of(annotation)}


def test_a_new_setting_that_holds_a_text_has_a_mark_or_is_known_to_be_harmless() -> None:
    """A path to code, an address and a place to read are texts: add RUNS_CODE, REACHES_OUT or SOURCE to such a field, and
    any other to HARMLESS."""

    class New(StageConfig):
        compiler_path: str | None = None
        seconds: int = 1

    assert unmarked(New) == {"compiler_path"}
    assert {name.replace("data.mix.", "data.") for name in unmarked(Recipe)} == {*HARMLESS.split()}


def test_each_guarded_setting_has_a_value_here() -> None:
    named = {name.replace("data.mix.theirs.", "data.mix.") for name in VALUES}
    assert named == flagged(*GUARDED)
    assert flagged(RUNS_CODE) == {
        "launch.environment", "launch.image", "launch.options", "launch.python", "evaluate.harness.include_path",
        "export.neuron_python",
        "task_runner.address", "train.compile_cache", "train.compiler_flags",
    }  # fmt: skip


@pytest.fixture
def deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a deployment with tiny.yaml, beside the folder `other` with the same; HOME and home beside both."""
    for name in ("deployed", "other"):
        (tmp_path / name).mkdir()
        write_tiny(tmp_path / name)
    monkeypatch.chdir(tmp_path / "deployed")
    monkeypatch.setenv("TRNFLOW_HOME", str(tmp_path / "home"))
    return tmp_path / "deployed"


def override(name: str) -> list[str]:
    needed = {
        "evaluate.harness.include_path": ["evaluate.harness.tasks=[a]"],
        "task_runner.address": ["task_runner.kind=dask"],
        "train.compile_cache": ["train.compile=true"],
        "launch.python": ["launch.kind=slurm"],
        "launch.options": ["launch.kind=slurm"],
    }
    return [*needed.get(name, []), f"{name}={json.dumps(VALUES[name])}"]


@pytest.mark.parametrize("name", sorted(VALUES))
def test_prefect_may_not_set_what_runs_code_or_reaches_out_and_who_types_may(name: str, deployed: Path) -> None:
    read = read_tree("tiny.yaml", Recipe)
    with pytest.raises(ConfigError, match=rf"override {name}(\.\w+)?: "):
        check_sent(read, override(name))
    section, _, rest = name.partition(".")
    if "." not in rest:  # as a whole section
        with pytest.raises(ConfigError, match=f"override {name}"):
            check_sent(read, [f"{section}={json.dumps({rest: VALUES[name]})}"])
    assert name in {".".join(path) for path, _ in guarded(read.with_overrides(override(name)).tree, Recipe)}


def test_flows_refuse_before_anything_is_made(deployed: Path) -> None:
    sent = ["launch.environment.PYTHONPATH=/tmp/theirs"]
    for flow in (deployments.finetune, deployments.prepare):
        with pytest.raises(ConfigError, match=r"launch\.environment: it may run code"):
            flow.fn("tiny.yaml", overrides=sent)
    with pytest.raises(ConfigError, match=r"store\.root: it says where a run's data goes"):
        deployments.finetune.fn("tiny.yaml", overrides=[f"store.root={deployed.parent / 'theirs'}"])
    assert not (deployed.parent / "theirs").exists() and not (deployed.parent / "home/store").exists()
    loaded = load("tiny.yaml", [*sent, f"store.root={deployed.parent / 'theirs'}"])  # typed
    assert loaded.launch.environment == {"PYTHONPATH": "/tmp/theirs"}


def test_a_value_that_the_recipe_has_or_that_takes_away_passes(deployed: Path) -> None:
    (deployed / "own.yaml").write_text(
        "extends: tiny.yaml\nlaunch: {environment: {A: '1', B: '2'}}\ntracking: {uri: 'http://ours:5000'}\n"
        "data: {source: 's3://ours/rows/2026'}\n"
    )
    load_sent("own.yaml", ["launch.environment={A: '1'}", "tracking.uri=http://ours:5000", "train.max_steps=2"])
    load_sent("own.yaml", ["launch.environment=null", "tracking.uri=null", "store.root=null", "on=cpu"])
    (deployed / "below").mkdir()
    (deployed / "below/own.yaml").write_text("extends: ../tiny.yaml\ndata: {source: ../rows}\n")
    load_sent("below/own.yaml", ["train.max_steps=2"])
    with pytest.raises(ConfigError, match="is neither a hub's name"):  # of the working directory it is another folder
        load_sent("below/own.yaml", ["data.source=../rows"])
    with pytest.raises(
        ConfigError, match="environment: it may run code, and a run that Prefect starts takes it from rec"
    ):
        load_sent("own.yaml", ["launch.environment.A=2"])
    with pytest.raises(ConfigError, match="environment"):
        load_sent("own.yaml", ["launch.environment.B=null"])


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("org/rows", True), ("imdb", True), ("builtin:stdlib", True), ("rows", True), ("rows/*.csv", False), ("rows/a.csv", True),
        (".env", False), ("rows/.env", False), ("server.pem", False), ("holds-links", False), ("home/store", False),
        ("s3://ours/rows/2027", True), ("s3://ours/${AWS_SECRET_ACCESS_KEY}", False), ("s3://theirs/rows", False),
        ("s3://ours.evil/rows", False), ("s3://ours@theirs/rows", False), ("s3://key@ours/rows", True),
        ("s3://theirs\\@ours/rows", False), ("https://ours/rows", False),
        ("zip://a.csv::s3://ours/rows", False), ("https://[::1", False),
        ("file:///etc", False), ("file://rows", True),
        ("local:///etc", False), ("/etc", False), ("~/rows", False), ("../other/rows", False), ("rows/../../other", False),
        ("linked/rows", False), ('"rows/\\0"', False), ("circle/rows", False),
    ],
)  # fmt: skip
def test_sent_rows_and_models_are_hub_names_the_project_s_files_or_of_the_recipe_s_bucket(
    text: str, passes: bool, deployed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (deployed / "own.yaml").write_text("extends: tiny.yaml\ndata: {source: 's3://ours/rows/2026'}\n")
    (deployed / "linked").symlink_to(deployed.parent / "other")
    (deployed / "circle").symlink_to("circle")
    for folder in ("rows", "holds-links"):
        (deployed / folder).mkdir(exist_ok=True)
    (deployed / "holds-links/rows.csv").symlink_to("/etc/passwd")
    for file in (".env", "server.pem", "rows/a.csv"):
        (deployed / file).write_text("a secret")
    monkeypatch.setenv("TRNFLOW_HOME", str(deployed / "home"))
    for name in ("data.source", "model.source", "model.tokenizer"):
        if passes:
            load_sent("own.yaml", [f"{name}={text}"])
        else:
            with pytest.raises(
                ConfigError, match=f"override {name}: .* is neither a hub's name, nor rows or a model below"
            ):
                load_sent("own.yaml", [f"{name}={text}"])


def test_a_recipe_outside_the_deployment_s_folder_gives_no_code_address_nor_foreign_source(deployed: Path) -> None:
    other = deployed.parent / "other"
    load_sent("../other/tiny.yaml", ["train.max_steps=2"])
    for name, value in VALUES.items():
        document: Any = value
        for part in reversed(name.split(".")):
            document = {part: document}
        (other / "own.yaml").write_text(yaml.safe_dump({"extends": "tiny.yaml", **document}))
        with pytest.raises(ConfigError, match=rf"{name}(\.\w+)? in a recipe in {other}: "):
            load_sent("../other/own.yaml")
    # what shipped files and those of the folder give is trusted
    (deployed / "own.yaml").write_text("launch: {environment: {A: '1'}}\n")
    (other / "own.yaml").write_text(f"extends: [tiny.yaml, base/store/s3, {deployed}/own.yaml]\n")
    load_sent("../other/own.yaml")
    # the folder's own recipe extends what it likes
    (other / "shared.yaml").write_text("extends: tiny.yaml\nlaunch: {environment: {A: '1'}}\n")
    (deployed / "extends.yaml").write_text("extends: ../other/shared.yaml\n")
    load_sent("extends.yaml")


def test_own_code_outside_the_deployment_s_folder_is_refused(deployed: Path) -> None:
    for folder in (deployed, deployed.parent / "other"):
        own = (
            (folder / "tiny.yaml")
            .read_text()
            .replace("task: classification", "task: classification, make: 'formats:make'")
        )
        (folder / "own.yaml").write_text(own)
        (folder / "formats.py").write_text("def make(row):\n    return row['text']\n")
    load_sent("own.yaml")
    with pytest.raises(
        ConfigError, match=r"format\.make: formats:make lies in .*other, outside the deployment's folder"
    ):
        load_sent("../other/own.yaml")


def test_a_deployed_sweep_varies_neither_code_nor_foreign_sources(deployed: Path) -> None:
    for sent in (
        {"vary": ["model.source=/root/a,/root/b"]},
        {"vary": ["train.compile_cache=true,false"], "overrides": ["train.compile=true"]},
        {"overrides": ['sweep.settings={"data.source": ["/etc", "/root"]}']},
        {"vary": ["train.seed=1,2"], "overrides": ["sweep.database=postgresql://theirs/a"]},
    ):
        with pytest.raises(ConfigError, match="Prefect start"):
            deployments.sweep.fn("tiny.yaml", **sent)
    # that a recipe of the folder varies is trusted, and what trials may read is sent as well
    (deployed / "own.yaml").write_text("extends: tiny.yaml\nsweep: {settings: {model.source: [/srv/a, /srv/b]}}\n")
    read_plan("own.yaml", ["train.max_steps=2"]).check_sent()
    read_plan("tiny.yaml", ["model.source=org/a,org/b"]).check_sent()


def test_deploy_refuses_what_its_flows_would(deployed: Path) -> None:
    document = {
        "deployments": [{"name": "nightly", "parameters": {"recipe": "tiny.yaml", "overrides": ["data.source=/etc"]}}]
    }
    with pytest.raises(ConfigError, match=r"prefect\.yaml: deployment nightly: override data\.source: /etc is neither"):
        check_recipes(document, "prefect.yaml")


def test_the_report_of_a_crashed_retrain_opens_no_store_that_prefect_names(
    deployed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(crashed, "send_report", lambda run, name, payload: told.append(json.dumps(payload)))
    sent = [f"store.root={deployed.parent / 'theirs'}"]
    run = crashed.CrashedRun(uuid4(), "keen-otter", 3, datetime.now(UTC), "tiny.yaml", sent)
    assert crashed.report(run) and len(told) == 1  # under the name of its file
    assert not (deployed.parent / "theirs").exists()
