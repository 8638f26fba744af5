"""Partial state: `<root>/partial/<key>/step-N/`.

A state is complete when COMMIT, written last, holds the digests of its files. A damaged state is quarantined, and an
earlier one used.
"""

from __future__ import annotations

import contextlib
import errno
import json
import re
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from trnflow.tasks.artifact import checked_path
from trnflow.tasks.errors import StoreError
from trnflow.tasks.keys.hash_cache import sha256_files
from trnflow.tasks.store.backend import Backend, storage_errors
from trnflow.tasks.store.folders import files_below
from trnflow.tasks.store.layout import read_shape
from trnflow.tasks.store.location import open_backend

HELD_SECONDS = 0.02
_COMMIT = re.compile(r"/step-([0-9]{9,18})/COMMIT")


def partial_state(root: str, home: str | Path, key: str) -> PartialState:
    """Return access to the partial state of `key` in the store at `root`. Makes no request."""
    return PartialState(open_backend(root), Path(home), key)


class PartialState:
    """The partial state of one key (`trnflow.tasks.stage.Partial`)."""

    def __init__(self, backend: Backend, home: Path, key: str) -> None:
        self._backend = backend
        self._cache = home / "cache" / "partial" / key[:16]
        self._prefix = f"partial/{key}"
        self._hold = backend.local / self._prefix / "HOLD" if backend.local is not None else None

    def newest(self, warn: Callable[[str], None], upto: int | None = None) -> tuple[int, Path] | None:
        """Return (step, folder) of the newest complete, undamaged state, or None; a remote one is downloaded.

        Later states than `upto` and incomplete ones are deleted, so no other process may write states of the key.
        """
        self._sweep()
        for step in self.steps():
            if upto is not None and step > upto:
                self._remove(step)
        for step in reversed(self.steps()):
            folder = self.sound(step, warn)
            if folder is not None:
                return step, folder
        return None

    def sound(self, step: int, warn: Callable[[str], None]) -> Path | None:
        """Return a step's folder if its state is complete and undamaged, else None; a damaged one is quarantined."""
        if step not in self.steps():
            return None
        local = self._backend.local
        folder = local / self._folder(step) if local is not None else self._download(step)
        damaged = self._damaged(step, folder)
        if damaged is None:
            return folder
        self._quarantine(step)
        before = [other for other in self.steps() if other < step]
        instead = "the one before it is used" if before else "there is none before it"
        warn(f"the state of step {step} is damaged ({damaged}): it is in quarantine, and {instead}")
        return None

    def commit(self, step: int, folder: Path, digests: Mapping[str, str] | None = None) -> None:
        """Move the files below `folder` into the store as the complete state at `step`; afterwards `folder` is gone.

        If writing fails, nothing of the state stays. digests: {path: digest} that are known already.
        """
        target = self._folder(step)
        if self._committed(step):
            shutil.rmtree(folder)  # the same key and step have the same state
            return
        marks = dict(digests or {})
        unknown = [name for name in files_below(folder) if name not in marks]
        marks |= zip(unknown, sha256_files([folder / name for name in unknown]), strict=True)
        try:
            if self._backend.local is not None:
                with storage_errors(self._backend.root, target, "writing"):
                    self._move_in(folder, self._backend.local / target)
                self._backend.sync()
            else:
                self._upload(folder, target)
            self._backend.replace(f"{target}/COMMIT", json.dumps(marks).encode())
        except BaseException:
            if not self._committed(step):
                self._backend.remove(target)
            raise
        while self._hold is not None and self._hold.exists():
            time.sleep(HELD_SECONDS)

    def hold(self) -> None:
        """Let every commit wait after its COMMIT, until `release`; of a store on this machine."""
        assert self._hold is not None
        self._hold.parent.mkdir(parents=True, exist_ok=True)
        self._hold.touch()

    def release(self) -> None:
        assert self._hold is not None
        self._hold.unlink(missing_ok=True)

    def _committed(self, step: int) -> bool:
        return self._backend.size(f"{self._folder(step)}/COMMIT") is not None

    def _damaged(self, step: int, folder: Path) -> str | None:
        """Return what is wrong with a step's files, or None."""
        try:
            digests = read_shape(self._backend.read(f"{self._folder(step)}/COMMIT"), dict[str, str])
            # all of them: they are about to be loaded anyway
            present = sha256_files([folder / checked_path(name) for name in digests])
        except (ValueError, StoreError, IsADirectoryError):
            return "COMMIT can't be read"
        except FileNotFoundError as error:
            return f"{Path(str(error.filename or error)).name} is gone"
        return next((name for name, digest in zip(digests, present, strict=True) if digest != digests[name]), None)

    def _quarantine(self, step: int) -> None:
        folder = self._folder(step)
        # COMMIT first: a partly moved step is not complete
        for name in [f"{folder}/COMMIT", *self._backend.names(folder)]:
            with contextlib.suppress(FileNotFoundError):
                self._backend.move(name, f"quarantine/{name}.{time.time_ns()}")

    def _move_in(self, folder: Path, destination: Path) -> None:
        """Rename the whole folder at once."""
        destination.parent.mkdir(parents=True, exist_ok=True)
        aside = destination.with_name(f".{uuid.uuid4().hex}")
        try:
            # no kill or other writer can leave a mixture of two states
            shutil.move(folder, aside)
            _renamed(aside, destination)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def _upload(self, folder: Path, target: str) -> None:
        files = {
            f"{target}/{path.relative_to(folder).as_posix()}": path for path in folder.rglob("*") if path.is_file()
        }
        for left in set(self._backend.names(target)) - files.keys():
            self._backend.remove(left)
        for name, path in sorted(files.items()):
            self._backend.move_in(name, path)
        shutil.rmtree(folder)

    def prune(self, keep: int, protect: Collection[int] = ()) -> None:
        """Delete all complete states but the newest `keep` and those of `protect`; with `keep` 0 all of the key."""
        steps = self.steps()
        old = [step for step in steps[:-keep] if step not in protect] if keep else steps
        for step in old:
            self._remove(step)
        if not keep:
            self._backend.remove(self._prefix)
            shutil.rmtree(self._cache, ignore_errors=True)

    def _remove(self, step: int) -> None:
        # COMMIT first: a partly removed step is not complete
        self._backend.remove(f"{self._folder(step)}/COMMIT")
        self._backend.remove(self._folder(step))

    def _sweep(self) -> None:
        """Remove incomplete steps: without COMMIT, or not renamed to their final name."""
        complete = {f"step-{step:09d}" for step in self.steps()}
        for name in set(self._backend.folders(self._prefix)) - complete:
            self._backend.remove(f"{self._prefix}/{name}")

    def _folder(self, step: int) -> str:
        return f"{self._prefix}/step-{step:09d}"

    def steps(self) -> list[int]:
        """Return the steps with a complete state, ascending, damaged or not."""
        names = self._backend.names(self._prefix)
        return sorted(int(found[1]) for name in names if (found := _COMMIT.fullmatch(name.removeprefix(self._prefix))))

    def _download(self, step: int) -> Path:
        target = self._cache / f"step-{step:09d}"
        shutil.rmtree(target, ignore_errors=True)
        for name in self._backend.names(self._folder(step)):
            path = target / name.removeprefix(f"{self._folder(step)}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            self._backend.fetch(name, path)
        return target


def _renamed(aside: Path, destination: Path) -> None:
    while True:
        try:
            aside.rename(destination)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        shutil.rmtree(destination, ignore_errors=True)  # an incomplete copy, left by a kill
