"""What outside programs answered, kept with their locks: tests/clients/answers/<client>.json.

A kept answer stands for the program only while its lock, the script and all that it reads are to the byte what they were; else
the program is asked. TRNFLOW_CLIENTS=live asks always, as `make test-nightly` does; TRNFLOW_CLIENTS=keep asks always, and keeps.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("answers")
HOW = "TRNFLOW_CLIENTS"
LIVE, KEEP = "live", "keep"


class Question:
    """What a program is asked. Paths below `places`, which differ between machines and runs, count by what they hold.

    locks: texts by which the program and the libraries around it are locked.
    """

    def __init__(
        self, client: str, locks: list[str], script: str, arguments: list[str], environ: dict[str, str],
        places: Iterable[Path],
    ):  # fmt: skip
        self._file = FOLDER / f"{client}.json"
        self._path = re.compile(f"({'|'.join(re.escape(str(place)) for place in places)})[^\"'\\s,:]*")
        self._paths: list[str] = []
        given = [locks, script, [self._content(argument) for argument in arguments], sorted(environ.items())]
        self._digest = hashlib.sha256(json.dumps(given).encode()).hexdigest()

    def kept(self) -> Any:
        """Return the kept answer, or None where the program is to be asked."""
        text = None if os.environ.get(HOW) in (LIVE, KEEP) else self._answers().get(self._digest)
        return None if text is None else json.loads(re.sub(r"<path (\d+)>", lambda at: self._paths[int(at[1])], text))

    def keep(self, answer: Any) -> None:
        """Keep an answer, if the environment asks for it."""
        if os.environ.get(HOW) != KEEP:
            return
        text = json.dumps(answer)
        for number, path in sorted(enumerate(self._paths), key=lambda each: -len(each[1])):
            text = text.replace(path, f"<path {number}>")
        FOLDER.mkdir(exist_ok=True)
        self._file.write_text(json.dumps(self._answers() | {self._digest: text}, indent=0, sort_keys=True) + "\n")

    def _answers(self) -> dict[str, str]:
        return dict(json.loads(self._file.read_text())) if self._file.exists() else {}

    def _content(self, text: str) -> str:
        """Return a text in which a digest of what it holds stands for each path."""
        return self._path.sub(lambda found: self._digest_of(found[0]), text)

    def _digest_of(self, path: str) -> str:
        if path not in self._paths:
            self._paths.append(path)
        place = Path(path)
        files = sorted(file for file in [place, *place.rglob("*")] if file.is_file())
        parts = [f"{file.relative_to(place)}:{self._file_digest(file)}" for file in files]
        return f"<{len(parts)} files {hashlib.sha256(' '.join(parts).encode()).hexdigest()}>"

    def _file_digest(self, file: Path) -> str:
        data = file.read_bytes()
        if file.suffix in (".json", ".jsonl"):
            data = self._content(data.decode()).encode()
        return hashlib.sha256(data).hexdigest()
