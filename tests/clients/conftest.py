"""Run scripts in a client's environment: the folder `.clients/<name>` laid over this environment by PYTHONPATH."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients import figures
from tests.clients.answers import Question
from tests.conftest import PROJECT, shared_folder

CLIENTS = Path(__file__).resolve().parents[2] / ".clients"

RunClient = Callable[..., Any]


@pytest.fixture(scope="session", autouse=True)
def written_figures() -> Iterator[None]:
    """Write what the tests noted to figures.json, if the environment asks for it."""
    yield
    figures.write()


@pytest.fixture(scope="session")
def run_client(tmp_path_factory: pytest.TempPathFactory) -> RunClient:
    """Return the function `run_client(name, script, *arguments, **environ)`.

    It runs the Python text `script` in an empty folder, with the client `name` (a file `tests/clients/<name>.lock`)
    first on the path, or, if `name` is "", in this environment as it is. `sys.argv[1:]` is `arguments`; `environ` is
    added to the environment. With `alone` only the client and the standard library are on the path. It returns
    the last line that the script printed, read as JSON. It skips the test where
    `make clients` has not run, and fails it if the script fails. With `kept` the program is asked only where its lock or
    what it is asked changed (answers.py); such a test is slow by hand, since `make test` installs no clients."""

    def run(
        name: str, script: str, *arguments: str | Path, alone: bool = False, kept: bool = False, **environ: str
    ) -> Any:
        if kept:
            locks = [Path(__file__).with_name(f"{name}.lock"), PROJECT / "requirements.lock"]
            places = [tmp_path_factory.getbasetemp(), shared_folder(), Path(sys.prefix)]
            texts = [lock.read_text() for lock in locks]
            question = Question(name, texts, script, [*map(str, arguments)], environ, places)
            answer = question.kept()
            if answer is None:
                answer = run(name, script, *arguments, alone=alone, **environ)
                question.keep(answer)
            return answer
        if name and not (CLIENTS / name / "installed").exists():
            pytest.skip(f"no client {name}: run `make clients`")
        folder = tmp_path_factory.mktemp("client")
        command = [sys.executable, *(["-S"] if alone else []), "-P", "-c", script, *map(str, arguments)]
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "USE_TORCH_XLA": "0",
            "OMP_NUM_THREADS": "1",  # so small a model waits for threads
            **({"PYTHONPATH": str(CLIENTS / name)} if name else {}),
            **environ,
        }
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run
