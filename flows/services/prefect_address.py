"""Find the address of Prefect's API: the one that the user configured, else that of this project's local server."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

NAME = "PREFECT_API_URL"


def api_url(home: Path) -> str | None:
    """Return the URL of Prefect's API: the one that the user configured, else that of the local server of `home` when
    it was last started. None when there is neither. No request is made to the server. home: the folder of local state
    (TRNFLOW_HOME)."""
    return configured_url() or recorded_server(home).get("url")


def configured_url() -> str | None:
    """Return the URL of Prefect's API from the user's settings and those of the working directory; None when none is set.

    The same places are read in the same order as by Prefect, whose import takes 1.5 s: the environment, `.env`,
    `prefect.toml`, `pyproject.toml`, the active profile. A file that can't be read is skipped.
    """
    tables = (
        os.environ.get(NAME),
        _dotenv().get(NAME),
        _toml(Path("prefect.toml")).get("api", {}).get("url"),
        _pyproject().get("api", {}).get("url"),
        _active_profile().get(NAME),
    )
    return next((str(url) for url in tables if url), None)


def recorded_server(home: Path) -> dict[str, Any]:
    """Return the record that the last start of a local Prefect server left in `<home>/prefect/server.json`, whether
    that server still runs or not. home: the folder of local state (TRNFLOW_HOME).

    Returns:
        "url": the address of the server's API; "page": the address of its web page; "port"; "pid": the id of its
        process; "process": a text that also tells the process from a later one with the same pid; "started": when, as
        text; "log": the path of its log; "stays": whether the server runs until `trnflow down`. {} when no server was
        ever started, and after the last server was stopped or ended by itself.
    """
    try:
        return dict(json.loads((home / "prefect" / "server.json").read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _active_profile() -> dict[str, Any]:
    document = _toml(_profiles_path())
    name = os.environ.get("PREFECT_PROFILE") or document.get("active")
    return dict(document.get("profiles", {}).get(name, {}))


def _profiles_path() -> Path:
    named = (
        os.environ.get("PREFECT_PROFILES_PATH"),
        _dotenv().get("PREFECT_PROFILES_PATH"),
        _toml(Path("prefect.toml")).get("profiles_path"),
        _pyproject().get("profiles_path"),
    )
    folder = Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser()
    return Path(next((path for path in named if path), folder / "profiles.toml"))


def _pyproject() -> dict[str, Any]:
    return dict(_toml(Path("pyproject.toml")).get("tool", {}).get("prefect", {}))


def _dotenv() -> dict[str, str | None]:
    if not Path(".env").is_file():
        return {}
    from dotenv import dotenv_values

    return dotenv_values(".env")


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        return {}
