"""Make and remove the folders that attempts work in: `<home>/work/<process>~<attempt>`.

An attempt is one try to run a stage, and `<attempt>` its id; home is the folder of local state, TRNFLOW_HOME;
`<process>` identifies the process and its machine. An attempt removes its folder when it ends. If the attempt was
killed, the next run removes the folder.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from trnflow.tasks.errors import StoreError
from trnflow.tasks.events import run_folder
from trnflow.tasks.sources.paths import local_path
from trnflow.tasks.store import Store
from trnflow.tasks.system.home import home_folder
from trnflow.tasks.system.private_files import make_home
from trnflow.tasks.system.process import lives_on, read_tag, this_process


def open_home() -> Path:
    """Return the home, the folder of local state (TRNFLOW_HOME). If it is missing, create it, readable by its owner
    alone, and say so on stderr.

    No error is raised here if the folder can't be created; the first use of the folder raises one.
    """
    home = home_folder()
    with contextlib.suppress(OSError):  # the first use of the folder raises the error, with its reason
        existed = home.exists()
        make_home(home)
        if existed:
            return home
        sys.stderr.write(f"made {home} for local state and, by default, the store (TRNFLOW_HOME names another place)\n")
    return home


@contextlib.contextmanager
def workplace(home: Path, attempt: str) -> Iterator[Path]:
    """Context manager that creates a folder for the files of one attempt (a try to run a stage), yields it, and removes
    it when the context ends.

    Folders that killed processes left behind are removed first.

    Args:
        home: The folder of local state; the new folder is in its subfolder `work`.
        attempt: The id of the attempt.

    Raises:
        StoreError: The disk became full while the context was open.
    """
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
    """Return the path `<home>/work/<process>~<name>` of a folder for this process to work in, without creating the
    folder.

    If this process dies, the next run removes the folder, unless processes of the attempt (try to run a stage) `name`
    still live. home: the folder of local state.
    """
    return home / "work" / f"{this_process().tag}~{name}"


def attempt_log(home: Path, run: str, attempt: str) -> Path:
    """Return the file for what the processes of an attempt print, beside the run's event log. Creates the folder."""
    folder = run_folder(home, run)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{attempt}.log"


def data_folders(store: Store) -> list[Path]:
    """Return the folders in which a stage may read any file because they contain data and no code: the home (the folder
    of local state), the store, and some folders in both.

    Other files of the project may be read by a stage only if its key includes them. The home or the store may lie
    inside the project's folder, which is why they are exempted (see `trnflow.tasks.keys.allowed_files`).
    """
    root, home = Path(local_path(store.root) or store.home), store.home
    return [home, home / "work", home / "cache", root, root / "blobs", root / "partial"]


def clean(store: Store) -> None:
    """Remove the work folders in the home and the leases in the store (files by which a run claims to make a result)
    that killed runs left behind. Costs two listings of folders when there is nothing to remove."""
    clear(store.home / "work")
    store.sweep_leases()


def clear(base: Path) -> None:
    """Remove the folders in `base` that killed processes left behind. A folder is removed if the process in its name
    has certainly ended and the attempt (try to run a stage) in its name has no process left. A folder whose name has no
    process is removed, too.

    Folders of other machines that share the home are kept: this machine can't find out whether their processes live.
    """
    for left in base.iterdir() if base.is_dir() else ():
        tag, _, attempt = left.name.partition("~")
        process = read_tag(tag)
        if process is None or (process.is_dead() and not lives_on(attempt)):
            shutil.rmtree(left, ignore_errors=True)
