"""`plan`, `show`, `explain`, `config` and `deploy` run nothing that a recipe names: a canary in each such setting."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.flows.champions.conftest import RECIPE, write_rows
from tests.flows.prefect_api import Api, own_server
from tests.flows.recipes.test_sent import fields_of, flagged
from tests.helpers.command_line import InProcessShell
from trnflow.flows.recipes.recipe import Recipe
from trnflow.tasks.config import RUNS_CODE, is_hook

TOUCH = "from pathlib import Path\n\nPath({ran!r}).touch()\n\n"
OWN = (
    TOUCH
    + """
from trnflow.tasks.stage import stage


def rows(config, split):
    return ({{"text": f"{{n}} {{split}}", "label": "ab"[n % 2]}} for n in range(40))


def state(config):
    return "1"


def form(row):
    return row["text"]


def loss(logits, targets, weights):
    return logits.sum()


def metric(p):
    return 0.0


def check(challenger, champion):
    return None


@stage(kind="mine")
def mine(config, evaluation, out):
    return None
"""
)
CLASSES = """
extends: tiny.yaml
data: {{source: null, make: 'canary:rows', text: text, label: label}}
format: {{make: 'canary:form'}}
train: {{loss: 'canary:loss'}}
evaluate: {{metrics: [{{function: 'canary:metric', less_is_better: true}}]}}
own: {{identity: 'canary:state'}}
stages: {{mine: {{function: 'canary:mine', after: evaluate_model}}}}
promote: {{checks: ['canary:check']}}
launch: {{environment: {{PYTHONPATH: '{folder}/site', BASH_ENV: '{folder}/canary.sh'}}}}
task_runner: {{kind: dask, address: 'tcp://127.0.0.1:{port}'}}
"""
LANGUAGE = """
extends: base/hardware/cpu
data: {{source: rows, text: text}}
format: {{task: text}}
model: {{config: {{model_type: llama, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 64}}}}
tokenize: {{train: {{kind: bpe, vocab_size: 300}}}}
pack: {{chunk_length: 64}}
train: {{max_steps: 1, compile: true, compile_cache: true}}
export: {{target: neuron, neuron_python: '{folder}/bin/python'}}
evaluate: {{harness: {{include_path: tasks, tasks: [canary]}}}}
launch: {{kind: slurm, python: '{folder}/bin/python', options: {{comment: canary}}}}
tracking: {{enabled: false}}
"""
FLAGS = """
extends: language.yaml
train: {{engine: xla, compile: false, compile_cache: false, compiler_flags: ['--xla_gpu_cuda_data_dir={folder}']}}
launch: {{kind: sagemaker, role: canary, image: canary, options: {{Tags: [canary]}}}}
export: {{target: none, neuron_python: null}}
"""
TASK = "task: canary\ndataset_path: json\ndataset_kwargs: {data_files: {test: '*.jsonl'}}\nprocess_docs: !function marks.docs\n"


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


@pytest.fixture
def shell(tmp_path: Path, listening: socket.socket) -> InProcessShell:
    """A folder with recipes that name canaries: whatever executes one makes the file `ran`."""
    ran = str(tmp_path / "ran")
    write_rows(tmp_path / "rows", {"pos": "pos", "neg": "neg"})
    for name, text in {"canary.py": OWN, "site/sitecustomize.py": TOUCH, "tasks/marks.py": TOUCH}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text.format(ran=ran))
    (tmp_path / "tasks/canary.yaml").write_text(TASK)
    (tmp_path / "canary.sh").write_text(f"touch {ran}\n")
    for name in ("python", "ptxas"):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\ntouch {ran}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    for name, text in {"classes": CLASSES, "language": LANGUAGE, "flags": FLAGS}.items():
        written = text.format(folder=tmp_path, port=listening.getsockname()[1])
        (tmp_path / f"{name}.yaml").write_text(written)
    return InProcessShell(tmp_path)


RECIPES = ("classes.yaml", "language.yaml", "flags.yaml")


def test_what_only_reads_a_recipe_runs_nothing_that_it_names(shell: InProcessShell, listening: socket.socket) -> None:
    ran = shell.folder / "ran"
    # that the canaries sing: `preview` asks own.identity
    assert shell("preview", "classes.yaml", "1").returncode == 0 and ran.exists()
    ran.unlink()
    traced = [["plan", "classes.yaml", "--trace"]]  # by which the loss and the environment would come in
    for recipe in RECIPES:
        for command in [["config", recipe], ["plan", recipe], ["show", recipe], ["explain", recipe, "train"], *traced]:
            done = shell(*command)
            assert done.returncode == 0, done.stderr
            assert not ran.exists(), command
        traced = []
    with pytest.raises(BlockingIOError):  # nobody called the cluster
        listening.accept()


DEPLOYMENT = """
  - name: {name}
    entrypoint: trnflow.flows.deployments.finetune
    parameters: {{recipe: {name}.yaml}}
    work_pool: {{name: local}}
"""


def test_deploy_runs_nothing_that_its_recipes_name(shell: InProcessShell, tmp_path: Path) -> None:
    names = "".join(DEPLOYMENT.format(name=name.removesuffix(".yaml")) for name in RECIPES)
    (tmp_path / "prefect.yaml").write_text(f"name: mine\ndeployments:{names}")
    with own_server(tmp_path / "server/.trnflow") as url:
        environ = Api(tmp_path / "server/.trnflow", url).environ
        command = [sys.executable, "-m", "trnflow", "deploy"]
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 0 and "flags" in done.stdout, done.stderr
    assert not (tmp_path / "ran").exists()


def test_each_setting_that_may_run_code_has_a_canary_that_sings(shell: InProcessShell) -> None:
    written = [yaml.safe_load((shell.folder / name).read_text()) for name in RECIPES]
    hooks = {name for name, annotation in fields_of(Recipe) if is_hook(annotation)}
    for name in hooks | flagged(RUNS_CODE):
        assert any(has(document, name.split(".")) for document in written), name
    ran = shell.folder / "ran"
    environ = os.environ | yaml.safe_load((shell.folder / "classes.yaml").read_text())["launch"]["environment"]
    for command, more in (
        ([sys.executable, "canary.py"], {}), ([sys.executable, "tasks/marks.py"], {}), (["bin/python"], {}), (["bin/ptxas"], {}),
        ([sys.executable, "-c", ""], environ), (["bash", "-c", ":"], environ),
    ):  # fmt: skip
        subprocess.run(command, cwd=shell.folder, env=more or None)
        assert ran.exists(), command
        ran.unlink()


def has(document: object, path: list[str]) -> bool:
    """Whether a document sets a setting; names of tables and places in lists are passed over."""
    if not path:
        return True
    if isinstance(document, list):
        return any(has(entry, path) for entry in document)
    if not isinstance(document, dict):
        return False
    if path[0] in document:
        return has(document[path[0]], path[1:])
    return any(isinstance(entry, dict) and path[0] in entry and has(entry, path) for entry in document.values())
