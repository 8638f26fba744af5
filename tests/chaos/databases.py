"""A PostgreSQL server with the databases of Prefect and MLflow, where a house is asked to use one."""

from __future__ import annotations

import sys

from tests.helpers.postgres import Postgres, programs


def prepared() -> Postgres:
    """Start a PostgreSQL server with the empty databases `prefect` and `mlflow`; exit where PostgreSQL is not installed."""
    if programs() is None:
        sys.exit("--postgres needs PostgreSQL (Debian: apt-get install postgresql)")
    database = Postgres()
    database.create("prefect", "mlflow")
    return database


def environment(database: Postgres) -> dict[str, str]:
    """Return the variables by which a house's local server and MLflow use these databases."""
    return {
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": database.url("prefect", "postgresql+asyncpg"),
        "MLFLOW_TRACKING_URI": database.url("mlflow"),
    }
