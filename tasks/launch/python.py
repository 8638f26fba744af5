"""The command line of a further process that runs this very code, wherever it was imported from."""

from __future__ import annotations

import sys
from pathlib import Path

import tasks

_BOOT = (
    "import sys, importlib; root, entry = sys.argv[1:3]; root in sys.path or sys.path.insert(0, root); "
    "module, _, name = entry.partition(':'); getattr(importlib.import_module(module), name)(*sys.argv[3:])"
)


def python(entry: str, *arguments: str) -> list[str]:
    """`entry` is "module:function" of a first-party package; the arguments are its strings.

    -P: a file in the working folder must not shadow a module; first-party code comes from where this process has it.
    """
    assert tasks.__file__
    return [sys.executable, "-P", "-c", _BOOT, str(Path(tasks.__file__).resolve().parents[1]), entry, *arguments]
