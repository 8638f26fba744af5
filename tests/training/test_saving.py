"""Checkpoints are written beside training: one at a time, of a copy, and a disk that is full costs that checkpoint alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.errors import ProcessFailed, StoreError
from tasks.stage import Partial, Workdir
from tasks.store import partial_state
from tasks.training.checkpoint import Reader
from tasks.training.engine import Box
from tasks.training.meeting import Meeting
from tasks.training.plan import Mesh
from tasks.training.ranks import ALONE, World
from tasks.training.saving import Saver
from tests.small_disk import fill, small_disk
from tests.training.run_stage import FolderPartial

MIB = 1 << 20


def boxes(value: float, device: int = 0, ranks: int = 1, size: int = 1000) -> list[Box]:
    """A tensor's rows of one of several ranks."""
    return [Box("w", device, (device * size,), (ranks * size,), torch.full((size,), value))]


def saver(scratch: Path, states: Partial, world: World = ALONE, said: Callable[..., Any] = print, **more: Any) -> Saver:
    scratch.mkdir(parents=True, exist_ok=True)
    options = {"keep": 2, "timeout_seconds": 30, "kept": None, **more}
    return Saver(Workdir(scratch, scratch, lambda event: said(event["warn"]), states), world, **options)


class Slow(FolderPartial):
    """Takes a checkpoint once it is told to."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.go, self.asked = threading.Event(), list[int]()

    def commit(self, step: int, folder: Path, digests: Mapping[str, str] | None = None) -> None:
        self.asked.append(step)
        assert self.go.wait(30)
        super().commit(step, folder, digests)


def test_training_goes_on_while_one_checkpoint_is_written_and_the_next_waits(tmp_path: Path) -> None:
    states = Slow(tmp_path / "partial")
    with saver(tmp_path / "scratch", states) as mine, ThreadPoolExecutor(1) as training:
        mine.save(1, boxes(1.0), {})  # returns, though nothing is kept
        assert states.steps() == []
        second = training.submit(mine.save, 2, boxes(2.0), {})
        assert not second.done() and states.asked in ([], [1])
        states.go.set()
        second.result()
        assert states.steps()[0] == 1  # `save` waited for it
    assert states.steps() == [1, 2] and mine.kept == 2
    assert Reader(states.root / "1").tensor("w").unique().tolist() == [1.0]
    assert mine.figures["checkpoints"] == 2 and mine.figures["checkpoint_bytes"] > 4000
    assert not list((tmp_path / "scratch").iterdir())


def test_protected_steps_stay(tmp_path: Path) -> None:
    states = partial_state(str(tmp_path / "store"), tmp_path / "home", "k" * 64)
    with saver(tmp_path / "scratch", states) as mine:
        for step in range(1, 7):
            mine.save(step, boxes(step), {}, protect=[2])
    assert states.steps() == [2, 5, 6]


class Broken(FolderPartial):
    def commit(self, step: int, folder: Path, digests: Mapping[str, str] | None = None) -> None:
        raise ValueError("a defect")


@pytest.mark.parametrize("when", ["save", "check", "end"])
def test_a_defect_of_the_writer_ends_the_training(tmp_path: Path, when: str) -> None:
    with pytest.raises(ValueError, match="a defect"), saver(tmp_path / "scratch", Broken(tmp_path)) as mine:
        mine.save(1, boxes(1.0), {})
        if when == "save":
            mine.save(2, boxes(2.0), {})
        while when == "check":
            mine.check()


def test_an_error_of_training_is_told_before_that_of_the_writer(tmp_path: Path) -> None:
    said: list[str] = []
    with (
        pytest.raises(KeyError, match="of training"),
        saver(tmp_path / "scratch", Broken(tmp_path), said=said.append) as mine,
    ):
        mine.save(1, boxes(1.0), {})
        raise KeyError("of training")
    assert said == ["besides, the last checkpoint failed: a defect"]


@pytest.mark.parametrize("full", ["scratch", "store", "both"])
def test_a_full_disk_costs_a_checkpoint_not_the_training(tmp_path: Path, full: str) -> None:
    """Wherever the room ends: among the shards, or on their way into the store."""
    said: list[str] = []
    with small_disk(tmp_path / "disk", 4 * MIB) as disk:
        scratch = disk / "scratch" if full != "store" else tmp_path / "scratch"
        root = disk / "store" if full != "scratch" else tmp_path / "store"
        states = partial_state(str(root), tmp_path / "home", "k" * 64)
        with saver(scratch, states, said=said.append) as mine:
            mine.save(10, boxes(1.0, size=MIB // 8), {})
            mine.wait()
            ballast = fill(disk, leave=MIB // 4)
            mine.save(20, boxes(2.0, size=MIB // 8), {})
            mine.wait()
            assert states.steps() == [10] and mine.kept == 10
            (text,) = said
            assert text.startswith("the checkpoint of step 20 could not be saved:") and "No space left" in text
            assert text.endswith("it goes on from step 10")
            assert not list(scratch.iterdir())
            assert {file.name for file in (root / "partial" / ("k" * 64)).iterdir()} == {"step-000000010"}
            ballast.unlink()
            mine.save(30, boxes(3.0, size=MIB // 8), {})
        assert len(said) == 1
        found = states.newest(said.append)
        assert found is not None and found[0] == 30 and len(said) == 1
        assert Reader(found[1]).tensor("w").unique().tolist() == [3.0]


def together(tmp_path: Path, states: Partial, ranks: int, said: Callable[..., Any] = print, **more: Any) -> list[Saver]:
    mesh = Mesh(ranks, 1)
    return [saver(tmp_path / "scratch", states, World(rank, mesh), said, **more) for rank in range(ranks)]


def test_ranks_write_one_checkpoint_and_wait_until_it_is_kept(tmp_path: Path) -> None:
    states = Slow(tmp_path / "partial")
    savers = together(tmp_path, states, 3)
    for rank, mine in enumerate(savers):
        mine.save(1, boxes(rank, rank, 3), {"step": 1})
    with ThreadPoolExecutor(3) as training:
        waiting = [training.submit(mine.wait) for mine in savers]
        while not states.asked:
            assert not any(each.done() for each in waiting)
        assert not any(each.done() for each in waiting)
        states.go.set()
        for each in waiting:
            each.result()
    reader = Reader(states.root / "1")
    assert reader.state == {"step": 1}
    assert reader.tensor("w").view(3, -1).unique(dim=1).tolist() == [[0.0], [1.0], [2.0]]
    assert not list((tmp_path / "scratch").iterdir())


def test_what_one_rank_can_t_write_none_keeps(tmp_path: Path) -> None:
    said: list[str] = []
    states = FolderPartial(tmp_path / "partial")
    savers = together(tmp_path, states, 2, said.append)
    (tmp_path / "scratch/step-1/shard-00001.safetensors").mkdir(parents=True)  # in the way of rank 1's
    for step in (1, 2):
        for rank, mine in enumerate(savers):
            mine.save(step, boxes(step, rank, 2), {})
        for mine in savers:
            mine.wait()
    assert states.steps() == [2] and [text[:46] for text in said] == ["the checkpoint of step 1 could not be saved: I"]
    assert Reader(states.root / "2").tensor("w").unique().tolist() == [2.0]


def test_a_rank_that_does_not_write_is_named(tmp_path: Path) -> None:
    savers = together(tmp_path, FolderPartial(tmp_path / "partial"), 3, timeout_seconds=0.2)
    for rank in (0, 1):
        savers[rank].save(1, boxes(rank, rank, 3), {})
    with pytest.raises(ProcessFailed, match="for ranks 2 to write their slices") as caught:
        savers[0].wait()
    assert "train.collective_timeout_seconds" in caught.value.fix
    with pytest.raises(ProcessFailed, match="for rank 0 to keep a checkpoint"):
        Meeting(tmp_path / "scratch", World(1, Mesh(2, 1)), 0.1).gather({}) or Meeting(
            tmp_path / "scratch", World(1, Mesh(2, 1)), 0.1
        ).wait()


def test_a_store_that_fails_is_warned_of_too(tmp_path: Path) -> None:
    class Refusing(FolderPartial):
        def commit(self, step: int, folder: Path, digests: Mapping[str, str] | None = None) -> None:
            raise StoreError("the endpoint is gone", "wait")

    said: list[str] = []
    with saver(tmp_path / "scratch", Refusing(tmp_path), said=said.append) as mine:
        mine.save(3, boxes(1.0), {})
    assert "step 3 could not be saved: the endpoint is gone" in said[0] and said[0].endswith("from the start")
