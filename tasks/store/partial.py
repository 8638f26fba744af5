"""Resumable training state under `<root>/partial/<key>/step-N/`. A step counts once its COMMIT exists; written last.

A local store takes the folder by rename; a remote one by upload, and hands it back through the local cache.
"""

from __future__ import annotations

import errno
import shutil
import uuid
from pathlib import Path

from tasks.store.backend import Backend, open_backend


def partial_state(root: str, home: str | Path, key: str) -> PartialState:
    """The state of `key` in the store at `root`; home: the project's local state, for downloads."""
    return PartialState(open_backend(root), Path(home) / "cache" / "partial" / key[:16], key)


class PartialState:
    """See `tasks.stage.Partial`."""

    def __init__(self, backend: Backend, cache: Path, key: str) -> None:
        self._backend = backend
        self._cache = cache
        self._prefix = f"partial/{key}"

    def newest(self) -> tuple[int, Path] | None:
        steps = self.steps()
        if not steps:
            return None
        step = steps[-1]
        if self._backend.local is not None:
            return step, self._backend.local / self._folder(step)
        return step, self._download(step)

    def commit(self, step: int, folder: Path) -> None:
        target = self._folder(step)
        if self._backend.size(f"{target}/COMMIT") is not None:
            shutil.rmtree(folder)  # the same key and step: the same state
            return
        if self._backend.local is not None:
            self._move_in(folder, self._backend.local / target)
            self._backend.sync()
        else:
            self._upload(folder, target)
        self._backend.replace(f"{target}/COMMIT", b"")

    def _move_in(self, folder: Path, destination: Path) -> None:
        """All of it at once, so that a superseded run that still writes, or a kill, leaves no mixture."""
        destination.parent.mkdir(parents=True, exist_ok=True)
        aside = destination.with_name(f".{uuid.uuid4().hex}")
        shutil.move(folder, aside)
        while True:
            try:
                aside.rename(destination)
                return
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            shutil.rmtree(destination, ignore_errors=True)  # an incomplete one, of an earlier kill

    def _upload(self, folder: Path, target: str) -> None:
        files = {
            f"{target}/{path.relative_to(folder).as_posix()}": path for path in folder.rglob("*") if path.is_file()
        }
        for left in set(self._backend.names(target)) - files.keys():
            self._backend.remove(left)
        for name, path in sorted(files.items()):
            self._backend.adopt(name, path)
        shutil.rmtree(folder)

    def prune(self, keep: int) -> None:
        steps = self.steps()
        for step in steps[: len(steps) - keep] if keep else steps:
            self._backend.remove(f"{self._folder(step)}/COMMIT")
            self._backend.remove(self._folder(step))
        if not keep:
            self._backend.remove(self._prefix)
            shutil.rmtree(self._cache, ignore_errors=True)

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
