"""Run a recipe of one commit in five situations, and collect what can be seen of each: fresh, all hits, a setting changed,
retrain, killed and resumed. One home serves all five, in this order."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.golden.normal import normal
from tests.golden.pages import mlflow_runs, prefect_pages

MARK = "TRNFLOW_GOLDEN"
BOOT = "import sys; from {}flows.cli.main import main; sys.exit(main())"


class Home:
    """A home for one recipe, and the commands of one commit.

    Args:
        checkout: The commit's worktree.
        folder: An empty folder.
        recipe: The recipe's name.
        prefect: Whether runs go through Prefect.
        keys: Whether facts hold keys.
    """

    def __init__(self, checkout: Path, folder: Path, recipe: str, *, prefect: bool, keys: bool) -> None:
        self.checkout, self.recipe, self.prefect, self.keys = checkout, recipe, prefect, keys
        self.path, self.mark = folder / "home", uuid.uuid4().hex
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("PREFECT", "TRNFLOW", "MLFLOW"))
        }
        self.environ = kept | {
            "TRNFLOW_HOME": str(self.path), "PYTHONPATH": str(checkout), "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "PREFECT_HOME": str(folder / "prefect"),
        }  # fmt: skip
        self.folders = {self.path: "<home>", folder: "<folder>", checkout: "<checkout>"}
        self.seen: set[str] = set()

    def start(self, *arguments: str, marked: bool = True) -> subprocess.Popen[str]:
        package = "trnflow." if (self.checkout / "trnflow").exists() else ""  # the package's name before step 1
        environ = self.environ | ({MARK: self.mark} if marked else {})
        command = [sys.executable, "-P", "-c", BOOT.format(package), *arguments]
        return subprocess.Popen(
            command, cwd=self.path.parent, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def json(self, *arguments: str) -> Any:
        """Return what a command prints with --json; it must succeed."""
        process = self.start(*arguments, "--json")
        out, errors = process.communicate()
        if process.returncode:
            raise RuntimeError(
                f"trnflow {' '.join(arguments)} ended with {process.returncode}: {out[-500:]}{errors[-2000:]}"
            )
        return json.loads(out)

    def execute(self, command: str, *overrides: str) -> Any:
        return self.json(command, self.recipe, *self.direct, *overrides)

    @property
    def direct(self) -> tuple[str, ...]:
        return () if self.prefect else ("--direct",)

    def plan(self, *overrides: str) -> Any:
        return self.json("plan", self.recipe, *overrides)

    def processes(self) -> Iterator[int]:
        """Yield the ids of the processes that runs of this home have started, and that still run."""
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                with contextlib.suppress(OSError):
                    if f"{MARK}={self.mark}".encode() in (folder / "environ").read_bytes():
                        yield int(folder.name)

    def kill_in_training(self, *overrides: str) -> None:
        """Run, and kill every process of the run when the training has saved its first state."""
        process = self.start("run", self.recipe, *self.direct, *overrides)
        states = self.path / "store/partial"
        before = set(states.glob("*/step-*/COMMIT"))
        wait(lambda: process.poll() is not None or set(states.glob("*/step-*/COMMIT")) - before, 1200, 0.02)
        if process.poll() is not None:
            raise RuntimeError(f"the run ended before it saved a state: {process.communicate()[1][-2000:]}")
        while left := list(self.processes()):
            for one in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one, signal.SIGKILL)
            process.poll()  # a zombie would keep its entry, not its environment
            time.sleep(0.2)
        process.communicate()

    def facts(self, **said: Any) -> dict[str, Any]:
        """Return what this situation has added: what commands printed, run records, MLflow's runs, Prefect's pages."""
        wait(lambda: not list(self.processes()), 300, 0.5)  # MLflow's follower ends when it has sent all
        new = sorted(path for path in (self.path / "store/runs").glob("*.json") if path.name not in self.seen)
        self.seen |= {path.name for path in new}
        records = [json.loads(path.read_text()) for path in new]
        stages = [stage for record in records for stage in record["stages"]]
        found = said | {
            "records": records,
            "digests": [[one["stage"], one["artifact"]] for one in stages],
            "mlflow": mlflow_runs(self.path),
        }
        if self.keys:
            found["keys"] = [[one["stage"], one["key"]] for one in stages]
        if self.prefect:
            found["prefect"] = prefect_pages(self.path)
        return dict(normal(found, self.folders, keys=self.keys))


def wait(ready: Callable[[], Any], seconds: float, pause: float) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s in vain")
        time.sleep(pause)


def fresh(home: Home) -> dict[str, Any]:
    return home.facts(before=home.plan(), run=home.execute("run"))


def hits(home: Home) -> dict[str, Any]:
    return home.facts(before=home.plan(), run=home.execute("run"), shown=home.json("show", home.recipe))


def changed(home: Home) -> dict[str, Any]:
    override = "train.learning_rate=2e-3"
    why = home.json("explain", home.recipe, "train", override)
    return home.facts(before=home.plan(override), explain=why, run=home.execute("run", override))


def retrained(home: Home) -> dict[str, Any]:
    first, again = home.execute("retrain"), home.execute("retrain")
    other = home.execute("retrain", "train.learning_rate=2e-3")
    return home.facts(first=first, again=again, other=other, champions=home.json("champions", home.recipe))


def killed(home: Home) -> dict[str, Any]:
    home.kill_in_training("train.seed=1")
    return home.facts(before=home.plan("train.seed=1"), run=home.execute("run", "train.seed=1"))


SITUATIONS = {"fresh": fresh, "hits": hits, "changed": changed, "retrain": retrained, "killed": killed}


def collect(home: Home, names: list[str]) -> dict[str, Any]:
    """Return {situation: its facts}. Later situations need the results of `fresh`, which always runs."""
    if home.prefect:
        home.path.parent.mkdir(parents=True, exist_ok=True)
        home.start("up", marked=False).communicate()  # unmarked: the server outlives the kill
    try:
        return {name: SITUATIONS[name](home) for name in SITUATIONS if name in {"fresh", *names}}
    finally:
        if home.prefect:
            home.start("down", marked=False).communicate()
