"""Resumable training state under `<root>/partial/<key>/step-N/`. A step counts once its COMMIT exists; written last.

A local store takes the folder by rename; a remote one by upload, and hands it back through the local cache.
"""

from __future__ import annotations

import shutil
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
        steps = self._steps()
        if not steps:
            return None
        step = steps[-1]
        if self._backend.local is not None:
            return step, self._backend.local / self._folder(step)
        return step, self._download(step)

    def commit(self, step: int, folder: Path) -> None:
        target = self._folder(step)
        self._backend.remove(target)  # an incomplete one, of an earlier kill
        if self._backend.local is not None:
            destination = self._backend.local / target
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(folder, destination)
            self._backend.sync()
        else:
            for path in sorted(p for p in folder.rglob("*") if p.is_file()):
                self._backend.adopt(f"{target}/{path.relative_to(folder).as_posix()}", path)
            shutil.rmtree(folder)
        self._backend.replace(f"{target}/COMMIT", b"")

    def prune(self, keep: int) -> None:
        steps = self._steps()
        for step in steps[: len(steps) - keep] if keep else steps:
            self._backend.remove(f"{self._folder(step)}/COMMIT")
            self._backend.remove(self._folder(step))
        if not keep:
            self._backend.remove(self._prefix)
            shutil.rmtree(self._cache, ignore_errors=True)

    def _folder(self, step: int) -> str:
        return f"{self._prefix}/step-{step:09d}"

    def _steps(self) -> list[int]:
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
