"""A stage's artifact is taken only with metadata that the stage writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.stores import new_store
from trnflow.flows.runner.metadata_check import checked_artifact
from trnflow.flows.runner.stored import check_record
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


def test_a_result_of_which_any_file_is_lost_is_made_again(tmp_path: Path) -> None:
    store, made = new_store(tmp_path), tmp_path / "made"
    made.mkdir()
    for name in ("a", "b", "c"):
        (made / name).write_text(name)
    artifact = store.ingest(made, "words", {})
    record: Any = {"stage": "of_mine", "artifact": artifact.digest}
    assert check_record(store, record, "words", set()).artifact == artifact
    for file in artifact.files:
        found = check_record(store, record, "words", {file.digest})
        assert found.artifact is None and f"the blob of {file.path} " in found.why
    assert check_record(store, record, "other", set()).artifact is None
