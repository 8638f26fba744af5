"""Make and remove the folders that attempts work in: `<home>/work/<process>~<attempt>`, where home is TRNFLOW_HOME.

An attempt removes its folder when it ends. If it was killed, the next run removes it.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from tasks.errors import StoreError
from tasks.sources.paths import local_path
from tasks.store import Store
from tasks.system.home import home_folder
from tasks.system.private_files import make_home
from tasks.system.process import lives_on, read_tag, this_process


def open_home() -> Path:
    """Return the folder of local state (TRNFLOW_HOME), and create it if it is missing: readable by its owner alone.

    When the folder is created, a line on stderr says so.
    """
    home = home_folder()
    with contextlib.suppress(OSError):  # the first use of the folder raises the error, with its reason
        existed = home.exists()
        make_home(home)
        if existed:
            return home
        sys.stderr.write(f"made {home} for local state and, by default, the store (TRNFLOW_HOME names another place)\n")
    return home


KEPT_LOGS = 200


@contextlib.contextmanager
def workplace(home: Path, attempt: str) -> Iterator[Path]:
    """Yield a new folder for the files of one attempt, and remove the folder when the context ends.

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
    """Return the path of a folder for this process to work in, without creating it.

    If this process dies, the next run removes the folder.
    """
    return home / "work" / f"{this_process().tag}~{name}"


def attempt_log(home: Path, name: str) -> Path:
    """Return the path of the log file of an attempt, `<home>/logs/NAME.log`, and create its folder.

    Logs are kept after the attempt, since error messages point to them. Of all logs only the newest KEPT_LOGS are kept.
    """
    folder = home / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):  # another run removes them too
        for old in sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)[:-KEPT_LOGS]:
            old.unlink(missing_ok=True)
    return folder / f"{name}.log"


def data_folders(store: Store) -> list[Path]:
    """List the folders of the home and the store, which hold data and no code.

    A stage may read files there freely, even if they lie inside the project's folder (see `tasks.keys.allowed_files`).
    """
    root, home = Path(local_path(store.root) or store.home), store.home
    return [home, home / "work", home / "cache", root, root / "blobs", root / "partial"]


def clean(store: Store) -> None:
    """Remove the work folders and leases that killed runs left behind. Costs two listings when there are none."""
    clear(store.home / "work")
    store.sweep_leases()


def clear(base: Path) -> None:
    """Remove the folders in `base` whose processes are dead.

    Folders of other machines that share the home are kept: this machine can't find out whether their processes live.
    """
    for left in base.iterdir() if base.is_dir() else ():
        tag, _, attempt = left.name.partition("~")
        process = read_tag(tag)
        if process is None or (process.is_dead() and not lives_on(attempt)):
            shutil.rmtree(left, ignore_errors=True)
