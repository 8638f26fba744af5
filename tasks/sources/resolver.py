"""Find out over the network which exact bytes a URL or hub name stands for, and remember the answers for offline use.

`trnflow run` asks which commit a hub branch is at; `trnflow plan` and offline runs use the last answer, and a note
tells the user. The answers are in `<home>/resolved.json` (the home is the folder of local state, TRNFLOW_HOME or
`.trnflow`), each under the HMAC of its question, because a question may be a URL with credentials.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from trnflow.tasks.artifact import Json
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.keys.hash_cache import Memo
from trnflow.tasks.sources.download_cache import DownloadCache
from trnflow.tasks.sources.paths import Folders
from trnflow.tasks.system.private_files import is_lookup_name, lookup_name, make_home
from trnflow.tasks.system.redaction import hide


class Resolver:
    """The tools for resolving a source (finding the exact bytes that a path, URL or hub name stands for): the caches of
    this machine, the answers that are remembered for offline use, and the folders to which relative paths are joined.

    Args:
        home: the folder of the project's local state, TRNFLOW_HOME or `.trnflow`.
        offline: never ask the network.
        memo: the hash cache, which remembers the digests of files that have not changed.
        folders: {dotted setting: folder to which a relative path in its value is joined}; for all other settings the
            working directory is used.
    """

    def __init__(
        self, home: Path, *, offline: bool = False, memo: Memo | None = None, folders: Folders | None = None
    ) -> None:
        self.home = home
        self.offline = offline
        self.memo = memo or Memo(home / "memo.db")
        self._folders = folders or {}

    def folder(self, setting: str) -> Path:
        """Return the folder to which a relative path in a setting's value is joined: that of the recipe file in which
        the setting was written, or else the working directory. setting: the setting's dotted name, such as
        `data.source`."""
        return self._folders.get(setting) or Path.cwd()

    def downloads(self) -> DownloadCache:
        """Return the cache of downloaded and unpacked files, `<home>/cache/data` (the home is the folder of local
        state). The folder is created if it does not exist."""
        make_home(self.home)
        folder = self.home / "cache" / "data"
        folder.mkdir(parents=True, exist_ok=True)
        return DownloadCache(folder, self.memo)

    def lookup_name(self, text: str) -> str:
        """Return the HMAC of a text such as a URL, 64 hexadecimal digits, under a secret of the home (the folder of
        local state). Files and databases in the home use the HMAC as a name for a cached look-up in place of the text,
        which may contain credentials."""
        return lookup_name(self.home, text)

    def remembered(self, name: str, ask: Callable[[], Json]) -> tuple[Json, str]:
        """Ask the network a question, save the answer in `<home>/resolved.json` (the home is the folder of local state)
        and return it; offline, return the answer that was saved last, without asking.

        name: identifies the question, such as `hub/datasets/dair-ai/emotion@main`; ask: asks the network and returns
        the answer, a JSON value. Returns (answer, note); the note is "last resolution" if the answer was a saved one,
        else "". Raises ConfigError offline if no answer was saved."""
        answers = self.home / "resolved.json"
        known = json.loads(answers.read_text()) if answers.exists() else {}
        if self.offline:
            asked = name if name in known or not known else self.lookup_name(name)  # earlier versions stored the name
            if asked not in known:
                raise ConfigError(
                    f"{hide(name.removeprefix('url/'))} was never resolved on this machine, and this command does not ask "
                    "the network",
                    "run it once while online (`trnflow preview` is enough), or point the recipe at local files "
                    "(data.source=..., model.source=...)",
                )
            return known[asked], "last resolution"
        answer = ask()
        asked = self.lookup_name(name)
        if known.get(asked) != answer or not all(map(is_lookup_name, known)):
            named = {one if is_lookup_name(one) else self.lookup_name(one): known[one] for one in known}
            aside = answers.with_name(f"{answers.name}.{os.getpid()}")
            aside.write_text(json.dumps(named | {asked: answer}, indent=1, sort_keys=True))
            aside.replace(answers)
        return answer, ""
