"""What one would use instead of the store, installed in an environment of its own: dvc and Hamilton.

Versions are pinned; without an index they are missing, and the benchmark says so and goes on.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.bench.clock import Spent, spent

VERSIONS = ("dvc==3.67.1", "sf-hamilton==1.90.0")
QUIET = {"DVC_NO_ANALYTICS": "1", "HAMILTON_TELEMETRY_ENABLED": "false", "DVC_TEST": "true"}
NODES = Path(__file__).with_name("nine_nodes.py")

REPRODUCE = """
import json, time
from dvc.repo import Repo
repo, seconds = Repo("."), []
for _ in range({rounds}):
    begun = time.perf_counter()
    assert repo.reproduce() == []
    seconds.append(time.perf_counter() - begun)
print(json.dumps(seconds))
"""


class Peers:
    """folder: where their environment and their projects are made."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = os.environ | QUIET | {"DVC_SITE_CACHE_DIR": str(folder / "site")}
        self._python = folder / "peers/bin/python"

    def install(self) -> str:
        """Why they can't be measured, or nothing."""
        uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
        try:
            if not self._python.exists():
                _call(uv, "venv", "-q", "--python", sys.executable, str(self.folder / "peers"))
            _call(uv, "pip", "install", "-q", "--python", str(self._python), *VERSIONS)
        except (OSError, subprocess.CalledProcessError) as error:
            said = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
            return f"{', '.join(VERSIONS)} can't be installed: {said[-1] if said else error}"
        return ""

    def dvc(self, project: Path, *arguments: str) -> Spent:
        return spent([str(self._python), "-m", "dvc", *arguments], cwd=project, env=self.environ)

    def project(self, name: str) -> Path:
        """A new dvc project."""
        folder = self.folder / name
        folder.mkdir()
        self.dvc(folder, "init", "--no-scm", "-q")
        return folder

    def nine_stages(self) -> Path:
        """A dvc project of nine stages, each run once."""
        folder = self.project("nine")
        (folder / "0.txt").write_text("rows")
        stages = {
            f"stage{n}": {"cmd": f"cp {n}.txt {n + 1}.txt", "deps": [f"{n}.txt"], "outs": [f"{n + 1}.txt"]}
            for n in range(9)
        }
        (folder / "dvc.yaml").write_text(json.dumps({"stages": stages}))  # JSON is YAML
        self.dvc(folder, "repro", "-q")
        return folder

    def reproduce(self, project: Path, rounds: int) -> list[float]:
        """Seconds of each no-op `repro` in one process."""
        return self._seconds("-c", REPRODUCE.format(rounds=rounds), cwd=project)

    def hamilton(self, rounds: int) -> list[float]:
        """Seconds of each cached execution in one process."""
        return self._seconds(str(NODES), str(self.folder / "hamilton"), str(rounds), cwd=self.folder)

    def hamilton_cold(self) -> Spent:
        command = [str(self._python), str(NODES), str(self.folder / "hamilton"), "1"]
        return spent(command, cwd=self.folder, env=self.environ)

    def _seconds(self, *arguments: str, cwd: Path) -> list[float]:
        command = [str(self._python), *arguments]
        done = subprocess.run(command, cwd=cwd, env=self.environ, capture_output=True, text=True, check=True)
        return [float(value) for value in json.loads(done.stdout.splitlines()[-1])]


def _call(*command: str) -> None:
    subprocess.run(command, capture_output=True, text=True, check=True)
