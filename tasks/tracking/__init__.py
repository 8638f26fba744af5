"""Tracking in MLflow: a run writes events (messages such as "a stage began") to files on disk, its *spool*. Another
process, the uploader, sends the events to MLflow.

So a run never waits for MLflow's server or its import (5 s). No event is lost or recorded twice when the server is
down or a process is killed. See the modules `spool`, `uploader` and `mlflow_runs`.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from types import TracebackType

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import is_interruption
from trnflow.tasks.launch.python import python
from trnflow.tasks.system.databases import is_database
from trnflow.tasks.system.redaction import hide, redact
from trnflow.tasks.tracking.experiment_pages import runs_page
from trnflow.tasks.tracking.spool import Spool
from trnflow.tasks.tracking.uploader import ADDRESS, RECORDED_ADDRESS, upload_left

__all__ = ["Spool", "Tracker", "absolute_uri", "tracking_page", "upload_left"]

LOCAL_PAGE = "http://127.0.0.1:5000"
"""The address of MLflow's page when `mlflow ui` serves a local database."""


class Tracker(Spool):
    """Record one run in MLflow: write the run's events to a spool (a file on disk) and start the process that uploads
    them to MLflow.

    Used as a context manager, it ends the run in MLflow when an exception leaves the context: as KILLED after an
    interruption, else as FAILED. If this process dies, MLflow shows the run as KILLED.

    Args:
        home: the folder of local state (TRNFLOW_HOME), whose folder `tracking` holds the spools.
        run: the id of the run.
        recipe: the recipe's name.
        settings: the complete recipe, with defaults and overrides; secrets are removed before it is written.
        tags: tags of the run in MLflow beside its id and the recipe's name, such as the git commit.
        experiment: the name of the MLflow experiment.
        uri: the address of the tracking server; None stands for a sqlite file in `home`.
        written: the address as the recipe has it, with `${NAME}` for secret parts; recorded in place of `uri`.
    """

    def __init__(
        self,
        home: Path,
        run: str,
        recipe: str,
        *,
        settings: Meta,
        tags: dict[str, str],
        experiment: str,
        uri: str | None,
        written: str | None = None,
    ) -> None:
        super().__init__(home, run)
        address = absolute_uri(uri or f"sqlite:///{home / 'mlflow.db'}")
        is_direct = is_database(address)  # no server says where files are kept
        recorded = recorded_uri(address, written)
        self.run_started(
            recipe,
            settings=redact(settings),
            tags={name: redact(value) for name, value in tags.items()},
            experiment=experiment,
            uri=recorded,
            artifacts=(home / "mlartifacts").resolve().as_uri() if is_direct else None,
        )
        self._uploader = self._start(address, recorded)

    def finish(self, status: str, wait_seconds: float = 20.0) -> str | None:
        """End the run in MLflow and wait at most `wait_seconds` for the upload of its events, which continues after
        that time.

        status: FINISHED, FAILED or KILLED.

        Returns: a message for the user if events could not be written to disk, or if the last attempt to upload them
        failed. None in all other cases, also if the upload is not finished yet.
        """
        self.run_ended(status)
        deadline = time.monotonic() + wait_seconds
        while time.monotonic() < deadline and self._uploader.poll() is None and self.files.events.exists():
            time.sleep(0.05)
        self._uploader.returncode = self._uploader.poll() or 0  # it may outlive us, which `Popen` would warn about
        if self.lost:
            return f"{self.lost} entries for MLflow could not be written below {self.files.folder}: is the disk full?"
        if self.files.warning.exists():
            return self.files.warning.read_text(encoding="utf-8").strip()
        return None

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.is_open:
            self.finish("KILLED" if is_interruption(error) else "FAILED")

    def _start(self, address: str, recorded: str) -> subprocess.Popen[bytes]:
        environ = {
            **os.environ,
            ADDRESS: address,
            RECORDED_ADDRESS: recorded,
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
            "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
            "DO_NOT_TRACK": "1",
        }
        with (self.files.folder / "uploader.log").open("wb") as log:
            return subprocess.Popen(
                python("trnflow.tasks.tracking.uploader:follow_run", str(self.files.home), self.files.run),
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def absolute_uri(uri: str) -> str:
    """Return an MLflow URI in which the path of a sqlite file is absolute, since a later upload may run in another working
    directory. Other URIs are returned unchanged."""
    scheme, _, path = uri.partition(":///")
    if scheme != "sqlite" or path.startswith("/") or not path:
        return uri
    return f"sqlite:///{Path(path).resolve()}"


def recorded_uri(address: str, written: str | None) -> str:
    """Return the text that is recorded as the address of an MLflow server in spools (the files in which events wait for
    their upload), without secrets.

    address: the server's address; written: the address as the recipe has it, with `${NAME}` for secret parts, which is
    returned if it has such parts."""
    return str(redact(written if written and "${" in written else address))


def tracking_page(home: Path, uri: str, experiment: str, written: str | None = None) -> str:
    """Return the address of the page with an experiment's runs; for a local database with the command that serves the page.

    The command limits MLflow to two processes, because by default it starts fifteen (2 GB).

    Args:
        home: the folder of local state (TRNFLOW_HOME).
        uri: the address of the tracking server, or of a database that MLflow uses without a server.
        experiment: the experiment's name.
        written: the address as the recipe has it, with `${NAME}` for secret parts.
    """
    address = absolute_uri(uri)
    base = str(hide(address)) if address.startswith("http") else LOCAL_PAGE
    page = runs_page(base, home, recorded_uri(address, written), experiment)
    if address.startswith("http"):
        return page
    command = "MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false mlflow ui --host 127.0.0.1 --workers 1"
    return f"{page} after `{command} --backend-store-uri {hide(address)}`"
