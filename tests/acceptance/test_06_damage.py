"""6. What is damaged, wherever it lies, is found at first use, quarantined, made or fetched anew; never served, no crash loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.ending import check_ending
from tests.acceptance.toy_runs import Machine
from tests.helpers.inline_calls import inline_calls  # noqa: F401 - a fixture
from trnflow.flows.runner.plan import Step
from trnflow.tasks.errors import BlobLost, StoreError
from trnflow.tasks.events import Event, Reader, RunState
from trnflow.tasks.store import Store
from trnflow.tasks.store.layout import blob_name, record_name

HOWS = ("flip", "flip the middle", "truncate", "empty", "delete")
WHATS = ("blob", "tree", "record")
LOCALLY = [how if how in ("flip", "truncate") else pytest.param(how, marks=pytest.mark.nightly) for how in HOWS]
REMOTELY = [how if how == "flip" else pytest.param(how, marks=pytest.mark.nightly) for how in HOWS]
SIZES = "1 2 3"
pytestmark = pytest.mark.usefixtures("inline_calls")


def damaged(data: bytes, how: str) -> bytes | None:
    at = len(data) // 2 if how == "flip the middle" else 0
    flipped = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
    return {"truncate": data[:-1], "empty": b"", "delete": None}.get(how, flipped)


def damage(store: Store, name: str, how: str) -> None:
    data = damaged(store.backend.read(name), how)
    store.backend.remove(name)
    if data is not None:
        store.backend.replace(name, data)


def damage_cached(store: Store, name: str, how: str) -> None:
    path = store.cache / name
    data = damaged(path.read_bytes(), how)
    path.unlink()
    if data is not None:
        path.write_bytes(data)


def name_of(what: str, step: Step) -> str:
    assert step.artifact is not None
    if what == "record":
        return record_name(step.name, str(step.key))
    return blob_name(step.artifact.digest if what == "tree" else step.artifact.files[0].digest)


def check_heals(machine: Machine, first: Step, victim: str, *, is_there: bool) -> None:
    """Another setting of the last stage needs the bytes of `sizes`: they are made anew, and what was damaged is put aside."""
    ran = machine.run(least=2)
    assert ran.actions == {"words": "hit", "sizes": "ran", "warm_up": "hit", "count": "ran"}
    assert ran.steps["count"].metrics == {"total": 5}
    assert ran.steps["sizes"].artifact == first.artifact
    quarantined = machine.store().backend.names("quarantine")
    assert any(name.startswith(f"quarantine/{victim}.") for name in quarantined) is is_there
    check_ending(machine.store(), lambda: machine.actions(least=2))
    check_ending(machine.store(), machine.actions)


@pytest.mark.parametrize("how", LOCALLY)
@pytest.mark.parametrize("what", WHATS)
def test_damage_in_a_local_store(tmp_path: Path, what: str, how: str) -> None:
    machine = Machine(str(tmp_path / "store"), tmp_path)
    first = machine.run().steps["sizes"]
    victim = name_of(what, first)
    damage(machine.store(), victim, how)
    # a blob of another size is not even a hit: it is put aside when its bytes are made anew, over it
    is_there = how != "delete" and (what != "blob" or how.startswith("flip"))
    check_heals(machine, first, victim, is_there=is_there)


@pytest.mark.parametrize("how", REMOTELY)
@pytest.mark.parametrize("what", WHATS)
def test_damage_in_a_bucket_that_another_machine_finds(s3_root: str, tmp_path: Path, what: str, how: str) -> None:
    first = Machine(s3_root, tmp_path / "one").run().steps["sizes"]
    other = Machine(s3_root, tmp_path / "other")
    victim = name_of(what, first)
    damage(other.store(), victim, how)
    check_heals(other, first, victim, is_there=how != "delete")


@pytest.mark.parametrize("how", REMOTELY)
@pytest.mark.parametrize("remote_too", [False, True], ids=["cache", "both"])
def test_damage_in_the_cache_of_this_machine(s3_root: str, tmp_path: Path, how: str, remote_too: bool) -> None:
    machine = Machine(s3_root, tmp_path)
    first = machine.run().steps["sizes"]
    victim = name_of("blob", first)
    damage_cached(machine.store(), victim, how)
    if remote_too:
        damage(machine.store(), victim, how)
        check_heals(machine, first, victim, is_there=how != "delete")
        return
    ran = machine.run(least=2)
    assert ran.actions == {"words": "hit", "sizes": "hit", "warm_up": "hit", "count": "ran"}
    assert ran.steps["count"].metrics == {"total": 5}
    assert (machine.store().cache / victim).read_text() == SIZES
    check_ending(machine.store(), lambda: machine.actions(least=2))


def test_every_byte_of_a_record_may_flip(tmp_path: Path) -> None:
    """What is served is right or made anew, whatever byte it was; nothing crashes."""
    machine = Machine(str(tmp_path / "store"), tmp_path)
    step = machine.run().steps["sizes"]
    name = name_of("record", step)
    sound = machine.store().backend.read(name)
    for at in range(0, len(sound), 29):
        machine.store().backend.replace(name, sound[:at] + bytes([sound[at] ^ 1]) + sound[at + 1 :])
        ran = machine.run()
        assert ran.steps["sizes"].artifact == step.artifact
        assert ran.steps["count"].metrics == {"total": 6}
    check_ending(machine.store(), machine.actions)


def test_what_nobody_reads_but_its_owner_is_made_anew_after_that(root: str, tmp_path: Path) -> None:
    """The last stage's bytes are opened by `get` alone: it says what is wrong, and the next run mends it."""
    machine = Machine(root, tmp_path / "one")
    step = machine.run().steps["count"]
    assert step.artifact is not None
    damage(machine.store(), blob_name(step.artifact.files[0].digest), "flip")
    store = Machine(root, tmp_path / "other").store()
    with pytest.raises(BlobLost, match=r"total\.txt .* corrupt: quarantined") as caught:
        store.copy_files(step.artifact, tmp_path / "copy")
    assert "trnflow run" in caught.value.fix
    store.retract("count", str(step.key))  # as `get` does
    assert not (tmp_path / "copy").exists()
    assert machine.actions()["count"] == "ran"
    machine.store().copy_files(step.artifact, tmp_path / "copy")
    assert (tmp_path / "copy/total.txt").read_text() == "6"
    check_ending(machine.store(), machine.actions)


def test_a_disk_that_spoils_everything_is_an_error_and_no_endless_loop(tmp_path: Path) -> None:
    class Moths(Reader):
        critical = True

        def read(self, event: Event, state: RunState) -> None:
            if event["event"] == "stage_ended" and event["stage"] == "sizes":
                artifact = machine.store().artifact(str(event["artifact"]))
                eaten.append(blob_name(artifact.files[0].digest))
                damage(machine.store(), eaten[-1], "flip")

    eaten: list[str] = []
    machine = Machine(str(tmp_path / "store"), tmp_path)
    with pytest.raises(StoreError, match="keep turning out corrupt"):
        machine.run(0, Moths())
    assert len(eaten) == 10
    assert machine.actions()["count"] == "ran"
    check_ending(machine.store(), machine.actions)
