"""Which runs began on this machine, and in which store, by the first line of each event log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from trnflow.tasks.events.retention import FILE, run_folder, written_runs
from trnflow.tasks.sources.paths import local_path
from trnflow.tasks.system.json_objects import parsed
from trnflow.tasks.system.redaction import MASK


class BegunRun(NamedTuple):
    """A run of this machine. store: the root of its store."""

    run: str
    recipe: str
    store: str


def begun_runs(home: Path) -> Iterator[BegunRun]:
    """Yield the runs with a log in a home, newest first; none whose log is damaged, whose store's address was hidden, or whose
    store's folder is gone, as a trial's may be."""
    for run in sorted(written_runs(home), reverse=True):
        with contextlib.suppress(OSError), (run_folder(home, run) / FILE).open("rb") as handle:
            begun = parsed(handle.readline()) or {}
            recipe, store = begun.get("recipe"), begun.get("store")
            if isinstance(recipe, str) and isinstance(store, str) and store and MASK not in store:
                folder = local_path(store)
                if folder is None or Path(folder).expanduser().exists():
                    yield BegunRun(run, recipe, store)
