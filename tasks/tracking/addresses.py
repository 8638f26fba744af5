"""The addresses of MLflow's server and of its pages.

The page of an experiment's runs has the experiment's id, which only MLflow knows: the follower writes it to
`<home>/tracking/experiments/`, so that printing a link asks no server.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from trnflow.tasks.artifact import Meta
from trnflow.tasks.sources.paths import located_database
from trnflow.tasks.system.databases import fill_address, is_database
from trnflow.tasks.system.redaction import hide_secrets, without_secrets
from trnflow.tasks.system.whole_file import write_whole

LOCAL_PAGE = "http://127.0.0.1:5000"
"""MLflow's page when `mlflow ui` serves a local database."""
LOCAL_HOSTS = "127.0.0.1:5000,localhost:5000"
"""The names by which that page may be called: else a page of another site could, by a name that it lets point here."""
VIEW = "trnflow"
"""The saved view of an experiment's runs that its page opens with; the follower makes it (`saved_view`)."""


def tracking_address(home: Path, written: str | None, folder: Path = Path()) -> str:
    """Return MLflow's address with its secrets: `written`, else MLFLOW_TRACKING_URI, else `mlflow.db` in `home`. written:
    `tracking.uri` of a recipe; folder: what a relative path in it is joined to. Raises ConfigError if it names a variable
    that is not set."""
    if written:
        return located_database(fill_address(written, "tracking.uri"), folder.absolute())
    # a later follower may run in another working directory
    return located_database(os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home / 'mlflow.db'}", Path.cwd())


def destination(home: Path, written: str | None, folder: Path, experiment: str) -> Meta:
    """Return {experiment, uri, artifacts} as the event `run_begun` has them: the address without secrets, and where a new
    experiment stores files (None: the server says). Arguments and errors are those of `tracking_address`."""
    address = tracking_address(home, written, folder)
    artifacts = (home / "mlartifacts").resolve().as_uri() if is_database(address) else None
    return {"experiment": experiment, "uri": _recorded(address, written), "artifacts": artifacts}


def tracking_page(home: Path, written: str | None, folder: Path, experiment: str) -> str:
    """Return the page with an experiment's runs, or with all experiments before the first upload; of a local database
    with the command that serves it. Arguments and errors are those of `tracking_address`."""
    address = tracking_address(home, written, folder)
    is_server = address.startswith("http")
    base = str(hide_secrets(address)) if is_server else LOCAL_PAGE
    page, file = f"{base.rstrip('/')}/#/experiments", _id_file(home, _recorded(address, written), experiment)
    if file.exists():
        page = f"{page}/{file.read_text(encoding='utf-8')}/runs?workflowType=machine_learning&viewStateShareKey={VIEW}"
    if is_server:
        return page
    # two processes: by default MLflow starts fifteen (2 GB), and answers to names such as 10.evil.example
    command = (
        f"MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false mlflow ui --host 127.0.0.1 --workers 1 --allowed-hosts {LOCAL_HOSTS}"
    )
    return f"{page} after `{command} --backend-store-uri {hide_secrets(address)}`"


def note_experiment(home: Path, uri: str, name: str, number: str) -> None:
    """Write the id of an experiment for `tracking_page`; a failed write is ignored. uri: as events have it."""
    with contextlib.suppress(OSError):  # a full disk costs the link, not the upload
        write_whole(_id_file(home, uri, name), number)


def _recorded(address: str, written: str | None) -> str:
    """Return an address as events have it: without secrets."""
    return str(without_secrets(written if written and "${" in written else address))


def _id_file(home: Path, uri: str, name: str) -> Path:
    return home / "tracking" / "experiments" / hashlib.sha256(f"{uri}\n{name}".encode()).hexdigest()[:16]
