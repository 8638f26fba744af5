"""Databases that MLflow and Optuna reach through SQLAlchemy: recognise their addresses, and explain their errors, such
as a driver (the Python package that talks to a kind of database) that is not installed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trnflow.tasks.errors import ConfigError
from trnflow.tasks.system.redaction import fill

DIALECTS = ("sqlite", "postgresql", "mysql", "mssql")
"""The databases that MLflow takes as a tracking URI."""
EXTRAS = {"psycopg2": "postgres"}
"""{module of a driver: the extra of trnflow that installs it}"""

_PASSWORD = re.compile(r"^(?!https?:)[^:]+://[^:/@?#]*:([^@]*)@")
_RESERVED = re.compile(r"[@/:?#]")
"""Characters that end the password of an address early unless they are percent-encoded."""


def fill_address(text: str, setting: str) -> str:
    """Return the address of a database or server with each `${NAME}` replaced by the value of that environment
    variable. These values count as secrets from now on: `redaction.scrub` hides them.

    text: the address as a setting has it; setting: the setting's dotted name, for errors. Raises ConfigError for a
    variable that is not set, and for a password in a database's address with an `@`, `/`, `:`, `?` or `#` that is not
    percent-encoded."""
    filled = fill(text, setting)
    written = _PASSWORD.match(text)
    if written and _RESERVED.search(fill(written[1], setting)):
        raise ConfigError(
            f"{setting}: the database's password has a character of @ / : ? # that is not percent-encoded",
            "percent-encode it, also in the environment variable: p%40ss for p@ss",
        )
    return filled


def is_database(uri: str) -> bool:
    """Return whether an address is that of an SQLite, PostgreSQL, MySQL or MS SQL database, such as
    `postgresql+psycopg2://host/mlflow`, and not that of an MLflow server or a folder. Only the scheme is looked at."""
    return uri.partition("://")[0].partition("+")[0] in DIALECTS


def missing_driver(error: BaseException) -> str:
    """Return the command that installs a missing database driver (the Python package that talks to a kind of database),
    such as `pip install 'trnflow[postgres]'`, if the driver's absence caused `error`.

    Returns "" if the error has another cause, or if no extra of trnflow (a set of optional dependencies) installs the
    driver: only psycopg2 has an extra."""
    modules = (cause.name or "" for cause in _causes(error) if isinstance(cause, ImportError))
    extras = (EXTRAS.get(module.partition(".")[0]) for module in modules)
    return next((f"pip install 'trnflow[{extra}]'" for extra in extras if extra), "")


def reason(error: BaseException) -> str:
    """Return in one line why a database failed: the first line of the message of the database driver's exception. If
    `error` has no such exception among its causes, return the first line of the message of its direct cause, or else of
    `error` itself.

    error: an exception of SQLAlchemy, MLflow or Optuna. Its own message may hide the reason: after a lost connection,
    SQLAlchemy may only report that a transaction could not be rolled back."""
    drivers = [said for cause in _causes(error) if (said := getattr(cause, "orig", None)) is not None]
    told = str(drivers[-1] if drivers else error.__cause__ or error)
    return " ".join(told.strip().split("\n")[0].split())


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what caused it."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__
