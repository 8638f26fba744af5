"""Ledgers as their files say, for tests that read a store without the project's code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def entries(store: Path, recipe: str) -> list[dict[str, Any]]:
    """The entries of a recipe's ledger in a local store, the newest first."""
    files = sorted((store / "roots/ledger" / recipe).glob("*.json"), key=lambda file: -int(file.stem))
    return [json.loads(file.read_text()) for file in files]


def titles(ledger: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [entry for entry in ledger if entry["number"] and entry["outcome"] != "frozen"]
