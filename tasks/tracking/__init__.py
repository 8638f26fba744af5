"""MLflow, at arm's length: a run appends what it has to say to a spool on disk; another process uploads it.

So a run never waits for MLflow, nothing is lost or doubled when the server is down or somebody is killed, and importing MLflow
(5 s) costs the run nothing. See `spool`, `shipper` and `upload`.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from types import TracebackType

from tasks.artifact import Meta
from tasks.launch.python import python
from tasks.tracking.redact import redact
from tasks.tracking.shipper import URI, ship_pending
from tasks.tracking.spool import Spool

__all__ = ["Spool", "Tracker", "absolute_uri", "ship_pending", "tracking_page"]


class Tracker(Spool):
    """A run's spool, with the process that uploads it. As a context: left without `finish`, the run FAILED.

    recipe: its name; settings: the resolved recipe (secrets are taken out here); tags: such as the git commit; uri: of the
    tracking server. Must be finished by the process that started it; if that dies, MLflow shows the run as KILLED.
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
    ) -> None:
        super().__init__(home, run)
        address = absolute_uri(uri or f"sqlite:///{home / 'mlflow.db'}")
        local = address.startswith("sqlite:")
        self.run_started(
            recipe,
            settings=redact(settings),
            tags={name: redact(value) for name, value in tags.items()},
            experiment=experiment,
            uri=redact(address),
            artifacts=(home / "mlartifacts").resolve().as_uri() if local else None,
        )
        self._shipper = self._start(address)

    def finish(self, status: str, wait_seconds: float = 20.0) -> str | None:
        """End the run (FINISHED, FAILED, KILLED) and wait a while for the upload, which goes on by itself if it takes longer.

        Returns a line for the user when MLflow did not take everything.
        """
        self.run_ended(status)
        deadline = time.monotonic() + wait_seconds
        while time.monotonic() < deadline and self._shipper.poll() is None and not self.paths.done.exists():
            time.sleep(0.05)
        self._shipper.returncode = self._shipper.poll() or 0  # it may outlive us, which `Popen` would warn about
        if self.lost:
            return f"{self.lost} entries for MLflow could not be written below {self.paths.folder}: is the disk full?"
        if self.paths.warning.exists():
            return self.paths.warning.read_text(encoding="utf-8").strip()
        return None

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.open:
            self.finish("KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED")

    def _start(self, address: str) -> subprocess.Popen[bytes]:
        environ = {
            **os.environ,
            URI: address,
            "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
            "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
            "DO_NOT_TRACK": "1",
        }
        with (self.paths.folder / "shipper.log").open("wb") as log:
            return subprocess.Popen(
                python("tasks.tracking.shipper:follow", str(self.paths.home), self.paths.run),
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def absolute_uri(uri: str) -> str:
    """`uri`, a sqlite file in it by its absolute path: who uploads later may stand in another folder."""
    scheme, _, path = uri.partition(":///")
    if scheme != "sqlite" or path.startswith("/") or not path:
        return uri
    return f"sqlite:///{Path(path).resolve()}"


def tracking_page(home: Path, uri: str | None) -> str:
    """The address of a tracking server's page, or the command that opens a local database's.

    One worker and no job runners: two processes instead of fifteen (2 GB), for one reader.
    """
    address = absolute_uri(uri or f"sqlite:///{home / 'mlflow.db'}")
    if address.startswith("http"):
        return str(redact(address))
    command = "MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false mlflow ui --host 127.0.0.1 --workers 1"
    return f"{command} --backend-store-uri {address}"
