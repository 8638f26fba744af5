"""What this machine has, and what is amiss: one line a check, each with its fix."""

from __future__ import annotations

import os
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

from tasks.errors import TrnflowError
from tasks.store import Store

NEEDED = ("prefect", "torch", "torch-xla", "transformers", "datasets", "fsspec", "mlflow")


class Check(NamedTuple):
    ok: bool
    name: str
    found: str
    fix: str = ""

    def __str__(self) -> str:
        fix = f"  fix: {self.fix}" if not self.ok and self.fix else ""
        return f"{'ok ' if self.ok else 'BAD'}  {self.name:<14} {self.found}{fix}"


def checkup(home: Path) -> list[Check]:
    """All checks; none asks the network."""
    return [_python(), *_packages(), _memory(), _store(home), _disk(home), _devices(), _prefect()]


def _python() -> Check:
    fine = (3, 11) <= sys.version_info[:2] <= (3, 12)
    return Check(fine, "python", sys.version.split()[0], "use Python 3.11 or 3.12")


def _packages() -> list[Check]:
    return [_package(name) for name in NEEDED]


def _package(name: str) -> Check:
    try:
        return Check(True, name, version(name))
    except PackageNotFoundError:
        return Check(False, name, "not installed", "make setup")


def _memory() -> Check:
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return Check(size >= 4, "memory", f"{size:.0f} GB, {os.cpu_count()} cores", "training needs 4 GB at least")


def _store(home: Path) -> Check:
    root = os.environ.get("TRNFLOW_STORE") or str(home / "store")
    try:
        Store(root, home).prepare()
    except TrnflowError as error:
        return Check(False, "store", error.message, error.fix)
    return Check(True, "store", f"{root}, creates exclusively")


def _disk(home: Path) -> Check:
    free = shutil.disk_usage(home if home.exists() else Path.cwd()).free / 1e9
    return Check(free >= 5, "disk", f"{free:.0f} GB free", "free some space, or set TRNFLOW_STORE")


def _devices() -> Check:
    """What there is beside the processor; a machine without any is fine."""
    neuron = sorted(Path("/dev").glob("neuron[0-9]*"))
    cuda = sorted(Path("/dev").glob("nvidia[0-9]*"))
    found = [f"{len(kind)} {name}" for kind, name in ((neuron, "Neuron"), (cuda, "CUDA")) if kind]
    return Check(True, "accelerators", ", ".join(found) or "none: training runs on the processor")


def _prefect() -> Check:
    url = os.environ.get("PREFECT_API_URL", "")
    return Check(True, "prefect api", url or "a local server, started when a run needs it")
