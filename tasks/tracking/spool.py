"""The spool: files on disk to which a run writes its events for MLflow, one JSON line for each event. Another process
uploads them.

    <home>/tracking/<run>.jsonl         the events; locked by the run that writes them, until its process ends
    <home>/tracking/<run>.lock          locked by the process that uploads them
    <home>/tracking/<run>.state.json    how many bytes of the events are uploaded, and the ids of the MLflow runs
    <home>/tracking/<run>.warning       one line for the user: why the last upload failed
    <home>/tracking/<run>.files/        plots

<home> is the folder of local state (TRNFLOW_HOME), <run> the run's id. A spool is removed once it is uploaded. Both
locks are taken with flock, so the kernel releases them when their process ends. Writing an event takes about 20 us.
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
from trnflow.tasks.system.redaction import redact

PLOT_BYTES = 20_000_000
READ_BYTES = 1 << 20


class Spool:
    """Write the events of one run to its spool (a file on disk), from which another process uploads them to MLflow.
    While the spool is open, its lock shows that the run is alive.

    lost: the number of events and plots that could not be written, such as on a full disk. A failed write raises no error,
    so that it never ends a run.
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
        """Write the first event of the run, from which the upload makes the run in MLflow.

        Args:
            recipe: the recipe's name.
            settings: the complete recipe without secrets.
            tags: tags of the run in MLflow.
            experiment: the name of the MLflow experiment.
            uri: the text recorded as the server's address, without secrets.
            artifacts: the URI under which a new experiment stores files, None for the server's default.
        """
        self.append(
            "run_started",
            run=self.files.run, recipe=recipe, settings=settings, tags=tags, experiment=experiment, uri=uri,
            artifacts=artifacts,
        )  # fmt: skip

    def dataset(self, name: str, digest: str, note: str = "", context: str = "") -> None:
        """Write the event that the run used a data set, which MLflow lists among the run's data sets.

        Args:
            digest: the digest of the data, or of the artifact made of it.
            note: where the data came from.
            context: what the data was used for, such as `training`.
        """
        self.append("dataset", name=name, digest=digest, note=note, context=context)

    def stage_started(self, stage: str, key: str, settings: Meta | None = None) -> None:
        """Write the event that a stage begins. key: the stage's key, the hash of its settings, inputs and code;
        settings: the settings of this stage, shown as parameters of its nested run in MLflow."""
        self.append("stage_started", stage=stage, key=key, settings=redact(settings or {}))

    def metrics(self, stage: str, step: int, values: dict[str, float], at: float | None = None) -> None:
        """Write the event with the values of a stage's metrics at a step of training. values: {metric: value}; at: the
        time in seconds since 1970, None for now."""
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
        """Write the event that a stage ended, with its results.

        Args:
            action: `ran`, or `hit` when a cached result was used.
            key: the stage's key, as for `stage_started`; None if it is not known.
            artifact: the digest of the stage's artifact.
            seconds: how long the stage took.
            metrics: the stage's results; recorded in the parent run and the nested run.
            figures: measurements such as speed; recorded in the nested run.
            plots: files, copied into the spool, since they may be deleted before the upload.
            lengths: {split: {"<upper bound of the tokens>": number of rows}}, which the upload draws as a bar chart.
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
        """Write the event which says what model is the recipe's champion (the model that its users get), for MLflow's
        model registry.

        Args:
            task: `classification` or `causal_lm`.
            number: the n of the champion's file `roots/champions/<recipe>/<n>.json` in the store; n grows with each new
                champion.
            champion, challenger: digests of the champion, and of the new model that was compared with it; None for the
                challenger if no other model was compared.
            comparison: recorded in the parent run in MLflow: the metric's value of champion and of challenger, their
                difference, and low and high, the ends of the difference's interval; empty if no other model was
                compared.
            series: a text that is the same for all champions of a recipe in one store, and different in each store.
            created: when the champion's file was made, as ISO 8601 text in UTC.
        """
        self.append(
            "champion",
            recipe=recipe, task=task, number=number, champion=champion, challenger=challenger, comparison=comparison,
            series=series, created=created,
        )  # fmt: skip

    def run_ended(self, status: str) -> None:
        """Write the last event of the run, its end, and close the spool. status: FINISHED, FAILED or KILLED."""
        self.append("run_ended", status=status)
        self.close()

    def append(self, event: str, **fields: Json) -> None:
        """Write an event with the present time. event: its type; fields: its content. If the write fails, only `lost` is
        increased."""
        line = json.dumps({"event": event, "time": time.time(), **fields}) + "\n"
        try:
            if self._handle:
                self._handle.write(line.encode())
        except OSError:
            self.lost += 1

    @property
    def is_open(self) -> bool:
        """Whether events can still be written: True until `run_ended` or `close` is called."""
        return self._handle is not None

    def close(self) -> None:
        """Close the file of events, which releases the lock that shows that the run is alive."""
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
    """The files of one run's spool (where the run's events and plots wait for the upload to MLflow), as the uploading
    process uses them. home: the folder of local state (TRNFLOW_HOME);
    run: the run's id."""

    home: Path
    run: str

    @property
    def folder(self) -> Path:
        """The folder that holds the spools of all runs of `home`."""
        return self.home / "tracking"

    @property
    def events(self) -> Path:
        """The file of the events, one JSON line each."""
        return self.folder / f"{self.run}.jsonl"

    @property
    def state(self) -> Path:
        """The file that records how many bytes of the file of events are uploaded, and the ids of the MLflow runs."""
        return self.folder / f"{self.run}.state.json"

    @property
    def warning(self) -> Path:
        """The file that holds the reason why the last upload failed. It does not exist when the last upload succeeded."""
        return self.folder / f"{self.run}.warning"

    @property
    def plots(self) -> Path:
        """The folder with the run's plots that are to be uploaded."""
        return self.folder / f"{self.run}.files"

    def has_writer(self) -> bool:
        """Return whether the run is still writing events: its process is alive and the run has not ended."""
        with contextlib.suppress(FileNotFoundError), self.events.open("rb") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    @contextlib.contextmanager
    def upload_lock(self) -> Iterator[bool]:
        """Context that locks the spool for uploading. Yields True if this process may upload, False if another process
        is uploading or there is nothing to upload."""
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
        """Read events from byte `offset` of the file of events on, about 1 MiB of whole lines. Return the events and
        the offset in bytes after them."""
        with self.events.open("rb") as handle:
            handle.seek(offset)
            chunk = handle.read(READ_BYTES)
            if chunk and b"\n" not in chunk:
                chunk += handle.readline()
        whole = chunk[: chunk.rfind(b"\n") + 1]
        return [event for line in whole.splitlines() if (event := parsed(line))], offset + len(whole)

    def append_killed(self) -> None:
        """Add an event to the file of events which says that the run ended with the status KILLED, for a run that died
        without writing its end. The event stands on a new line, since the run may have left an incomplete line."""
        with self.events.open("ab") as handle:
            handle.write(b"\n" + json.dumps({"event": "run_ended", "time": time.time(), "status": "KILLED"}).encode())
            handle.write(b"\n")

    def load_state(self) -> Meta:
        """Return the saved state of the upload: {"offset": the bytes of the file of events that are uploaded}, and the
        entries that `MlflowRuns` keeps, such as the ids of the MLflow runs. Return {"offset": 0} when none is saved."""
        try:
            state: Meta = json.loads(self.state.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {"offset": 0}
        return state

    def save_state(self, state: Meta) -> None:
        """Write the state of the upload to disk, so that another process can continue the upload. state: as
        `load_state` returns it."""
        aside = self.state.with_suffix(".part")
        aside.write_text(json.dumps(state), encoding="utf-8")
        aside.replace(self.state)

    def remove(self) -> None:
        """Remove all files of the spool; called once they are uploaded. The file of events is removed last: without it
        the spool does not exist."""
        shutil.rmtree(self.plots, ignore_errors=True)
        for file in (self.state, self.warning, self.events):
            file.unlink(missing_ok=True)
