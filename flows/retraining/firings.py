"""Firings of retrains that leave no entry in the ledger: `<home>/firings/<recipe>.jsonl`, a line each, of this machine."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TypedDict, cast

from trnflow.tasks.store.ledger.entries import quoted_name
from trnflow.tasks.system.clock import now
from trnflow.tasks.system.json_objects import misfit, parsed
from trnflow.tasks.system.private_files import make_home
from trnflow.tasks.system.redaction import scrub
from trnflow.tasks.system.whole_file import write_whole

KEPT_BYTES = 4 << 20
"""A file that grows larger loses its older half: about 10,000 firings."""


def note_firing(home: Path, recipe: str, outcome: str, why: str, *, run: str | None = None, root: str = "") -> None:
    """Add a firing. root: of the store, "" if it was not known."""
    line = {"created": now(), "outcome": outcome, "why": scrub(why), "run": run, "store": scrub(root)}
    file = _file(home, recipe)
    with contextlib.suppress(OSError):  # a full disk ends no retrain that did nothing
        make_home(home)
        file.parent.mkdir(exist_ok=True)
        if file.exists() and file.stat().st_size > KEPT_BYTES:
            lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
            write_whole(file, "".join(lines[len(lines) // 2 :]))
        with file.open("a", encoding="utf-8") as handle:
            handle.write(f"{json.dumps(line)}\n")


class Firing(TypedDict):
    """How a retrain ended that left no entry in the ledger."""

    created: str
    outcome: str
    why: str
    run: str | None


def read_firings(home: Path, recipe: str, root: str) -> list[Firing]:
    """Return the firings that `note_firing` added, the newest first. root: of the store."""
    file = _file(home, recipe)
    lines = file.read_bytes().splitlines() if file.exists() else []
    firings = [firing for line in reversed(lines) if (firing := parsed(line)) and not misfit(firing, Firing)]
    return [cast(Firing, firing) for firing in firings if firing.pop("store", "") in ("", scrub(root))]


def _file(home: Path, recipe: str) -> Path:
    return home / "firings" / f"{quoted_name(recipe)}.jsonl"
