"""Find the address of Prefect's API."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict, cast

from trnflow.tasks.artifact import Meta

URL_VARIABLE = "PREFECT_API_URL"
CLIENT = "PREFECT_API_AUTH_STRING"
"""The variable from which Prefect's clients read a login."""
LOGGING = ("PREFECT_LOGGING_CONFIG_PATH", "PREFECT_LOGGING_SETTINGS_PATH")
"""The variables that name the file of Prefect's logging settings, which may name code to run."""


class ServerRecord(TypedDict, total=False):
    """`<home>/prefect/server.json`. url: of the API; process: a `Process.tag`; stays: until `trnflow down`; login: asked of
    clients, None of a server of an earlier version."""

    url: str
    page: str
    port: int
    pid: int
    process: str
    started: str
    log: str
    stays: bool
    login: bool


def api_url(home: Path) -> str | None:
    """Return the configured URL of Prefect's API, else that of the home's last local server, else None."""
    return configured_url() or recorded_server(home).get("url")


def configured_url() -> str | None:
    """Return the URL of Prefect's API from the places where Prefect looks, in its order, or None."""
    return _setting(URL_VARIABLE, lambda table: table.get("api", {}).get("url")) or _active_profile().get(URL_VARIABLE)


def foreign_url(home: Path) -> str | None:
    """Return the configured URL of Prefect's API, None if there is none, or if it is that of the home's own local server."""
    url = configured_url()
    return None if url == recorded_server(home).get("url") else url


def no_logging_of_this_folder() -> None:
    """Let Prefect take its logging's settings from the environment or the user's own folder alone."""
    # Prefect also reads .env, prefect.toml and pyproject.toml of the working directory, which may have come with data
    if not any(os.environ.get(name) for name in LOGGING):
        own = _profile(Path(os.environ.get("PREFECT_PROFILES_PATH") or _own_folder() / "profiles.toml"))
        file = next((own[name] for name in LOGGING if own.get(name)), _own_folder() / "logging.yml")
        os.environ.update(dict.fromkeys(LOGGING, str(file)))


def configured_login() -> str | None:
    """Return the login to Prefect's API from the places where Prefect looks, or None."""
    return _setting(CLIENT, lambda table: table.get("api", {}).get("auth_string")) or _active_profile().get(CLIENT)


def recorded_server(home: Path) -> ServerRecord:
    """Return the record of the last local server, running or not; {} without one."""
    try:
        text = (home / "prefect" / "server.json").read_text(encoding="utf-8")
        return cast(ServerRecord, dict(json.loads(text)))
    except (OSError, ValueError):
        return {}


def _active_profile() -> Meta:
    named = _setting("PREFECT_PROFILES_PATH", lambda table: table.get("profiles_path"))
    return _profile(Path(named or _own_folder() / "profiles.toml"))


def _own_folder() -> Path:
    return Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser()


def _profile(file: Path) -> Meta:
    document = _toml(file)
    profiles, name = document.get("profiles"), os.environ.get("PREFECT_PROFILE") or document.get("active")
    own = profiles.get(name) if isinstance(profiles, dict) else None
    return own if isinstance(own, dict) else {}


def _setting(variable: str, read: Callable[[Meta], str | None]) -> str | None:
    """Return a setting from the places where Prefect looks before its profiles. read: gets it from a TOML table."""
    project = _toml(Path("pyproject.toml")).get("tool", {}).get("prefect", {})
    places = (os.environ.get(variable), _dotenv().get(variable), read(_toml(Path("prefect.toml"))), read(project))
    return next((str(value) for value in places if value), None)


def _dotenv() -> dict[str, str | None]:
    if not Path(".env").is_file():
        return {}
    from dotenv import dotenv_values

    return dotenv_values(".env")


def _toml(file: Path) -> Meta:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        return {}
