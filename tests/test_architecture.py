"""The house as ARCHITECTURE.md draws it, held by reading every import."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from trnflow.flows.finetune import FUNCTIONS, ROLES
from trnflow.tasks.artifact import Meta
from trnflow.tasks.config import StageConfig
from trnflow.tasks.errors import CodeError
from trnflow.tasks.keys.code_closure import PLUMBING
from trnflow.tasks.stage import Role, Workdir, by_role, stage

PROJECT = Path(__file__).resolve().parents[1]
MODULES = {"trnflow": PROJECT / "trnflow/__init__.py"} | {
    "trnflow." + ".".join(path.relative_to(PROJECT).with_suffix("").parts).removesuffix(".__init__"): path
    for folder in ("flows", "tasks")
    for path in sorted((PROJECT / folder).rglob("*.py"))
}
STAGES = (
    "load_data", "format_prompts", "tokenize_text", "pack_chunks", "precompile", "train", "consolidate", "export_neuron",
    "evaluate_model",
)  # fmt: skip


def imports(path: Path, *, top_level: bool = False) -> Iterator[str]:
    tree = ast.parse(path.read_text())
    for node in tree.body if top_level else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports break Prefect's loader"
            yield str(node.module)


def users(package: str) -> set[str]:
    return {
        name
        for name, path in MODULES.items()
        if any(found == package or found.startswith(f"{package}.") for found in imports(path))
    }


def test_tasks_know_neither_prefect_nor_flows() -> None:
    assert not {name for name in users("prefect") | users("trnflow.flows") if name.startswith("trnflow.tasks")}


def test_plumbing_imports_plumbing_alone() -> None:
    """A module that comes with plumbing and is none itself is in no key, and the file audit refuses it in every stage."""
    for name in PLUMBING:
        types = {"trnflow.tasks.documents"}  # read by type checkers alone
        assert {found for found in imports(MODULES[name]) if found in MODULES} <= PLUMBING | types


def test_each_heavy_library_has_its_place() -> None:
    loggers = ("trnflow.tasks.tracking", "trnflow.tasks.prediction.stored_model")
    assert all(name.startswith(loggers) for name in users("mlflow"))
    assert all(name.startswith("trnflow.flows.sweeps") for name in users("optuna"))
    places = ("trnflow.tasks.training.xla", "trnflow.tasks.export.lowering", "trnflow.tasks.export.program_runners")
    assert all(name.startswith(places) for name in users("torch_xla"))
    readers = ("trnflow.tasks.store", "trnflow.tasks.data.load", "trnflow.tasks.sources", "trnflow.tasks.load_data")
    assert all(name.startswith(readers) for name in users("fsspec"))
    callers = ("trnflow.flows.deployments", "trnflow.flows.services", "trnflow.flows.cli.prefect_run")
    assert all(name.startswith(callers) for name in users("prefect"))


@pytest.mark.parametrize("stage", STAGES)
def test_stages_meet_through_artifacts_only(stage: str) -> None:
    others = {f"trnflow.tasks.{other}" for other in STAGES if other != stage}
    allowed = {"trnflow.tasks.train"} if stage == "precompile" else set()  # they share TrainConfig, on purpose
    assert not (set(imports(MODULES[f"trnflow.tasks.{stage}"])) & others) - allowed


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_module_is_light(stage: str) -> None:
    """Configs and `plan` import every stage module: heavy work is imported inside functions."""
    heavy = {"torch", "torch_xla", "transformers", "datasets", "prefect", "mlflow", "numpy", "pyarrow", "fsspec"}
    assert not {name.split(".")[0] for name in imports(MODULES[f"trnflow.tasks.{stage}"], top_level=True)} & heavy


def test_no_module_bears_a_foreign_name() -> None:
    """A `tasks/tokenize.py` beside a script crashes Python's own linecache."""
    names = {name.rsplit(".", 1)[-1] for name in MODULES} - {"__main__", "tasks", "flows"}
    assert not names & sys.stdlib_module_names


def test_plan_imports_nothing_heavy(tmp_path: Path) -> None:
    program = (
        "import sys; from trnflow.flows.cli.main import main; main(['plan', 'demo']);"
        "heavy = {'torch', 'torch_xla', 'prefect', 'mlflow', 'datasets', 'transformers', 'numpy', 'pyarrow', 'fsspec', 'rich'};"
        "others = {'trnflow.flows.cli.store_commands', 'trnflow.flows.cli.model.predict', 'trnflow.flows.cli.completion'};"
        "sys.exit(','.join(sorted((heavy | others) & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr.startswith(f"made {tmp_path}/.trnflow ") and done.stderr.count("\n") == 1
    assert "load_data" in done.stdout


def test_a_role_belongs_to_one_stage_and_a_second_one_is_refused_with_both_places() -> None:
    assert set(ROLES) == set(get_args(Role)) and set(ROLES.values()) == {function.__name__ for function in FUNCTIONS}

    @stage(kind="model", role="model")
    def other(config: StageConfig, out: Workdir) -> Meta:
        return {}

    with pytest.raises(CodeError) as error:
        by_role([*FUNCTIONS, other])
    assert "two stages have the role model" in error.value.message
    assert re.search(rf"consolidate\.py:\d+ and {re.escape(__file__)}:\d+", error.value.message)


def test_names_of_stages_stand_in_few_modules_outside_them() -> None:
    """Words that are also names of settings are left out."""
    names = "load_data|format_prompts|tokenize_text|pack_chunks|precompile|consolidate|export_neuron|evaluate_model"
    literal = re.compile(rf"""["']({names})["']""")
    rooms = [*(PROJECT / "flows").rglob("*.py"), *(PROJECT / "tasks/keys").rglob("*.py")]
    assert [str(file.relative_to(PROJECT)) for file in rooms if literal.search(file.read_text())] == []
