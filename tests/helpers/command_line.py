"""trnflow as a user runs it, for tests: a process in a folder, or the same commands in this process."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from s3fs import S3FileSystem

from tests.measuring import once_a_session
from trnflow.tasks.store import Store
from trnflow.tasks.system.private_files import make_home

DATA = ("pack_chunks", "--direct", "tracking.enabled=false")
"""The arguments after `run RECIPE --until` that run the data stages alone."""

RECIPE = (
    "extends: demo\nname: mine\ndata: {source: rows, name: null, text: text, label: label}\n"
    "tokenize: {max_length: 64, train: {vocab_size: 200}}\npack: {chunk_length: 64}\n"
)

COMPUTE_KEYS = {"job", "plan", "prepare", "retrain", "run", "sweep"}
"""Commands that compute the keys of stages."""

FILL = """
import sys
from pathlib import Path

from trnflow.flows.finetune import FUNCTIONS
from trnflow.tasks.keys.hash_cache import Memo
from trnflow.tasks.keys.key_document import stage_closure
from trnflow.tasks.stage import stage_of

memo = Memo(Path(sys.argv[1]))
for function in FUNCTIONS:
    stage_closure(stage_of(function), memo)
memo.save()
"""
"""Fills the hash cache of a file."""


class Shell:
    """Runs `trnflow` in a folder, without the caller's variables of trnflow and Prefect, and that which MLflow's client sets.

    warm: whether a new home begins with the hash cache of this session, which also makes the home."""

    warm = True

    def __init__(self, folder: Path, *program: str) -> None:
        """program: what begins the command line, if not `python -m trnflow` of this environment."""
        self.folder, self.program = folder, program or (sys.executable, "-m", "trnflow")
        self.environ = {
            name: value for name, value in os.environ.items() if not name.startswith(("TRNFLOW", "PREFECT", "MLFLOW"))
        }
        self._before = dict(self.environ)

    def __call__(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        self._prepare(*arguments, **environ)
        return subprocess.run(
            [*self.program, *arguments], cwd=self.folder, env=self.environ | environ, capture_output=True, text=True
        )

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[str]:
        """Start a command in a process. options: of `Popen`."""
        self._prepare(*arguments)
        command = [*self.program, *arguments]
        return subprocess.Popen(command, cwd=self.folder, env=self.environ, text=True, **options)

    def _prepare(self, *arguments: str, **environ: str) -> None:
        """Give the home of a command that computes keys this session's hash cache, unless it has one."""
        named = (self.environ | environ).get("TRNFLOW_HOME")
        home = Path(named) if named else self.folder / ".trnflow"
        elsewhere = any((folder / ".trnflow").exists() for folder in self.folder.parents) and not home.exists()
        if self.warm and {*arguments[:1]} & COMPUTE_KEYS and home.is_absolute() and not elsewhere:
            with contextlib.suppress(OSError):
                make_home(home)
                if not (home / "memo.db").exists():
                    (home / "memo.db").write_bytes(hash_cache())

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


@cache
def hash_cache() -> bytes:
    """The hash cache of a home in which the keys of all stages were computed once: a second of processor time."""
    with tempfile.TemporaryDirectory() as home:
        file = Path(home) / "memo.db"
        # not in this process, which a test may have changed
        with once_a_session():
            subprocess.run([sys.executable, "-c", FILL, str(file)], cwd=Path(__file__).parents[2], check=True)
        return file.read_bytes()


def opened(folder: Path) -> tuple[InProcessShell, Store]:
    """A shell in a folder, and the store of its home, made."""
    store = Store(str(folder / ".trnflow/store"), folder / ".trnflow")
    store.prepare()
    return InProcessShell(folder), store


class InProcessShell(Shell):
    """Its variables are those of this process, but for what was changed in `environ`."""

    def __call__(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        from trnflow.flows.cli.main import main

        self._prepare(*arguments, **environ)
        out, err, elsewhere = io.StringIO(), io.StringIO(), False
        handler = signal.getsignal(signal.SIGTERM)
        try:
            with (
                # what a command sets for its process, such as HF_HUB_OFFLINE, is not for other tests
                mock.patch.dict(os.environ), pytest.MonkeyPatch.context() as patch, contextlib.chdir(self.folder),
                contextlib.redirect_stdout(out), contextlib.redirect_stderr(err),
            ):  # fmt: skip
                for name in set(os.environ) - set(self.environ):
                    patch.delenv(name)
                changed = {**dict(self.environ.items() - self._before.items()), **environ}
                for name, value in changed.items():
                    patch.setenv(name, value)
                if elsewhere := any(name.startswith("AWS_") for name in changed):
                    # those of the session's server: their constructor takes neither address nor key
                    S3FileSystem.clear_instance_cache()
                code = main(list(arguments))
        except SystemExit as stopped:
            code = int(str(stopped.code))
        finally:
            signal.signal(signal.SIGTERM, handler)
            if elsewhere:
                S3FileSystem.clear_instance_cache()
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
