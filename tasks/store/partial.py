"""Resumable training state under `<root>/partial/<key>/step-N/`. A step counts once its COMMIT exists; written last.

COMMIT holds the files' digests: a step that is no longer what was written goes to quarantine, and the one before it counts.
A local store takes the folder by rename; a remote one by upload, and hands it back through the local cache. What a full disk
or a dropped connection cuts short is taken back at once; what a kill cuts short, by whoever goes on.
"""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from tasks.memo import sha256_files
from tasks.store.backend import Backend, open_backend, trouble
from tasks.store.folders import files_below
from tasks.store.names import read_object


def partial_state(root: str, home: str | Path, key: str) -> PartialState:
    """The state of `key` in the store at `root`; home: the project's local state, for downloads."""
    return PartialState(open_backend(root), Path(home) / "cache" / "partial" / key[:16], key)


class PartialState:
    """See `tasks.stage.Partial`."""

    def __init__(self, backend: Backend, cache: Path, key: str) -> None:
        self._backend = backend
        self._cache = cache
        self._prefix = f"partial/{key}"

    def newest(self, warn: Callable[[str], None]) -> tuple[int, Path] | None:
        """As promised; and what killed writers left is gone: who asks is about to go on, and writes alone."""
        self._sweep()
        for step in reversed(self.steps()):
            folder = self.sound(step, warn)
            if folder is not None:
                return step, folder
        return None

    def sound(self, step: int, warn: Callable[[str], None]) -> Path | None:
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
        target = self._folder(step)
        if self._committed(step):
            shutil.rmtree(folder)  # the same key and step: the same state
            return
        known = digests or {}
        unknown = [name for name in files_below(folder) if name not in known]
        found = zip(unknown, sha256_files([folder / name for name in unknown]), strict=True)
        marks = {**known, **dict(found)}
        try:
            if self._backend.local is not None:
                with trouble(self._backend.root, target, "writing"):
                    self._move_in(folder, self._backend.local / target)
                self._backend.sync()
            else:
                self._upload(folder, target)
            self._backend.replace(f"{target}/COMMIT", json.dumps(marks).encode())
        except BaseException:
            if not self._committed(step):
                self._backend.remove(target)
            raise

    def _committed(self, step: int) -> bool:
        return self._backend.size(f"{self._folder(step)}/COMMIT") is not None

    def _damaged(self, step: int, folder: Path) -> str | None:
        """What is wrong with a step's files, or None. Costs reading them: they are about to be loaded."""
        try:
            digests = read_object(self._backend.read(f"{self._folder(step)}/COMMIT"))
            found = sha256_files([folder / name for name in digests])
        except ValueError:
            return "COMMIT can't be read"
        except FileNotFoundError as error:
            return f"{Path(str(error.filename or error)).name} is gone"
        return next((name for name, digest in zip(digests, found, strict=True) if digest != digests[name]), None)

    def _quarantine(self, step: int) -> None:
        """COMMIT first: a step that is taken away by halves is none."""
        folder = self._folder(step)
        for name in [f"{folder}/COMMIT", *self._backend.names(folder)]:
            with contextlib.suppress(FileNotFoundError):
                self._backend.move(name, f"quarantine/{name}.{time.time_ns()}")

    def _move_in(self, folder: Path, destination: Path) -> None:
        """All of it at once, so that a superseded run that still writes, or a kill, leaves no mixture."""
        destination.parent.mkdir(parents=True, exist_ok=True)
        aside = destination.with_name(f".{uuid.uuid4().hex}")
        try:
            _moved(folder, aside)
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
            self._backend.adopt(name, path)
        shutil.rmtree(folder)

    def prune(self, keep: int, protect: Collection[int] = ()) -> None:
        steps = self.steps()
        old = [step for step in steps[:-keep] if step not in protect] if keep else steps
        for step in old:
            self._backend.remove(f"{self._folder(step)}/COMMIT")
            self._backend.remove(self._folder(step))
        if not keep:
            self._backend.remove(self._prefix)
            shutil.rmtree(self._cache, ignore_errors=True)

    def _sweep(self) -> None:
        """Remove what is no complete step: COMMIT was not written, or the folder did not even have its name yet."""
        complete = {f"step-{step:09d}" for step in self.steps()}
        for name in set(self._backend.folders(self._prefix)) - complete:
            self._backend.remove(f"{self._prefix}/{name}")

    def _folder(self, step: int) -> str:
        return f"{self._prefix}/step-{step:09d}"

    def steps(self) -> list[int]:
        """Those that are complete, ascending."""
        marks = [name.split("/") for name in self._backend.names(self._prefix) if name.endswith("/COMMIT")]
        return sorted(int(parts[2].removeprefix("step-")) for parts in marks)

    def _download(self, step: int) -> Path:
        target = self._cache / f"step-{step:09d}"
        shutil.rmtree(target, ignore_errors=True)
        for name in self._backend.names(self._folder(step)):
            path = target / name.removeprefix(f"{self._folder(step)}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            self._backend.fetch(name, path)
        return target


def _moved(folder: Path, aside: Path) -> None:
    """By rename; file by file from another filesystem."""
    try:
        folder.rename(aside)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        for name in files_below(folder):
            (aside / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name, aside / name)
        shutil.rmtree(folder)


def _renamed(aside: Path, destination: Path) -> None:
    while True:
        try:
            aside.rename(destination)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        shutil.rmtree(destination, ignore_errors=True)  # an incomplete one, of an earlier kill
