"""Ask which bytes a URL or hub name means now, and keep the answers in `<home>/resolved.json`."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trnflow.tasks.artifact import Json, Source
from trnflow.tasks.config import StageConfig
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.keys.hash_cache import Memo
from trnflow.tasks.sources.download_cache import DownloadCache
from trnflow.tasks.sources.paths import Folders
from trnflow.tasks.system.private_files import is_lookup_name, lookup_name, make_home
from trnflow.tasks.system.redaction import hide_secrets


class Answers:
    """The sources that were found. Runs that share it, such as a sweep's trials, ask each source once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sources: dict[tuple[Any, str], Source] = {}

    def once(self, question: tuple[Any, str], ask: Callable[[], Source]) -> Source:
        """Return the answer to a question, asked by the first caller; others wait for it."""
        with self._lock:
            if question not in self._sources:
                self._sources[question] = ask()
            return self._sources[question]


class Resolver:
    """The caches of this machine, and whether the network may be asked. folders: {setting: folder}."""

    def __init__(
        self,
        home: Path,
        *,
        offline: bool = False,
        memo: Memo | None = None,
        folders: Folders | None = None,
        answers: Answers | None = None,
    ) -> None:
        self.home = home
        self.offline = offline
        self.memo = memo or Memo(home / "memo.db")
        self._folders = folders or {}
        self._answers = answers or Answers()

    def ask_once(self, find: Callable[[Any, Resolver], Source], config: StageConfig) -> Source:
        """Return `find(config, self)`, asked once for equal configs: what a plan has checked is what its run reads."""
        return self._answers.once((find, config.model_dump_json()), lambda: find(config, self))

    def folder(self, setting: str) -> Path:
        """Return the folder to which a relative path of a setting is joined."""
        return self._folders.get(setting) or Path.cwd()

    def downloads(self) -> DownloadCache:
        """Return the cache of downloads; its folder is created."""
        make_home(self.home)
        folder = self.home / "cache" / "data"
        folder.mkdir(parents=True, exist_ok=True)
        return DownloadCache(folder, self.memo)

    def lookup_name(self, text: str) -> str:
        """Return the HMAC of a text under the home's secret."""
        return lookup_name(self.home, text)

    def ask_or_recall(self, name: str, ask: Callable[[], Json]) -> tuple[Json, str]:
        """Return (answer, note): `ask()`; offline the last answer, with a note. Raises ConfigError offline without one.

        name: such as `hub/datasets/dair-ai/emotion@main`.
        """
        # the name may be a URL with credentials: the file holds HMACs alone
        answers = self.home / "resolved.json"
        known: dict[str, Json] = {}
        with contextlib.suppress(FileNotFoundError, ValueError, TypeError, RecursionError):
            known = dict(json.loads(answers.read_bytes()))  # a damaged file costs asking again
        if self.offline:
            asked = name if name in known or not known else self.lookup_name(name)  # earlier versions stored the name
            if asked not in known:
                raise ConfigError(
                    f"{hide_secrets(name.removeprefix('url/'))} was never resolved on this machine, and this command does not "
                    "ask the network",
                    "run it once while online (`trnflow preview` is enough), or point the recipe at local files "
                    "(data.source=..., model.source=...)",
                )
            return known[asked], "last resolution"
        answer = ask()
        asked = self.lookup_name(name)
        if known.get(asked) != answer or not all(map(is_lookup_name, known)):
            named = {
                question if is_lookup_name(question) else self.lookup_name(question): known[question]
                for question in known
            }
            aside = answers.with_name(f"{answers.name}.{os.getpid()}")
            aside.write_text(json.dumps(named | {asked: answer}, indent=1, sort_keys=True))
            aside.replace(answers)
        return answer, ""
