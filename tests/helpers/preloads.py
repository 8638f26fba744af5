"""Libraries that are loaded before the C library, and stand in for some of its functions in other processes."""

from __future__ import annotations

import subprocess
from pathlib import Path


def built(source: Path, folder: Path) -> str:
    """Compile a library into a folder, and return its path, the value of LD_PRELOAD."""
    library = folder / source.with_suffix(".so").name
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return str(library)
