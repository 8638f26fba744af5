"""Addresses of databases behind SQLAlchemy, and their errors."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trnflow.tasks.errors import ConfigError
from trnflow.tasks.system.redaction import fill_variables

DIALECTS = ("sqlite", "postgresql", "mysql", "mssql")
"""Databases that MLflow takes as a tracking URI."""
EXTRAS = {"psycopg2": "postgres"}
"""{driver's module: extra of trnflow that installs it}"""

_PASSWORD = re.compile(r"^(?!https?:)[^:]+://[^:/@?#]*:([^@]*)@")
_RESERVED = re.compile(r"[@/:?#]")
"""Characters that end a password unless percent-encoded."""


def fill_address(text: str, setting: str) -> str:
    """Return an address with its `${NAME}` filled in.

    Raises:
        ConfigError: A variable is not set, or a password holds a character of _RESERVED.
    """
    filled = fill_variables(text, setting)
    written = _PASSWORD.match(text)
    if written and _RESERVED.search(fill_variables(written[1], setting)):
        raise ConfigError(
            f"{setting}: the database's password has a character of @ / : ? # that is not percent-encoded",
            "percent-encode it, also in the environment variable: p%40ss for p@ss",
        )
    return filled


def is_database(uri: str) -> bool:
    """Return whether an address is a database's, by its scheme."""
    return uri.partition("://")[0].partition("+")[0] in DIALECTS


def missing_driver(error: BaseException) -> str:
    """Return the command that installs the driver whose absence caused `error`, or ""."""
    modules = (cause.name or "" for cause in _causes(error) if isinstance(cause, ImportError))
    extras = (EXTRAS.get(module.partition(".")[0]) for module in modules)
    return next((f"pip install 'trnflow[{extra}]'" for extra in extras if extra), "")


def reason(error: BaseException) -> str:
    """Return in one line why a database failed."""
    # SQLAlchemy's own message may only report a failed rollback
    drivers = [message for cause in _causes(error) if (message := getattr(cause, "orig", None)) is not None]
    text = str(drivers[-1] if drivers else error.__cause__ or error)
    return " ".join(text.strip().split("\n")[0].split())


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__
