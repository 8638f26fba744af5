"""Tracking in MLflow: a run writes its spool; the uploader, another process, sends it.

So a run never waits for MLflow's server or import (5 s), and nothing is lost or recorded twice.
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
from trnflow.tasks.system.redaction import hide_secrets, without_secrets
from trnflow.tasks.tracking.experiment_pages import runs_page
from trnflow.tasks.tracking.spool import Spool
from trnflow.tasks.tracking.uploader import ADDRESS, RECORDED_ADDRESS, upload_left

__all__ = ["Spool", "Tracker", "absolute_uri", "tracking_page", "upload_left"]

LOCAL_PAGE = "http://127.0.0.1:5000"
"""MLflow's page when `mlflow ui` serves a local database."""


class Tracker(Spool):
    """Record one run in MLflow: write its spool, and start the uploader.

    As a context manager it ends the run as KILLED after an interruption, as FAILED after another exception.

    Args:
        settings: The complete recipe; secrets are removed.
        tags: Beside the run's id and the recipe's name.
        uri: The tracking server; None: a sqlite file in `home`.
        written: The address as the recipe has it, recorded in place of `uri`.
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
            settings=without_secrets(settings),
            tags={name: without_secrets(value) for name, value in tags.items()},
            experiment=experiment,
            uri=recorded,
            artifacts=(home / "mlartifacts").resolve().as_uri() if is_direct else None,
        )
        self._uploader = self._start(address, recorded)

    def finish(self, status: str, wait_seconds: float = 20.0) -> str | None:
        """End the run in MLflow and wait at most `wait_seconds` for its upload. status: FINISHED, FAILED or KILLED.

        Returns a message for the user if events were not written, or the last upload failed.
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
    """Return an MLflow URI in which the path of a sqlite file is absolute."""
    # a later upload may run in another working directory
    scheme, _, path = uri.partition(":///")
    if scheme != "sqlite" or path.startswith("/") or not path:
        return uri
    return f"sqlite:///{Path(path).resolve()}"


def recorded_uri(address: str, written: str | None) -> str:
    """Return the text that spools have as the server's address, without secrets."""
    return str(without_secrets(written if written and "${" in written else address))


def tracking_page(home: Path, uri: str, experiment: str, written: str | None = None) -> str:
    """Return the page with an experiment's runs; of a local database with the command that serves it."""
    address = absolute_uri(uri)
    base = str(hide_secrets(address)) if address.startswith("http") else LOCAL_PAGE
    page = runs_page(base, home, recorded_uri(address, written), experiment)
    if address.startswith("http"):
        return page
    # two processes: by default MLflow starts fifteen (2 GB)
    command = "MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false mlflow ui --host 127.0.0.1 --workers 1"
    return f"{page} after `{command} --backend-store-uri {hide_secrets(address)}`"
