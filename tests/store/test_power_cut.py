"""What a store has acknowledged is on the disk: bytes are synced before a name makes them count."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.disk_calls import Call, disk_calls

SYNCED = Call("sync", "*")
WRITES = """
import sys
from pathlib import Path
from tests.helpers.stores import new_store, record_of
folder = Path(sys.argv[1])
store = new_store(folder)
(folder / "out").mkdir()
(folder / "out/a.txt").write_text("alpha")
artifact = store.ingest(folder / "out", "texts", {})
store.publish(record_of(artifact.digest))
store.write_run("r", {"stages": []})
(folder / "state").mkdir()
(folder / "state/weights").write_text("1 2 3")
store.partial("e" * 64).commit(5, folder / "state")
"""


def test_all_bytes_are_synced_before_a_name_makes_them_count(tmp_path: Path) -> None:
    calls = disk_calls(WRITES, tmp_path, tmp_path)
    numbers = range(len(calls) - 1, -1, -1)  # of two calls with one name the first counts: FORMAT.json is tried twice
    named = {calls[number].name.partition("/store/")[2]: number for number in numbers if calls[number].name}
    documents = [name for name in named if name.endswith((".json", "COMMIT"))]
    assert sorted(name.split("/")[0] for name in documents) == ["FORMAT.json", "partial", "records", "runs"]
    for name in documents:
        folder = Call("sync", str(Path(calls[named[name]].name).parent))
        assert folder in calls[named[name] :], (
            f"{name} is acknowledged before its folder, which has the name, is synced"
        )
        assert Call("sync", calls[named[name]].path) in calls[: named[name]], (
            f"{name} is named before its bytes are synced"
        )
    record, commit = (
        next(named[name] for name in documents if name.startswith(room)) for room in ("records", "partial")
    )
    blobs = max(number for name, number in named.items() if name.startswith("blobs"))
    assert SYNCED in calls[blobs:record], "a record stands before the blobs it names are synced"
    state = next(number for name, number in named.items() if name.endswith("step-000000005"))
    assert SYNCED in calls[state:commit], "COMMIT stands before the files of its state are synced"
