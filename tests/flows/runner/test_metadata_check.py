"""An artifact whose metadata its stage can't have written, under the right digest: a run makes it anew, and all else says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.flows.champions.conftest import write_tiny
from tests.helpers.command_line import InProcessShell
from trnflow.flows.finetune import STAGES
from trnflow.flows.runner.metadata_check import metadata_fault
from trnflow.tasks.keys.canonical_json import canonical
from trnflow.tasks.keys.hash_cache import sha256_bytes
from trnflow.tasks.metadata import BY_STAGE
from trnflow.tasks.store.layout import blob_name

UNTIL = ("tiny.yaml", "--direct", "--until", "pack_chunks")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> InProcessShell:
    shell = InProcessShell(write_tiny(tmp_path_factory.mktemp("tiny")))
    shell.json("run", *UNTIL)
    return shell


def forge(store: Path, stage: str, **facts: Any) -> str:
    """Put an artifact of other metadata on record for a stage, in runs, too; return the name that errors give it. None: without
    that fact."""
    record = next((store / "records" / stage).glob("*.json"))
    old = json.loads(record.read_text())["artifact"]
    manifest = json.loads((store / blob_name(old)).read_text())
    kept = {name: value for name, value in manifest["meta"].items() if name not in facts}
    manifest["meta"] = kept | {name: value for name, value in facts.items() if value is not None}
    data = canonical(manifest).encode()
    new = sha256_bytes(data)
    (store / blob_name(new)).parent.mkdir(exist_ok=True)
    (store / blob_name(new)).write_bytes(data)
    for file in (record, *(store / "runs").glob("*.json")):
        file.chmod(0o644)
        file.write_text(file.read_text().replace(old, new))
    return new[:19]


def test_each_stage_has_its_metadata_listed() -> None:
    assert set(BY_STAGE) == set(STAGES)
    assert metadata_fault("of_mine", {"task": 7}) == ""
    evaluated = {"task": "no_task", "split": "test", "metrics": {}}
    assert metadata_fault("evaluate_model", evaluated) == "its metadata.task is 'no_task', which is no task"


@pytest.mark.parametrize(
    ("stage", "facts", "wrong"),
    [
        ("pack_chunks", {"lengths": {"a": 1}}, "its metadata.lengths is an object"),
        ("pack_chunks", {"rows": None}, "its metadata has no rows"),
        ("load_data", {"columns": 7}, "its metadata.columns is 7"),
    ],
)
def test_odd_metadata_under_the_right_digest_are_named(
    ran: InProcessShell, stage: str, facts: dict[str, Any], wrong: str
) -> None:
    store = ran.folder / ".trnflow/store"
    named = f"artifact {forge(store, stage, **facts)}"
    step = next(step for step in ran.json("plan", "tiny.yaml")["stages"] if step["stage"] == stage)
    assert step["action"] == "run" and f"{named} is forged, or of another version: {wrong}" in step["why"]
    assert wrong in ran("verify").stdout
    error = ran.error("report", "last", code=1)
    assert f"{named} of {stage}" in error and wrong in error and f"--force {stage}" in error
    done = {step["stage"]: step["action"] for step in ran.json("run", *UNTIL)["stages"]}
    assert done[stage] == "ran" and set(done.values()) <= {"hit", "ran"}
    assert ran("verify").returncode == 0
