"""The checks of `trnflow doctor`: what runs need on this machine, and how to fix what is missing."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from trnflow.flows.services.prefect_address import configured_url
from trnflow.tasks.errors import TrnflowError
from trnflow.tasks.store import Store
from trnflow.tasks.store.location import default_root
from trnflow.tasks.system.gpus import installed_torch
from trnflow.tasks.system.memory import machine_memory
from trnflow.tasks.system.optional_packages import torch_xla_lacks
from trnflow.tasks.system.private_files import is_private
from trnflow.tasks.system.redaction import hide_secrets, scrub

NEEDED = ("prefect", "torch", "transformers", "datasets", "fsspec", "mlflow")


class Check(NamedTuple):
    """The result of one check. fix: what the user can do."""

    ok: bool
    name: str
    found: str
    fix: str = ""

    def __str__(self) -> str:
        fix = f"  fix: {self.fix}" if not self.ok and self.fix else ""
        return f"{'ok ' if self.ok else 'BAD'}  {self.name:<14} {self.found}{fix}"


def checkup(home: Path) -> list[Check]:
    """Run all checks of this machine. Creates the store if there is none."""
    return [
        _python(),
        *map(_package, NEEDED),
        _environment(),
        _cuda(),
        _memory(),
        _store(home),
        _home(home),
        _disk(home),
        _devices(),
        _prefect(),
    ]


def _python() -> Check:
    fine = (3, 11) <= sys.version_info[:2] <= (3, 12)
    return Check(fine, "python", sys.version.split()[0], "use Python 3.11 or 3.12")


def _package(name: str) -> Check:
    try:
        return Check(True, name, version(name))
    except PackageNotFoundError:
        return Check(False, name, "not installed", "make setup")


def _environment() -> Check:
    """Say which of the two environments this is; torch_xla beside a torch that it can't load is bad."""
    lacks = torch_xla_lacks()
    if not lacks:
        return Check(
            True, "environment", f"torch-xla {version('torch-xla')}: engines xla and native, StableHLO exports"
        )
    if find_spec("torch_xla"):
        fix = "pip uninstall torch-xla, or `make setup` in a folder of its own"
        return Check(False, "environment", f"two are mixed: {lacks}", fix)
    return Check(True, "environment", "native: no torch-xla, so engine native alone, and no StableHLO exports")


def _cuda() -> Check:
    """Name the CUDA that PyTorch was built with, and the GPUs that it has code for."""
    torch = installed_torch()
    build = f"{torch.cuda}, with code for {' '.join(torch.architectures)}" if torch.cuda else "none"
    return Check(True, "torch's cuda", build)


def _memory() -> Check:
    size = machine_memory() / 1e9
    return Check(size >= 4, "memory", f"{size:.0f} GB, {os.cpu_count()} cores", "training needs 4 GB at least")


def _store(home: Path) -> Check:
    root = default_root(home)
    try:
        Store(root, home).prepare()
    except TrnflowError as error:
        return Check(False, "store", scrub(error.message), scrub(error.fix))
    return Check(True, "store", f"{hide_secrets(root)}, creates exclusively")


def _home(home: Path) -> Check:
    """Check that no other user can read the home."""
    if not home.exists():
        return Check(True, "home", f"{home}, made with mode 0700 by the first run")
    # the home holds logs, caches and a secret
    mode = stat.S_IMODE(home.stat().st_mode)
    private = is_private(home)
    others = "" if private else ": other users can read it"
    return Check(private, "home", f"{home}, mode {mode:04o}{others}", f"chmod 700 {home}")


def _disk(home: Path) -> Check:
    free = shutil.disk_usage(home if home.exists() else Path.cwd()).free / 1e9
    return Check(free >= 5, "disk", f"{free:.0f} GB free", "free some space, or set TRNFLOW_STORE")


def _devices() -> Check:
    """List the accelerators; a machine without them passes, too."""
    neuron = sorted(Path("/dev").glob("neuron[0-9]*"))
    cuda = sorted(Path("/dev").glob("nvidia[0-9]*"))
    counts = [f"{len(kind)} {name}" for kind, name in ((neuron, "Neuron"), (cuda, "CUDA")) if kind]
    return Check(True, "accelerators", ", ".join(counts) or "none: training runs on the processor")


def _prefect() -> Check:
    url = configured_url()
    return Check(True, "prefect api", hide_secrets(url) if url else "a local server, started when a run needs it")
