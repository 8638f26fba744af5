"""Which addresses name a database, and which extra has a driver that is lacking."""

from __future__ import annotations

import pytest

from trnflow.tasks.errors import ConfigError
from trnflow.tasks.system.databases import fill_address, is_database, missing_driver

ADDRESS = "postgresql://me:${DB_PASSWORD}@host:5432/sweeps"


@pytest.mark.parametrize("uri", ["sqlite:////a/b.db", "postgresql://host/x", "postgresql+psycopg2://me:pw@host:1/x"])
def test_a_database_is_known_by_its_scheme(uri: str) -> None:
    assert is_database(uri)


@pytest.mark.parametrize("uri", ["http://host/x", "databricks", "file:///a", "/a/postgresql", "https://postgresql/x"])
def test_a_server_and_a_folder_are_no_databases(uri: str) -> None:
    assert not is_database(uri)


def test_the_lacking_driver_is_found_below_what_it_caused() -> None:
    lacking = ModuleNotFoundError("no module", name="psycopg2.extensions")
    try:
        raise RuntimeError("can't connect") from lacking
    except RuntimeError as error:
        assert missing_driver(error) == "pip install 'trnflow[postgres]'"
    assert missing_driver(ModuleNotFoundError("no module", name="oracledb")) == ""
    assert missing_driver(RuntimeError("psycopg2")) == ""


@pytest.mark.parametrize("password", ["long@secret", "long/secret", "long:secret", "long?secret", "long#secret"])
def test_a_password_that_is_not_percent_encoded_is_refused_without_showing_it(
    password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_PASSWORD", password)
    with pytest.raises(ConfigError, match=r"^sweep.database: .*not percent-encoded") as error:
        fill_address(ADDRESS, "sweep.database")
    assert "percent-encode it" in error.value.fix
    assert "secret" not in f"{error.value} {error.value.fix} {error.value.details}"


def test_other_variables_may_have_any_character(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("DB_PASSWORD", "p%40ss"), ("AT", "host:5432/x"), ("ALL", "postgresql://me:pw@host/x")):
        monkeypatch.setenv(name, value)
    assert fill_address(ADDRESS, "tracking.uri") == "postgresql://me:p%40ss@host:5432/sweeps"
    assert fill_address("postgresql://me:${DB_PASSWORD}@${AT}", "tracking.uri") == "postgresql://me:p%40ss@host:5432/x"
    assert fill_address("${ALL}", "tracking.uri") == "postgresql://me:pw@host/x"
    assert fill_address("sqlite:///${AT}", "tracking.uri") == "sqlite:///host:5432/x"
