"""What the last `trnflow verify` of a store found on this machine: `<home>/verified/<root>.json`."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TypedDict

from trnflow.tasks.store.ledger.entries import quoted_name
from trnflow.tasks.store.verify import Verified
from trnflow.tasks.system.clock import now
from trnflow.tasks.system.redaction import scrub
from trnflow.tasks.system.whole_file import write_whole


def note_verified(home: Path, root: str, result: Verified) -> None:
    """Write down how many files are damaged and were not repaired."""
    damaged = sum(not problem.repaired for problem in result.problems)
    with contextlib.suppress(OSError):  # a full disk
        write_whole(_file(home, root), json.dumps({"created": now(), "damaged": damaged}))


class LastVerified(TypedDict):
    """created: None if the store was never verified on this machine. damaged: files."""

    created: str | None
    damaged: int | None


def last_verified(home: Path, root: str) -> LastVerified:
    """Return what the last verify of a store found."""
    with contextlib.suppress(OSError, ValueError):
        document = json.loads(_file(home, root).read_text(encoding="utf-8"))
        return {"created": str(document["created"]), "damaged": int(document["damaged"])}
    return {"created": None, "damaged": None}


def _file(home: Path, root: str) -> Path:
    return home / "verified" / f"{quoted_name(scrub(root))}.json"
