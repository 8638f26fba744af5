"""Whatever becomes of the newest checkpoint in a store, the newest sound one counts, and none is half there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.helpers.products import sampled
from tests.helpers.small_disk import fill, small_disk
from trnflow.tasks.errors import StoreError
from trnflow.tasks.store import Store, partial_state
from trnflow.tasks.training.checkpoint.shards import Reader, write
from trnflow.tasks.training.shared_types import TensorSlice

KEY = "e" * 64
SHARD = "shard-00001.safetensors"


def committed(store: Store, folder: Path, step: int) -> None:
    rows = [TensorSlice("w", at, (at * 100,), (200,), torch.full((100,), float(step))) for at in range(2)]
    write(folder / str(step), rows, {"step": step})
    (folder / str(step) / "deep").mkdir()
    (folder / str(step) / "deep/x").write_text("x")
    store.partial(KEY).commit(step, folder / str(step))


HARMS: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda data: None,
    "empty": lambda data: b"",
    "truncated": lambda data: data[:-1],
    "half": lambda data: data[: len(data) // 2],
    "flipped": lambda data: data[:-3] + bytes([data[-3] ^ 1]) + data[-2:],
    "longer": lambda data: data + b" ",
}


@sampled("root, file, harm", ["s3", "local", "memory"], [SHARD, "index.json", "COMMIT"], [*HARMS], indirect=["root"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(store: Store, tmp_path: Path, file: str, harm: str) -> None:
    for step in (5, 10, 15):
        committed(store, tmp_path, step)
    name = f"partial/{KEY}/step-000000015/{file}"
    changed = HARMS[harm](store.backend.read(name))
    store.backend.remove(name)
    if changed is not None:
        store.backend.replace(name, changed)
    said: list[str] = []
    found = store.partial(KEY).newest(said.append)
    if (file, harm) == ("COMMIT", "longer"):
        assert found is not None and found[0] == 15  # white space: as good as it was
        return
    assert found is not None and found[0] == 10
    assert Reader(found[1]).tensor("w").unique().tolist() == [10.0] and (found[1] / "deep/x").read_text() == "x"
    if (file, harm) != ("COMMIT", "missing"):  # which is how it looks before it is whole
        why = "COMMIT can't be read" if file == "COMMIT" else f"{file} is gone" if harm == "missing" else file
        assert (file, harm) == (
            "COMMIT",
            "flipped",
        ) or f"is damaged ({why}): it is in quarantine, and the one before it is used" in said[0]
        assert store.backend.names("quarantine")
    assert store.partial(KEY).steps() == [5, 10]
    assert store.partial(KEY).sound(5, said.append) and store.partial(KEY).sound(15, said.append) is None
    committed(store, tmp_path, 15)
    assert store.partial(KEY).newest(pytest.fail) is not None and store.partial(KEY).steps() == [5, 10, 15]


def test_when_all_are_damaged_it_says_so(store: Store, tmp_path: Path) -> None:
    committed(store, tmp_path, 5)
    store.backend.replace(f"partial/{KEY}/step-000000005/index.json", b"{}")
    said: list[str] = []
    assert store.partial(KEY).newest(said.append) is None
    assert said == ["the state of step 5 is damaged (index.json): it is in quarantine, and there is none before it"]


def test_what_killed_writers_left_goes_when_somebody_goes_on(store: Store, tmp_path: Path) -> None:
    for step in (5, 10):
        committed(store, tmp_path, step)
    store.backend.replace(f"partial/{KEY}/step-000000015/{SHARD}", b"half")  # before its COMMIT
    if store.backend.local is not None:
        store.backend.replace(f"partial/{KEY}/.0123/{SHARD}", b"half")  # before it had its name
    assert store.partial(KEY).steps() == [5, 10]  # who only looks, takes nothing away
    assert f"partial/{KEY}/step-000000015/{SHARD}" in store.backend.names(f"partial/{KEY}")
    found = store.partial(KEY).newest(print)
    assert found is not None and found[0] == 10
    left = {name.split("/")[2] for name in store.backend.names(f"partial/{KEY}")}
    assert left == {"step-000000005", "step-000000010"}


def test_pruning_leaves_the_newest_and_the_protected(store: Store, tmp_path: Path) -> None:
    partial = store.partial(KEY)
    for step in (1, 2, 3, 4, 5):
        committed(store, tmp_path, step)
    partial.prune(9)  # more than there are
    assert partial.steps() == [1, 2, 3, 4, 5]
    partial.prune(2, protect=[1, 4, 99])
    assert partial.steps() == [1, 4, 5]
    partial.prune(1)
    assert partial.steps() == [5]
    partial.prune(0, protect=[5])  # the stage is done: nothing is gone on from
    assert partial.steps() == [] and partial.newest(pytest.fail) is None and not store.backend.names(f"partial/{KEY}")


def test_what_comes_after_a_step_can_be_given_up(store: Store, tmp_path: Path) -> None:
    for step in (5, 10, 15):
        committed(store, tmp_path, step)
    found = store.partial(KEY).newest(print, upto=12)
    assert found is not None and found[0] == 10
    assert store.partial(KEY).steps() == [5, 10]
    assert not any("step-000000015" in name for name in store.backend.names("partial"))


@pytest.mark.parametrize("leave", [0, 1 << 14, 1 << 17])
def test_a_full_disk_leaves_what_there_was(tmp_path: Path, leave: int) -> None:
    """leave: room for nothing, for a folder, for half a shard."""
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        partial = partial_state(str(disk / "store"), tmp_path / "home", KEY)
        for step in (1, 2):
            folder = tmp_path / str(step)
            write(folder, [TensorSlice("w", 0, (0,), (50_000,), torch.full((50_000,), float(step)))], {})
            if step == 2:
                fill(disk, leave)
                with pytest.raises(StoreError, match="No space left"):
                    partial.commit(step, folder)
                assert folder.exists()
            else:
                partial.commit(step, folder)
        assert partial.steps() == [1]
        assert [file.name for file in (disk / "store/partial" / KEY).iterdir()] == ["step-000000001"]
        marks = json.loads((disk / "store/partial" / KEY / "step-000000001/COMMIT").read_text())
        assert set(marks) == {"index.json", "shard-00000.safetensors"}
        (disk / "ballast").unlink()
        partial.commit(2, tmp_path / "2")
        assert partial.newest(print) is not None and partial.steps() == [1, 2]
