"""The environment of stages and of processes that open data or models, none of which calls Prefect."""

from __future__ import annotations

from collections.abc import Mapping

LOGINS = ("PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_KEY")
"""The variables with which a process may log in to Prefect's server, and so run commands through a worker."""


def without_logins(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are none of LOGINS."""
    return {name: value for name, value in environ.items() if name not in LOGINS}
