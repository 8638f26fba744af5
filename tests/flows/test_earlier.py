"""A model of the store that a setting names: what is refused. What it does, tests/test_pipeline.py shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.flows.test_history import artifacts, house
from tests.flows.test_main import DATA, Shell


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    found = house(tmp_path_factory.mktemp("earlier") / "house")
    found.json("run", "mine.yaml", "--until", *DATA)
    return found


def refused(shell: Shell, name: str) -> str:
    done = shell("plan", "mine.yaml", f"train.warm_start_from={name}")
    assert done.returncode and not done.stdout
    return done.stderr


def test_what_is_no_model_is_refused(shell: Shell) -> None:
    assert "no completed run of the recipe mine made a model in this store" in refused(shell, "mine")
    assert "no completed run of the recipe nobody" in refused(shell, "nobody")
    run = next(Path(shell.folder / ".trnflow/store/runs").glob("*.json")).stem
    packed = artifacts(shell, run)["pack_chunks"]
    assert f"{packed[:19]} is of kind packed, no model" in refused(shell, packed)
    assert "there is no model sha256:0123456789ab" in refused(shell, "0123456789ab")
    assert "train.warm_start_from" in refused(shell, "sha256:" + "0" * 64)
