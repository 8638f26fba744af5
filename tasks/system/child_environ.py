"""The environment of stages and of processes that open data or models, none of which calls Prefect."""

from __future__ import annotations

import os

LOGINS = ("PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_KEY")
"""The variables with which a process may log in to Prefect's server, and so run commands through a worker."""


def inherited_environ() -> dict[str, str]:
    """Return this process's variables without LOGINS."""
    return {name: value for name, value in os.environ.items() if name not in LOGINS}
