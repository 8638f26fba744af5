"""How sources outside the store are pinned to exact bytes: digests of local files, commits of hub repositories.

`run` resolves a hub's moving branch anew; `plan` and offline runs use the last resolution and say so in the note.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from tasks.artifact import Json
from tasks.errors import ConfigError
from tasks.memo import Memo


class Resolver:
    """home: the project's local state, `.trnflow`; offline: never ask the network."""

    def __init__(self, home: Path, *, offline: bool = False, memo: Memo | None = None) -> None:
        self.home = home
        self.offline = offline
        self.memo = memo or Memo(home / "memo.db")

    def cache(self, name: str) -> Path:
        """A folder for downloads, made on demand."""
        folder = self.home / "cache" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def remembered(self, name: str, ask: Callable[[], Json]) -> tuple[Json, str]:
        """(what `ask` answers, a note). `ask` goes to the network; offline, the last answer serves and the note says so.

        name: of the question, such as `hub/dair-ai/emotion@main`. ConfigError when offline and never asked before.
        """
        answers = self.home / "resolved.json"
        known = json.loads(answers.read_text()) if answers.exists() else {}
        if self.offline:
            if name not in known:
                raise ConfigError(
                    f"{name} was never resolved on this machine, and this command does not ask the network",
                    "run `trnflow run` once while online, or point the recipe at local files "
                    "(data.source=..., model.source=...)",
                )
            return known[name], "last resolution"
        answer = ask()
        if known.get(name) != answer:
            known[name] = answer
            answers.parent.mkdir(parents=True, exist_ok=True)
            aside = answers.with_name(f"{answers.name}.{os.getpid()}")
            aside.write_text(json.dumps(known, indent=1, sort_keys=True))
            aside.replace(answers)
        return answer, ""
