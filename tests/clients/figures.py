"""The largest differences that the tests of this folder measured between a client and our own PyTorch, for docs/clients.md.

TRNFLOW_MEASURE_CLIENTS=1 .venv/bin/pytest -n 0 -m slow tests/clients   # measures, and writes tests/clients/figures.json
.venv/bin/python -m tests.clients.figures                               # prints the table
"""

from __future__ import annotations

import importlib.metadata
import json
import os
from pathlib import Path

FILE = Path(__file__).with_name("figures.json")
MEASURE = "TRNFLOW_MEASURE_CLIENTS"

measured: dict[tuple[str, str, str], float] = {}
"""(program and version, what it opens, what differs) -> the largest difference of this session."""


def note(package: str, opens: str, differs: str, difference: float, client: str = "") -> None:
    """Note a difference. package: the program; opens: what it reads; differs: the quantity and its unit; client: the
    lock file that has the program's version, "" for this environment."""
    key = (f"{package} {version(package, client)}", opens, differs)
    measured[key] = max(measured.get(key, 0.0), difference)


def version(package: str, client: str) -> str:
    """The version of a package in a client's lock file or in this environment."""
    if not client:
        return importlib.metadata.version(package)
    lock = Path(__file__).with_name(f"{client}.lock").read_text()
    return dict(line.split("==") for line in lock.splitlines() if "==" in line)[package]


def write() -> None:
    """Replace the figures of the programs that were measured in FILE, if the environment asks for it."""
    if not os.environ.get(MEASURE):
        return
    programs = {(program.split()[0], opens) for program, opens, _ in measured}
    kept = [row for row in rows() if (row[0].split()[0], row[1]) not in programs]
    new = [[*key, float(f"{value:.1e}")] for key, value in measured.items()]
    FILE.write_text(json.dumps(sorted(kept + new), indent=1) + "\n")


def rows() -> list[list[str | float]]:
    """[program and version, what it opens, what differs, the largest difference] of each row of FILE."""
    found: list[list[str | float]] = json.loads(FILE.read_text()) if FILE.exists() else []
    return found


def table() -> str:
    lines = ["| program | opens | what is compared | largest difference |", "|---|---|---|---|"]
    return "\n".join([*lines, *(f"| {' | '.join(str(cell) for cell in row)} |" for row in rows())])


if __name__ == "__main__":
    print(table())
