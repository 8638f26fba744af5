"""The spool: what a run has to say to MLflow, one JSON line an event, on disk before anything is sent.

    <home>/tracking/<run>.jsonl         the events; locked by the run that writes them, for as long as it lives
    <home>/tracking/<run>.state.json    how far they are in MLflow, and the ids of the runs there; locked by who uploads
    <home>/tracking/<run>.warning       one line for the user, while MLflow does not take them
    <home>/tracking/<run>.files/        plots
    <home>/tracking/done/<run>.jsonl    all of it is in MLflow

Both locks are flock's, which vanish with their process. An event is written in about 20 us.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tasks.artifact import Json, Meta
from tasks.lines import parsed
from tasks.tracking.redact import redact

KEPT = 100  # finished spools
PLOT_BYTES = 20_000_000
CHUNK = 1 << 20


class Spool:
    """One run's events, written by the one who made it; losing the disk loses events, never the run."""

    def __init__(self, home: Path, run: str) -> None:
        self.paths = Paths(home, run)
        self.paths.folder.mkdir(parents=True, exist_ok=True)
        self.lost = 0
        self._handle: BinaryIO | None = self.paths.events.open("ab", buffering=0)
        fcntl.flock(self._handle, fcntl.LOCK_EX)

    def run_started(
        self,
        recipe: str,
        *,
        settings: Meta,
        tags: dict[str, str],
        experiment: str,
        uri: str,
        artifacts: str | None = None,
    ) -> None:
        """settings: the resolved recipe without secrets; artifacts: the URI a new experiment keeps its files under."""
        self.append(
            "run_started",
            run=self.paths.run, recipe=recipe, settings=settings, tags=tags, experiment=experiment, uri=uri,
            artifacts=artifacts,
        )  # fmt: skip

    def dataset(self, name: str, digest: str, note: str = "", context: str = "") -> None:
        """Lineage. digest: of the data or of the artifact; note: where it came from; context: such as `training`."""
        self.append("dataset", name=name, digest=digest, note=note, context=context)

    def stage_started(self, stage: str, key: str, settings: Meta | None = None) -> None:
        """settings: the stage's own, shown as parameters of its nested run."""
        self.append("stage_started", stage=stage, key=key, settings=redact(settings or {}))

    def metrics(self, stage: str, step: int, values: dict[str, float], at: float | None = None) -> None:
        """Values of a curve at a step. at: seconds since the epoch, now when not given."""
        self.append("metrics", stage=stage, step=step, values=values, **({} if at is None else {"time": at}))

    def stage_ended(
        self,
        stage: str,
        *,
        action: str,
        key: str | None,
        artifact: str | None,
        seconds: float | None = None,
        metrics: Meta | None = None,
        figures: Meta | None = None,
        plots: tuple[Path, ...] = (),
        lengths: Meta | None = None,
    ) -> None:
        """action: `ran` or `hit`; artifact: its digest; plots: files, copied here since they may be gone when they are sent;
        lengths: {split: {"<most tokens>": rows}}, of which MLflow gets a picture."""
        self.append(
            "stage_ended",
            stage=stage, action=action, key=key, artifact=artifact, seconds=seconds, metrics=metrics or {},
            figures=figures or {}, plots=[kept for plot in plots if (kept := self._keep(stage, plot))], lengths=lengths or {},
        )  # fmt: skip

    def run_ended(self, status: str) -> None:
        """FINISHED, FAILED or KILLED; nothing is written after it."""
        self.append("run_ended", status=status)
        self.close()

    def append(self, event: str, **fields: Json) -> None:
        line = json.dumps({"event": event, "time": time.time(), **fields}) + "\n"
        try:
            if self._handle:
                self._handle.write(line.encode())
        except OSError:
            self.lost += 1

    @property
    def open(self) -> bool:
        return self._handle is not None

    def close(self) -> None:
        if self._handle:
            self._handle.close()
            self._handle = None

    def _keep(self, stage: str, plot: Path) -> str | None:
        kept = self.paths.files / stage / plot.name
        try:
            if plot.stat().st_size > PLOT_BYTES:
                return None
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(plot, kept)
        except OSError:
            self.lost += 1
            return None
        return kept.relative_to(self.paths.files).as_posix()


@dataclass(frozen=True)
class Paths:
    """The files of one run's spool."""

    home: Path
    run: str

    @property
    def folder(self) -> Path:
        return self.home / "tracking"

    @property
    def events(self) -> Path:
        return self.folder / f"{self.run}.jsonl"

    @property
    def state(self) -> Path:
        return self.folder / f"{self.run}.state.json"

    @property
    def warning(self) -> Path:
        return self.folder / f"{self.run}.warning"

    @property
    def files(self) -> Path:
        return self.folder / f"{self.run}.files"

    @property
    def done(self) -> Path:
        return self.folder / "done" / f"{self.run}.jsonl"

    def written_now(self) -> bool:
        """Whether the run that writes the events still lives."""
        with contextlib.suppress(FileNotFoundError), self.events.open("rb") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    @contextlib.contextmanager
    def uploading(self) -> Iterator[bool]:
        """Holds the right to upload; False when another process has it, or when all is uploaded."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"{self.run}.lock").open("wb") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield self.events.exists()
            if not self.events.exists():
                Path(handle.name).unlink(missing_ok=True)

    def read(self, offset: int) -> tuple[list[Meta], int]:
        """Whole events from `offset` on, about a MiB of them, and the offset behind them."""
        with self.events.open("rb") as handle:
            handle.seek(offset)
            chunk = handle.read(CHUNK)
            if chunk and b"\n" not in chunk:
                chunk += handle.readline()
        whole = chunk[: chunk.rfind(b"\n") + 1]
        return [event for line in whole.splitlines() if (event := parsed(line))], offset + len(whole)

    def abandoned(self) -> None:
        """Say for a run that was killed that it was; the half line it may have left is ended first."""
        with self.events.open("ab") as handle:
            handle.write(b"\n" + json.dumps({"event": "run_ended", "time": time.time(), "status": "KILLED"}).encode())
            handle.write(b"\n")

    def load_state(self) -> Meta:
        try:
            state: Meta = json.loads(self.state.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {"offset": 0}
        return state

    def save_state(self, state: Meta) -> None:
        aside = self.state.with_suffix(".part")
        aside.write_text(json.dumps(state), encoding="utf-8")
        aside.replace(self.state)

    def retire(self) -> None:
        """All is uploaded: keep the events among the newest finished ones, drop the rest."""
        self.done.parent.mkdir(exist_ok=True)
        self.events.replace(self.done)
        shutil.rmtree(self.files, ignore_errors=True)
        self.state.unlink(missing_ok=True)
        self.warning.unlink(missing_ok=True)
        for old in sorted(self.done.parent.glob("*.jsonl"), key=os.path.getmtime)[:-KEPT]:
            old.unlink(missing_ok=True)
