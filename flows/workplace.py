"""The folder a stage works in, `<home>/work/<process>~<attempt>`: removed afterwards, or by the next run after a kill."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

from tasks.errors import StoreError
from tasks.store import Store
from tasks.store.process import lives_on, read_tag, this_process


@contextlib.contextmanager
def workplace(home: Path, attempt: str) -> Iterator[Path]:
    """A folder of this attempt's own. A disk that fills up meanwhile is a StoreError."""
    clear(home / "work")
    work = workfolder(home, attempt)
    try:
        work.mkdir(parents=True)
        yield work
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise StoreError(
            f"the disk of {home} is full: {error}",
            "free some space, or move TRNFLOW_HOME or store.root to another disk; what is finished stays",
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def workfolder(home: Path, name: str) -> Path:
    """A folder of this process, not made yet; when the process is dead, the next run removes it."""
    return home / "work" / f"{this_process().tag}~{name}"


def data_folders(store: Store) -> list[Path]:
    """Folders of data, never of code, wherever the home and the store lie (it may be the project's own folder)."""
    root, home = Path(store.root.removeprefix("file://")), store.home
    return [home, home / "work", home / "cache", root, root / "blobs", root / "partial"]


def clean(store: Store) -> None:
    """Remove what killed runs left: folders of work, leases. Costs two listings when there is nothing."""
    clear(store.home / "work")
    store.sweep_leases()


def clear(base: Path) -> None:
    """Remove the folders of dead processes; those of another machine that shares the home stay."""
    for left in base.iterdir() if base.is_dir() else ():
        tag, _, attempt = left.name.partition("~")
        process = read_tag(tag)
        if process is None or (process.is_dead() and not lives_on(attempt)):
            shutil.rmtree(left, ignore_errors=True)
