"""The folders that attempts work in, `<home>/work/<process>~<attempt>`, and what jobs lay out in `<home>/jobs`. An attempt
removes its folder, the last job those of all; what killed ones left goes with the next run."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from trnflow.tasks.errors import StoreError
from trnflow.tasks.events import run_folder
from trnflow.tasks.sources.paths import local_path
from trnflow.tasks.store import Store
from trnflow.tasks.system.home import home_folder, workfolder
from trnflow.tasks.system.private_files import make_home
from trnflow.tasks.system.process import lives_on, read_tag, this_process

USER = ".user"
"""The end of the name of the file that says which process uses the folders of jobs."""


def open_home() -> Path:
    """Return the home. If it is missing, create it with mode 0700, and say so on stderr."""
    home = home_folder()
    with contextlib.suppress(OSError):  # the first use of the folder raises the error, with its reason
        existed = home.exists()
        make_home(home)
        if existed:
            return home
        sys.stderr.write(f"made {home} for local state and, by default, the store (TRNFLOW_HOME names another place)\n")
    return home


def make_store(store: Store) -> None:
    """Create the store if there is none, and say on stderr that one outside the home is this user's alone. Raises as
    `Store.prepare`."""
    folder = store.backend.local
    is_new = folder is not None and not folder.exists() and not folder.is_relative_to(store.home)
    store.prepare()
    if is_new:
        sys.stderr.write(
            f"made the store {folder} for this user alone; for a team: `chmod 2770 {folder}`, and umask 002\n"
        )


@contextlib.contextmanager
def workplace(home: Path, attempt: str) -> Iterator[Path]:
    """Yield a new folder for the files of an attempt, and remove it afterwards. Raises StoreError if the disk becomes full."""
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


def attempt_log(home: Path, run: str, attempt: str) -> Path:
    """Return the file for what the processes of an attempt print, beside the run's event log. Creates the folder."""
    folder = run_folder(home, run)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{attempt}.log"


@contextlib.contextmanager
def job_folders(home: Path) -> Iterator[Path]:
    """Yield the folder of what jobs lay out in a home; the context's end keeps it for this process, until `clear_jobs`."""
    base = home / "jobs"
    base.mkdir(exist_ok=True)
    with _locked(base, fcntl.LOCK_EX):
        # a process that starts itself again stays the same
        (base / f"{this_process().tag}{USER}").touch()
        yield base


def clear_jobs(home: Path, *, is_over: bool = False) -> None:
    """Remove what jobs laid out in a home, unless one of them runs. is_over: this process needs nothing of it any more."""
    base = home / "jobs"
    with contextlib.suppress(OSError), _locked(base, fcntl.LOCK_EX | fcntl.LOCK_NB):
        for user in base.glob(f"*{USER}"):
            process = read_tag(user.name.removesuffix(USER))
            if process is None or process.is_dead() or (is_over and process == this_process()):
                user.unlink()
        # not the folder itself: others wait for its lock
        for left in () if any(base.glob(f"*{USER}")) else base.iterdir():
            shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path, how: int) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)


def data_folders(store: Store) -> list[Path]:
    """Return the folders in which a stage may read any file, because they hold data and no code."""
    root, home = Path(local_path(store.root) or store.home), store.home
    return [home, home / "work", home / "cache", root, root / "blobs", root / "partial"]


def clean(store: Store) -> None:
    """Remove the folders and leases that killed runs left behind. Costs three listings if there are none."""
    clear(store.home / "work")
    clear_jobs(store.home)
    store.sweep_leases()


def clear(base: Path) -> None:
    """Remove the folders in `base` whose process, and attempt, have certainly ended. Those of other machines stay."""
    for left in base.iterdir() if base.is_dir() else ():
        tag, _, attempt = left.name.partition("~")
        process = read_tag(tag)
        if process is None or (process.is_dead() and not lives_on(attempt)):
            shutil.rmtree(left, ignore_errors=True)
