"""Find the home: TRNFLOW_HOME, else the nearest `.trnflow` in or above the working directory, else a new one there."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from trnflow.tasks.errors import ConfigError, HomeRemoved
from trnflow.tasks.system.process import this_process

HOME_NAME = ".trnflow"


def workfolder(home: Path, name: str) -> Path:
    """Return the path of a folder for this process to work in, which need not exist."""
    return home / "work" / f"{this_process().tag}~{name}"


_temporary: set[Path] = set()


def temporary_folder() -> Path | None:
    """Create a folder for temporary files of this process and its children; None where there is no home to write in.

    If this process is killed, the next run of the home removes the folder."""
    home = home_folder()
    folder = workfolder(home, this_process().tag)  # so named, it stays while a stage of this process lives
    try:
        if not home.is_dir():
            return None
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    _temporary.add(folder)
    return folder


def remove_temporary_folders() -> None:
    for folder in _temporary:
        shutil.rmtree(folder, ignore_errors=True)


def home_folder() -> Path:
    """Return the home's path; nothing is created. Raises ConfigError for one that is not this user's alone."""
    named = os.environ.get("TRNFLOW_HOME")
    if named:
        return Path(named).expanduser().absolute()
    here = Path.cwd()
    if (here / HOME_NAME).exists():
        if not _is_own(here / HOME_NAME):
            raise _not_own(here / HOME_NAME)
        return here / HOME_NAME
    # commands trust the files of a home: none of another user's, or where everybody writes, is taken
    homes = (folder / HOME_NAME for folder in _above(here) if not _anybody_writes(folder))
    return next((home for home in homes if home.is_dir() and _is_own(home)), here / HOME_NAME)


def _above(here: Path) -> list[Path]:
    """Return the folders above `here`, the nearest first: those below $HOME if `here` is in it, else all."""
    try:
        user = Path.home().resolve()
    except RuntimeError:  # no $HOME, and the user id has no name
        return list(here.parents)
    return [folder for folder in here.parents if folder != user and folder not in user.parents]


def _is_own(home: Path) -> bool:
    return home.lstat().st_uid == home.stat().st_uid == os.geteuid() and not _anybody_writes(home)


def _not_own(home: Path) -> ConfigError:
    """Return the error about a home that `_is_own` refuses."""
    if home.lstat().st_uid == home.stat().st_uid == os.geteuid():
        return ConfigError(
            f"every user of this machine may write in {home}", f"`chmod o-w {home}`, or set TRNFLOW_HOME"
        )
    return ConfigError(f"{home} is another user's", "set TRNFLOW_HOME to a folder of your own")


@contextlib.contextmanager
def watched_home(home: Path) -> Iterator[Callable[[], HomeRemoved | None]]:
    """Yield a function that returns an error if the home was removed since, even if it was made again; else None."""
    # `runs` too: the home itself stays if a process writes into it while it is removed
    folders = [folder for folder in (home, home / "runs") if folder.is_dir()]
    # while a folder is open, no other gets its number
    opened = [os.open(folder, os.O_RDONLY | os.O_DIRECTORY) for folder in folders]

    def is_there(folder: Path, handle: int) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), folder.stat())
        except OSError:
            return False

    def removed() -> HomeRemoved | None:
        if all(map(is_there, folders, opened)):
            return None
        return HomeRemoved(
            f"the home {home} was removed while this command used it",
            "run it again; results in a store outside the home are still there",
        )

    try:
        yield removed
    finally:
        for handle in opened:
            os.close(handle)


def _anybody_writes(folder: Path) -> bool:
    return bool(folder.stat().st_mode & stat.S_IWOTH)
