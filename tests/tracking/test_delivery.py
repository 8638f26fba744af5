"""What a run waits for, and prints, of MLflow: neither asks a server."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from tests.tracking.runs import begin, tracked
from trnflow.tasks.events import unsent_runs
from trnflow.tasks.tracking import destination, tracking_address, tracking_page
from trnflow.tasks.tracking.addresses import note_experiment

SERVER = "https://me:hunter2@mlflow.example/"


def test_a_cancelled_run_ends_soon_though_the_server_is_silent_and_says_what_was_lost(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(KeyboardInterrupt),
        tracked(tmp_path, uri=f"http://127.0.0.1:{silent.getsockname()[1]}") as log,
    ):
        begin(log, "train", "k")
        log.lost += 2  # as on a full disk
        begun = time.monotonic()
        raise KeyboardInterrupt
    assert time.monotonic() - begun < 7, "whoever pressed Ctrl-C waits for the shell"
    assert unsent_runs(tmp_path) == ["r1"]
    assert log.readers[0].note.startswith("MLflow lacks 2 events that could not be written to ")


def test_the_link_hides_the_password_and_leads_to_the_runs_once_their_id_is_known(tmp_path: Path) -> None:
    assert tracking_page(tmp_path, SERVER, Path(), "tests") == "https://***@mlflow.example/#/experiments"
    uri = destination(tmp_path, SERVER, Path(), "tests")["uri"]
    assert "hunter2" not in uri
    note_experiment(tmp_path, uri, "tests", "42")
    page = tracking_page(tmp_path, SERVER, Path(), "tests")
    assert page.startswith("https://***@mlflow.example/#/experiments/42/runs?")
    assert "hunter2" not in "".join(file.read_text() for file in tmp_path.rglob("*") if file.is_file())
    database = tracking_page(tmp_path, "postgresql://me:hunter2@host/mlflow", Path(), "tests")
    assert database.endswith("--backend-store-uri postgresql://***@host/mlflow`")


def test_the_address_is_the_recipe_s_then_the_variable_s_then_the_home_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert tracking_address(tmp_path / "home", None) == f"sqlite:///{tmp_path}/home/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///here.db")
    assert tracking_address(tmp_path / "home", None) == f"sqlite:///{tmp_path}/here.db", "of the working directory"
    assert (
        tracking_address(tmp_path / "home", "sqlite:///own.db", tmp_path / "recipes")
        == f"sqlite:///{tmp_path}/recipes/own.db"
    )
