"""trnflow as a user runs it, for tests: a process in a folder, or the same commands in this process."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from trnflow.tasks.store import Store

DATA = ("pack_chunks", "--direct", "tracking.enabled=false")
"""The arguments after `run RECIPE --until` that run the data stages alone."""

RECIPE = (
    "extends: demo\nname: mine\ndata: {source: rows, name: null, text: text, label: label}\n"
    "tokenize: {max_length: 64, train: {vocab_size: 200}}\npack: {chunk_length: 64}\n"
)


class Shell:
    """Runs `trnflow` in a folder, without the caller's variables of trnflow and Prefect, and that which MLflow's client sets."""

    def __init__(self, folder: Path, *program: str) -> None:
        """program: what begins the command line, if not `python -m trnflow` of this environment."""
        self.folder, self.program = folder, program or (sys.executable, "-m", "trnflow")
        self.environ = {
            name: value for name, value in os.environ.items() if not name.startswith(("TRNFLOW", "PREFECT", "MLFLOW"))
        }
        self._before = dict(self.environ)

    def __call__(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.program, *arguments],
            cwd=self.folder,
            env=self.environ | environ,
            capture_output=True,
            text=True,
        )

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start a command in a process. options: of `Popen`."""
        command = [*self.program, *arguments]
        return subprocess.Popen(command, cwd=self.folder, env=self.environ, text=True, **options)

    def json(self, *arguments: str) -> Any:
        """The JSON document that a command prints; the command must succeed."""
        done = self(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def error(self, *arguments: str, code: int, **environ: str) -> str:
        """stderr of a command that must fail: with this exit code, a fix and no traceback."""
        done = self(*arguments, **environ)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        assert "fix:" in done.stderr
        return done.stderr


def opened(folder: Path) -> tuple[InProcessShell, Store]:
    """A shell in a folder, and the store of its home, made."""
    store = Store(str(folder / ".trnflow/store"), folder / ".trnflow")
    store.prepare()
    return InProcessShell(folder), store


class InProcessShell(Shell):
    """Its variables are those of this process, but for what was changed in `environ`."""

    def __call__(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        from trnflow.flows.cli.main import main

        out, err = io.StringIO(), io.StringIO()
        handler = signal.getsignal(signal.SIGTERM)
        try:
            with (
                # what a command sets for its process, such as HF_HUB_OFFLINE, is not for other tests
                mock.patch.dict(os.environ), pytest.MonkeyPatch.context() as patch, contextlib.chdir(self.folder),
                contextlib.redirect_stdout(out), contextlib.redirect_stderr(err),
            ):  # fmt: skip
                for name in set(os.environ) - set(self.environ):
                    patch.delenv(name)
                for name, value in {**dict(self.environ.items() - self._before.items()), **environ}.items():
                    patch.setenv(name, value)
                code = main(list(arguments))
        except SystemExit as stopped:
            code = int(str(stopped.code))
        finally:
            signal.signal(signal.SIGTERM, handler)
        return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def write_project(folder: Path) -> Path:
    """Write `rows/`, three splits of 40 labelled rows, and the recipe `mine.yaml` into a folder; return the folder."""
    (folder / "rows").mkdir(parents=True)
    for split in ("train", "validation", "test"):
        rows = (
            f'{{"text": "{split} {n} is {("good", "bad")[n % 2]}", "label": "{("pos", "neg")[n % 2]}"}}'
            for n in range(40)
        )
        (folder / "rows" / f"{split}.jsonl").write_text("\n".join(rows))
    (folder / "mine.yaml").write_text(RECIPE)
    return folder


def artifacts(shell: Shell, run: str) -> dict[str, str]:
    stages = json.loads((shell.folder / f".trnflow/store/runs/{run}.json").read_text())["stages"]
    return {stage["stage"]: stage["artifact"] for stage in stages}
