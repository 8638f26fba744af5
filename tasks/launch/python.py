"""Command lines of Python processes that import the same code as this process."""

from __future__ import annotations

import sys
from pathlib import Path

import trnflow

_BOOT = (
    "import sys, importlib; root, entry = sys.argv[1:3]; root in sys.path or sys.path.insert(0, root); "
    "module, _, name = entry.partition(':'); getattr(importlib.import_module(module), name)(*sys.argv[3:])"
)

# Keeps numpy, scipy and pyarrow from starting threads on import: a process with threads can't be forked safely.
WITHOUT_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}


def python(entry: str, *arguments: str) -> list[str]:
    """Return the command line that calls `entry` ("module:function") with strings."""
    assert trnflow.__file__
    # not resolved: in a wheel the link's target would hide a user's own `tasks`
    folder = Path(trnflow.__file__).absolute().parents[1]
    # -P: files of the working folder are not imported
    return [sys.executable, "-P", "-c", _BOOT, str(folder), entry, *arguments]
