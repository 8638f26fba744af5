"""7. Damaged checkpoints, and a full disk: training goes on from what is sound, says so, and ends in the same bits."""

from __future__ import annotations

import json
from pathlib import Path

from tests.acceptance.test_07_stopped_training import (
    PARTIAL,
    SHORT,
    UNTRACKED,
    check_end,
    committed,
    finished,
    killed_at,
    start,
    undisturbed,  # noqa: F401 - a fixture
    undisturbed_60,  # noqa: F401 - a fixture
)
from tests.helpers.small_disk import fill, small_disk
from tests.helpers.waiting import wait_for

SHARD = "shard-00000.safetensors"


def changed(file: Path, data: bytes) -> None:
    file.chmod(0o644)
    file.write_bytes(data)


def test_each_kind_of_damage_is_found_and_the_newest_sound_checkpoint_is_used(
    tmp_path: Path,
    undisturbed_60: str,  # noqa: F811
) -> None:
    seldom = ("train.checkpoint_every=8", "train.keep_checkpoints=9")
    killed_at(tmp_path, f"{PARTIAL}.commit:after:6", SHORT, UNTRACKED, *seldom)
    assert committed(tmp_path) == [8, 16, 24, 32, 40, 48]
    (key,) = (tmp_path / "home/store/partial").iterdir()
    at = {step: key / f"step-{step:09d}" for step in committed(tmp_path)}
    (at[48] / SHARD).unlink()
    data = (at[40] / SHARD).read_bytes()
    changed(at[40] / SHARD, data[: len(data) // 2])
    data = (at[32] / SHARD).read_bytes()
    changed(at[32] / SHARD, data[:-8] + bytes([data[-8] ^ 1]) + data[-7:])
    (at[24] / "index.json").unlink()
    text = (at[16] / "index.json").read_bytes()
    changed(at[16] / "index.json", text[: len(text) // 2])

    artifact, said = finished(tmp_path, SHORT, UNTRACKED, *seldom)
    told = {48: f"{SHARD} is gone", 40: SHARD, 32: SHARD, 24: "index.json is gone", 16: "index.json"}
    for step, what in told.items():
        assert (
            f"the state of step {step} is damaged ({what}): it is in quarantine, and the one before it is used" in said
        )
    assert "resumes at step 8" in said
    assert artifact == undisturbed_60
    check_end(tmp_path, SHORT)


def test_a_disk_that_is_full_for_a_while_costs_checkpoints_and_no_bit(
    tmp_path: Path,
    undisturbed: str,  # noqa: F811
) -> None:
    with small_disk(tmp_path / "home/store/partial", 2 << 20) as disk:
        process = start(tmp_path, UNTRACKED)
        assert process.stderr
        wait_for(lambda: committed(tmp_path) or process.poll() is not None)
        ballast = fill(disk)
        said = ""
        while "could not be saved" not in said:
            line = process.stderr.readline()
            assert line, said
            said += line
        assert "No space left on device" in said and "Training goes on" in said
        kept = committed(tmp_path)
        assert f"it goes on from step {kept[-1]}" in said
        ballast.unlink()
        wait_for(lambda: committed(tmp_path) != kept or process.poll() is not None)
        out, err = process.communicate()
        assert process.returncode == 0, err
        assert json.loads(out)["stages"][-1]["artifact"] == undisturbed
        check_end(tmp_path)
