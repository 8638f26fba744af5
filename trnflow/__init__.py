"""The package trnflow: `flows` and `tasks` lie beside this folder and are linked into it.

An installed wheel holds one top-level package, so that a user's own folders `flows` and `tasks` stay importable.
`import trnflow as tr` gives the names of `__all__` (docs/python.md), which are loaded when they are first used; their types
are in `__init__.pyi`.
"""

import os
from importlib import import_module
from typing import Any

__all__ = ["Model", "Plan", "Recipe", "Report", "Run", "Stage", "diff", "model", "recipe", "runs"]

for _part in ("flows", "tasks"):
    if not os.path.isdir(os.path.join(os.path.dirname(__file__), _part)):
        raise ImportError(
            f"{os.path.dirname(__file__)} has lost its symbolic link {_part} -> ../{_part}: "
            "clone the repository again, or copy it with `cp -a`, which keeps links"
        )


def __getattr__(name: str) -> Any:
    for module in ("recipe", "run") if name in __all__ else ():
        found = getattr(import_module(f"trnflow.flows.python.{module}"), name, None)
        if found is not None:
            return globals().setdefault(name, found)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
