"""Python environments that lack packages, made of this one's files."""

from __future__ import annotations

import sysconfig
import venv
from pathlib import Path


def environment_without(folder: Path, *packages: str) -> Path:
    """Make an environment in `folder` with all packages of this one but these, as links; return its Python."""
    venv.create(folder, with_pip=False)
    python = folder / "bin/python"
    mine = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith((*packages, "__pycache__")):
            (mine / entry.name).symlink_to(entry)
    return python
