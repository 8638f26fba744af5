"""Run the systemd units of `services/` as a person's machine would, without systemd: their commands, environment and files."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.conftest import PROJECT

SERVICES = PROJECT / "services"
INSTALLED = "/opt/trnflow"
"""Where the units expect the checkout with its virtual environment."""


def entries(unit: str) -> list[tuple[str, str]]:
    """Return the lines `Name=value` of a unit, such as `trnflow-worker`, in their order."""
    lines = (SERVICES / f"{unit}.service").read_text().splitlines()
    return [(name, value) for name, sign, value in (line.partition("=") for line in lines) if sign and name[0] != "#"]


def environment(unit: str) -> dict[str, str]:
    words = [word for name, value in entries(unit) if name == "Environment" for word in shlex.split(value)]
    return {word.partition("=")[0]: word.partition("=")[2] for word in words}


def file_of(unit: str) -> Path:
    (named,) = (value for name, value in entries(unit) if name == "EnvironmentFile")
    return SERVICES / Path(named).name


def settings_of(file: Path) -> dict[str, str]:
    lines = [line.strip() for line in file.read_text().splitlines()]
    pairs = [line.partition("=") for line in lines if line and line[0] not in "#;"]
    return {name: value for name, _, value in pairs}


def start_unit(
    unit: str, folder: Path, log: Path, filled: Mapping[str, str], base: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start the command of a unit in a session of its own.

    Args:
        folder: Its working folder, in place of the unit's.
        base: The environment to which the unit adds.
        log: The file to which its output is added.
        filled: Values of its variables on this machine; each must be one that the unit or its file names.
    """
    named = {**environment(unit), **settings_of(file_of(unit))}
    unknown = filled.keys() - named.keys() - {"AWS_ENDPOINT_URL"}
    assert not unknown, f"{unit} and its file name no {', '.join(sorted(unknown))}"
    (command,) = (value for name, value in entries(unit) if name == "ExecStart")
    program, *arguments = shlex.split(command)
    script = Path(sys.executable).parent / Path(program.removeprefix(f"{INSTALLED}/.venv/bin/")).name
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, str(script), *arguments], cwd=folder, env={**base, **named, **filled},
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
