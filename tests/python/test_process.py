"""A model in the user's process changes nothing there: neither for what the process does next nor for its children."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT
from tests.helpers.hub_server import COMMIT, serve

pytestmark = pytest.mark.slow

BEGIN = """
import json, os, sys, tempfile
import pandas as pd
{imports}
from tests.helpers.process_state import changes, state
state()  # which imports what these libraries import late
began, found = state(), {{}}
def look(after):
    found[after] = {{name: [repr(value) for value in pair] for name, pair in changes(began, state()).items()}}
import trnflow as tr
look("import trnflow")
frame = pd.DataFrame({{"text": [f"word {{i}} of {{i % 7}}" for i in range(64)], "label": [*"ab"] * 32, "id": range(64)}})
"""
TRAIN = """
recipe = tr.recipe({"name": "mine", "extends": "demo", "export": {"target": "none"}, "tracking": {"enabled": False}})
recipe = recipe.set(data=frame, on="cpu", data__label="label", data__split={"test": 0.2}, train__max_steps=2)
look("recipe")
recipe.plan()
look("plan")
run = recipe.run()
run.metrics, run.predictions, run.report, repr(run), tr.runs(), tr.diff(run, run)
look("run")
digest = run.model().digest
"""
USE = """
model = tr.model(digest)
found["predicted"] = model.predict(frame).to_dict("list")
look("predict")
"""
PYFUNC = """
import mlflow
from trnflow.tasks.tracking.registry import CODE
place = tempfile.mkdtemp()
for name, code in ((f"{place}/ours", CODE), (f"{place}/empty", EMPTY)):
    with open(f"{name}.py", "w") as file:
        file.write(code)
    config = {"store": os.path.abspath("store"), "artifact": digest, "max_new_tokens": 8}
    mlflow.pyfunc.save_model(name, python_model=f"{name}.py", model_config=config, pip_requirements=[])
mlflow.pyfunc.load_model(f"{place}/empty")  # what MLflow itself changes when it loads a model
state()
began = state()
loaded = mlflow.pyfunc.load_model(f"{place}/ours")
look("load_model")
found["pyfunc"] = loaded.predict(frame)
look("pyfunc's predict")
"""
END = """
from huggingface_hub import HfApi, constants
found["hub"] = [HfApi().model_info("me/set").sha, constants.HF_HUB_OFFLINE]
print(json.dumps({**found, "digest": digest}))
"""
EVERYTHING = """
import datasets, huggingface_hub, matplotlib.pyplot, mlflow, numpy, random, torch, transformers
"""
EMPTY = """
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel
class Nothing(PythonModel):
    def predict(self, context, model_input, params=None):
        return []
set_model(Nothing())
"""


def called(home: Path, script: str, *arguments: str) -> Any:
    """What a script prints, as JSON, in a process of its own, in whose environment nobody has set anything."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRNFLOW", "MLFLOW"))}
    for name in ("PJRT_DEVICE", "XLA_FLAGS", "OMP_WAIT_POLICY", "USE_TORCH_XLA"):
        environ.pop(name, None)
    with serve({"config.json": b"{}"}, kind="models") as url:
        environ |= {
            "TRNFLOW_HOME": str(home), "PYTHONPATH": str(PROJECT), "HF_ENDPOINT": url, "HF_HOME": str(home / "hf"),
            "MLFLOW_TRACKING_URI": f"sqlite:///{home}/mlflow.db",
        }  # fmt: skip
        command = [sys.executable, "-c", f"EMPTY = {EMPTY!r}\n{script}", *arguments]
        done = subprocess.run(command, env=environ, cwd=home, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A home in which a process trained a model and predicted with it, and what that found."""
    home = tmp_path_factory.mktemp("home")
    return home, called(home, BEGIN.format(imports="") + TRAIN + USE + PYFUNC + END)


def check(found: Any, *moments: str) -> None:
    assert {moment: found[moment] for moment in moments} == {moment: {} for moment in moments}
    assert found["hub"] == [COMMIT, False]
    predicted = found["predicted"]
    assert predicted["id"] == [*range(64)] and {*predicted["label"]} <= {"a", "b"}
    assert {name: [row[name] for row in found["pyfunc"]] for name in predicted} == predicted


def test_a_process_that_trains_and_predicts_stays_as_it_was(trained: tuple[Path, Any]) -> None:
    check(trained[1], "import trnflow", "recipe", "plan", "run", "predict", "load_model", "pyfunc's predict")


def test_libraries_that_are_imported_stay_as_they_were(trained: tuple[Path, Any]) -> None:
    home, found = trained
    script = BEGIN.format(imports=EVERYTHING) + f"digest = {found['digest']!r}\n" + USE + PYFUNC + END
    check(called(home, script), "import trnflow", "predict", "load_model", "pyfunc's predict")


ENDED = """
import json, os, signal, subprocess, sys, threading, time
import trnflow as tr
from multiprocessing.reduction import ForkingPickler
from trnflow.tasks.errors import ProcessFailed
ForkingPickler.dumps = ForkingPickler.loads = ForkingPickler.__init__ = None  # nothing is pickled
model, said = tr.model(sys.argv[1]), []
expected = model.predict(["word 1"] * 3)
children = subprocess.run(["pgrep", "-P", str(os.getpid()), "-f", "separate_process"], capture_output=True, text=True)
(child,) = map(int, children.stdout.split())

# a fork asks a process of its own
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, str(model.predict(["word 1"] * 3).equals(expected)).encode())
    del model
    sys.exit()
os.wait()
said.append(os.read(read, 9).decode())
os.kill(child, 0)  # which ended nothing here

# threads take turns
rows = [[f"word {number}"] * 5 for number in range(8)]
answers = {}
threads = [threading.Thread(target=lambda n=n: answers.update({n: model.predict(rows[n])})) for n in range(8)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
said.append(all([*answers[number]["text"]] == rows[number] for number in range(8)))

# an interrupted prediction leaves no answer that would be the next one's
interrupt = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
try:
    interrupt.start()
    model.predict(["word 2 " * 20] * 20000)
except KeyboardInterrupt:
    said.append("interrupted")
said.append(bool(model.predict(["word 1"] * 3).equals(expected)))

# one that ends before its answer is an error
process = model._process
os.kill(process._process.pid, signal.SIGSTOP)
threading.Timer(0.3, process._process.kill).start()
try:
    model.predict(["word 1"])
except ProcessFailed as error:
    said += [str(error), process.ended]
print(json.dumps({"said": said, "child": child}))
"""


def test_the_process_that_predicts_is_replaced_and_ends_with_its_caller(trained: tuple[Path, Any]) -> None:
    home, found = trained
    done = called(home, ENDED, found["digest"])
    *said, error, ended = done["said"]
    assert said == ["True", True, "interrupted", True] and ended
    assert error.startswith("the process that predicts ended (signal SIGKILL)")
    with pytest.raises(ProcessLookupError):
        os.kill(done["child"], signal.SIGCONT)
