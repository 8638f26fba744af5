"""The folder a stage works in, `<home>/work/<process>~<attempt>`: removed afterwards, or by the next run after a kill."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from tasks.store.process import lives_on, read_tag, this_process


@contextlib.contextmanager
def workplace(home: Path, attempt: str) -> Iterator[Path]:
    """A folder of this attempt's own. Those of dead processes go first; another machine's that shares `home` stay."""
    base = home / "work"
    base.mkdir(parents=True, exist_ok=True)
    for left in base.iterdir():
        tag, _, whose = left.name.partition("~")
        process = read_tag(tag)
        if process is None or (process.is_dead() and not lives_on(whose)):
            shutil.rmtree(left, ignore_errors=True)
    work = base / f"{this_process().tag}~{attempt}"
    work.mkdir()
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
