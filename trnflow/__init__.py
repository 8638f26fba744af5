"""The package trnflow: `flows` and `tasks` lie beside this folder and are linked into it.

An installed wheel holds one top-level package, so that a user's own folders `flows` and `tasks` stay importable.
"""

import os

for _part in ("flows", "tasks"):
    if not os.path.isdir(os.path.join(os.path.dirname(__file__), _part)):
        raise ImportError(
            f"{os.path.dirname(__file__)} has lost its symbolic link {_part} -> ../{_part}: "
            "clone the repository again, or copy it with `cp -a`, which keeps links"
        )
