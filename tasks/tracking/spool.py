"""The spool: files to which a run writes its events for MLflow.

    <home>/tracking/<run>.jsonl         events; locked by the run that writes them
    <home>/tracking/<run>.lock          locked by the process that uploads them
    <home>/tracking/<run>.state.json    bytes uploaded, ids of the MLflow runs
    <home>/tracking/<run>.warning       why the last upload failed
    <home>/tracking/<run>.files/        plots

Removed once uploaded. Writing an event takes about 20 us.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from trnflow.tasks.artifact import Json, Meta
from trnflow.tasks.system.json_lines import parsed
from trnflow.tasks.system.private_files import make_home
from trnflow.tasks.system.redaction import without_secrets

PLOT_BYTES = 20_000_000
READ_BYTES = 1 << 20


class Spool:
    """Writes the events of one run. While it is open, its lock shows that the run is alive.

    lost: events and plots that could not be written.
    """

    def __init__(self, home: Path, run: str) -> None:
        self.files = SpoolFiles(home, run)
        make_home(home)
        self.files.folder.mkdir(exist_ok=True)
        self.lost = 0
        self._handle: BinaryIO | None = self.files.events.open("ab", buffering=0)
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
        """Write the first event. uri: without secrets; artifacts: where a new experiment stores files."""
        self.append(
            "run_started",
            run=self.files.run, recipe=recipe, settings=settings, tags=tags, experiment=experiment, uri=uri,
            artifacts=artifacts,
        )  # fmt: skip

    def dataset(self, name: str, digest: str, note: str = "", context: str = "") -> None:
        """Write that the run used a data set. note: where it came from; context: such as `training`."""
        self.append("dataset", name=name, digest=digest, note=note, context=context)

    def stage_started(self, stage: str, key: str, settings: Meta | None = None) -> None:
        """Write that a stage begins."""
        self.append("stage_started", stage=stage, key=key, settings=without_secrets(settings or {}))

    def metrics(self, stage: str, step: int, values: dict[str, float], at: float | None = None) -> None:
        """Write a stage's metrics at a step. at: seconds since 1970, None for now."""
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
        """Write that a stage ended.

        Args:
            action: `ran` or `hit`.
            metrics: For the parent run and the nested run.
            figures: For the nested run.
            plots: Files, copied: they may be deleted before the upload.
            lengths: As for `lengths_figure`.
        """
        self.append(
            "stage_ended",
            stage=stage, action=action, key=key, artifact=artifact, seconds=seconds, metrics=metrics or {},
            figures=figures or {}, plots=[kept for plot in plots if (kept := self._keep(stage, plot))], lengths=lengths or {},
        )  # fmt: skip

    def champion(
        self,
        recipe: str,
        task: str,
        number: int,
        champion: str,
        challenger: str | None,
        comparison: dict[str, float],
        *,
        series: str,
        created: str,
    ) -> None:
        """Write which model is the recipe's champion. comparison: empty without a challenger."""
        self.append(
            "champion",
            recipe=recipe, task=task, number=number, champion=champion, challenger=challenger, comparison=comparison,
            series=series, created=created,
        )  # fmt: skip

    def run_ended(self, status: str) -> None:
        """Write the run's end, and close. status: FINISHED, FAILED or KILLED."""
        self.append("run_ended", status=status)
        self.close()

    def append(self, event: str, **fields: Json) -> None:
        """Write an event with the present time."""
        line = json.dumps({"event": event, "time": time.time(), **fields}) + "\n"
        try:
            if self._handle:
                self._handle.write(line.encode())
        # a full disk must not end the run
        except OSError:
            self.lost += 1

    @property
    def is_open(self) -> bool:
        """Whether events can still be written."""
        return self._handle is not None

    def close(self) -> None:
        """Close the file of events, which releases its lock."""
        if self._handle:
            self._handle.close()
            self._handle = None

    def _keep(self, stage: str, plot: Path) -> str | None:
        kept = self.files.plots / stage / plot.name
        try:
            if plot.stat().st_size > PLOT_BYTES:
                return None
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(plot, kept)
        except OSError:
            self.lost += 1
            return None
        return kept.relative_to(self.files.plots).as_posix()


@dataclass(frozen=True)
class SpoolFiles:
    """The files of one run's spool, for the uploader."""

    home: Path
    run: str

    @property
    def folder(self) -> Path:
        """The folder of all spools."""
        return self.home / "tracking"

    @property
    def events(self) -> Path:
        """One JSON line each."""
        return self.folder / f"{self.run}.jsonl"

    @property
    def state(self) -> Path:
        """Bytes uploaded, and the ids of the MLflow runs."""
        return self.folder / f"{self.run}.state.json"

    @property
    def warning(self) -> Path:
        """Why the last upload failed."""
        return self.folder / f"{self.run}.warning"

    @property
    def plots(self) -> Path:
        """The folder of plots to upload."""
        return self.folder / f"{self.run}.files"

    def has_writer(self) -> bool:
        """Return whether the run is still writing events."""
        with contextlib.suppress(FileNotFoundError), self.events.open("rb") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    @contextlib.contextmanager
    def upload_lock(self) -> Iterator[bool]:
        """Lock the spool within the context; yield whether this process may upload."""
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
        """Return (events, offset after them) from byte `offset` on, about 1 MiB of whole lines."""
        with self.events.open("rb") as handle:
            handle.seek(offset)
            chunk = handle.read(READ_BYTES)
            if chunk and b"\n" not in chunk:
                chunk += handle.readline()
        whole = chunk[: chunk.rfind(b"\n") + 1]
        return [event for line in whole.splitlines() if (event := parsed(line))], offset + len(whole)

    def append_killed(self) -> None:
        """Add the end of a run that died."""
        with self.events.open("ab") as handle:
            # on a new line: the run may have left an incomplete one
            handle.write(b"\n" + json.dumps({"event": "run_ended", "time": time.time(), "status": "KILLED"}).encode())
            handle.write(b"\n")

    def load_state(self) -> Meta:
        """Return the saved state of the upload, {"offset": 0} without one."""
        try:
            state: Meta = json.loads(self.state.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {"offset": 0}
        return state

    def save_state(self, state: Meta) -> None:
        """Write the state of the upload."""
        aside = self.state.with_suffix(".part")
        aside.write_text(json.dumps(state), encoding="utf-8")
        aside.replace(self.state)

    def remove(self) -> None:
        """Remove the spool."""
        shutil.rmtree(self.plots, ignore_errors=True)
        # events last: without them the spool does not exist
        for file in (self.state, self.warning, self.events):
            file.unlink(missing_ok=True)
