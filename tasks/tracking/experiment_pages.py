"""Make the link to the page of an MLflow experiment that lists the experiment's runs.

An experiment's page opens on "Traces" unless the address names the runs. The address holds the experiment's id, which
only MLflow knows. So that printing a link asks no server, the process that uploads runs to MLflow writes the id to
`<home>/tracking/experiments/` (home: the folder of local state, TRNFLOW_HOME).
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from trnflow.tasks.system.whole_file import write_whole


def note_experiment(home: Path, uri: str, name: str, number: str) -> None:
    """Write the id of an MLflow experiment to a file in `<home>/tracking/experiments/`, from which `runs_page` reads
    the id. A failed write is ignored.

    home: the folder of local state (TRNFLOW_HOME); uri: the MLflow server's address without secrets;
    name, number: the experiment's name and id."""
    with contextlib.suppress(OSError):  # a full disk costs the link, not the upload
        write_whole(_file(home, uri, name), number)


def runs_page(base: str, home: Path, uri: str, name: str) -> str:
    """Return the address of MLflow's page with the runs of an experiment, or of the page with all experiments as long
    as no run was uploaded from this home. base: the address of MLflow's page; home: the folder of local state
    (TRNFLOW_HOME); uri: the MLflow server's address without secrets; name: the experiment's name."""
    file = _file(home, uri, name)
    page = f"{base.rstrip('/')}/#/experiments"
    if not file.exists():
        return page
    return f"{page}/{file.read_text(encoding='utf-8')}/runs?workflowType=machine_learning"


def _file(home: Path, uri: str, name: str) -> Path:
    known = hashlib.sha256(f"{uri}\n{name}".encode()).hexdigest()[:16]
    return home / "tracking" / "experiments" / known
