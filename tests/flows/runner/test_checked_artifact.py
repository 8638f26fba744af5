"""A stage's artifact is taken only with metadata that the stage writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.stores import new_store
from trnflow.flows.runner.metadata_check import checked_artifact
from trnflow.tasks.errors import StoreError


def test_metadata_is_held_against_what_its_stage_writes_whatever_the_artifact_s_kind(tmp_path: Path) -> None:
    store, made = new_store(tmp_path), tmp_path / "made"
    made.mkdir()
    (made / "rows").write_text("a")
    forged = store.ingest(made, "rows", {"columns": 7})
    with pytest.raises(
        StoreError, match=r"of load_data in .* is forged, or of another version: its metadata"
    ) as caught:
        checked_artifact(store, "load_data", forged.digest)
    assert "--force load_data" in caught.value.fix
    assert checked_artifact(store, "of_mine", forged.digest).digest == forged.digest
