"""Link to the page with an MLflow experiment's runs.

The address holds the experiment's id, which only MLflow knows: the uploader writes it to
`<home>/tracking/experiments/`, so that printing a link asks no server.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from trnflow.tasks.system.whole_file import write_whole


def note_experiment(home: Path, uri: str, name: str, number: str) -> None:
    """Write the id of an experiment for `runs_page`; a failed write is ignored."""
    with contextlib.suppress(OSError):  # a full disk costs the link, not the upload
        write_whole(_file(home, uri, name), number)


def runs_page(base: str, home: Path, uri: str, name: str) -> str:
    """Return the page with an experiment's runs, or with all experiments before the first upload. base: MLflow's
    page."""
    file = _file(home, uri, name)
    page = f"{base.rstrip('/')}/#/experiments"
    if not file.exists():
        return page
    return f"{page}/{file.read_text(encoding='utf-8')}/runs?workflowType=machine_learning"


def _file(home: Path, uri: str, name: str) -> Path:
    known = hashlib.sha256(f"{uri}\n{name}".encode()).hexdigest()[:16]
    return home / "tracking" / "experiments" / known
