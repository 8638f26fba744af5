"""Find the address of Prefect's API."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

URL_VARIABLE = "PREFECT_API_URL"


def api_url(home: Path) -> str | None:
    """Return the configured URL of Prefect's API, else that of the home's last local server, else None."""
    return configured_url() or recorded_server(home).get("url")


def configured_url() -> str | None:
    """Return the URL of Prefect's API from the places where Prefect looks, in its order, or None."""
    tables = (
        os.environ.get(URL_VARIABLE),
        _dotenv().get(URL_VARIABLE),
        _toml(Path("prefect.toml")).get("api", {}).get("url"),
        _pyproject().get("api", {}).get("url"),
        _active_profile().get(URL_VARIABLE),
    )
    return next((str(url) for url in tables if url), None)


def recorded_server(home: Path) -> dict[str, Any]:
    """Return `<home>/prefect/server.json`, the record of the last local server, running or not; {} without one.

    Its fields: "url" of the API, "page", "port", "pid", "process" (a `Process.tag`), "started", "log", "stays" (until
    `trnflow down`).
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
