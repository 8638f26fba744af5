"""Wait for what event logs say of runs that other processes make."""

from __future__ import annotations

from pathlib import Path


def runs_with_metrics(home: Path, stage: str = "train", after: float = 0.0) -> set[Path]:
    """The event logs in which a stage has reported metrics, of those written later than `after`."""
    logs = (file for file in (home / "runs").glob("*/events.jsonl") if file.stat().st_mtime > after)
    return {file for file in logs if f'"event": "metrics", "stage": "{stage}"' in file.read_text(errors="replace")}


def process_logs(home: Path, stage: str) -> set[Path]:
    """What the processes of a stage printed, a file for each attempt."""
    return set((home / "runs").glob(f"*/*-{stage}-*.log"))
