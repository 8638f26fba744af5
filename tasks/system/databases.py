"""Databases that MLflow and Optuna reach through SQLAlchemy: which addresses name one, and which package has a missing driver."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tasks.errors import ConfigError
from tasks.system.redaction import fill

DIALECTS = ("sqlite", "postgresql", "mysql", "mssql")
"""The databases that MLflow takes as a tracking URI."""
EXTRAS = {"psycopg2": "postgres"}
"""{module of a driver: the extra of trnflow that installs it}"""

_PASSWORD = re.compile(r"^(?!https?:)[^:]+://[^:/@?#]*:([^@]*)@")
_RESERVED = re.compile(r"[@/:?#]")
"""Characters that end the password of an address early unless they are percent-encoded."""


def fill_address(text: str, setting: str) -> str:
    """Return an address with each `${NAME}` replaced by that environment variable, as `fill` does.

    Raises ConfigError for a variable that is not set, and for a database's password with a raw `@`, `/`, `:`, `?` or `#`."""
    filled = fill(text, setting)
    written = _PASSWORD.match(text)
    if written and _RESERVED.search(fill(written[1], setting)):
        raise ConfigError(
            f"{setting}: the database's password has a character of @ / : ? # that is not percent-encoded",
            "percent-encode it, also in the environment variable: p%40ss for p@ss",
        )
    return filled


def is_database(uri: str) -> bool:
    """Return whether an address is that of a database, such as `postgresql+psycopg2://host/mlflow`, and not of a server."""
    return uri.partition("://")[0].partition("+")[0] in DIALECTS


def missing_driver(error: BaseException) -> str:
    """Return the command that installs the driver whose lack caused an error; empty when nothing is lacking that an extra of
    trnflow has."""
    modules = (cause.name or "" for cause in _causes(error) if isinstance(cause, ImportError))
    extras = (EXTRAS.get(module.partition(".")[0]) for module in modules)
    return next((f"pip install 'trnflow[{extra}]'" for extra in extras if extra), "")


def reason(error: BaseException) -> str:
    """Return in one line why a database failed: the first line of what its driver said, or of the error's cause.

    The error that SQLAlchemy raises last may only say that a transaction could not be rolled back, after its connection was
    lost."""
    drivers = [said for cause in _causes(error) if (said := getattr(cause, "orig", None)) is not None]
    told = str(drivers[-1] if drivers else error.__cause__ or error)
    return " ".join(told.strip().split("\n")[0].split())


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what caused it."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__
