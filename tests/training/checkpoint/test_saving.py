"""Checkpoints are written beside training: one at a time, of a copy, and a disk that is full costs that checkpoint alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.small_disk import fill, small_disk
from tests.training.run_stage import FolderPartial
from trnflow.tasks.errors import ProcessFailed, StoreError
from trnflow.tasks.stage import Partial, Workdir
from trnflow.tasks.store import partial_state
from trnflow.tasks.training.checkpoint import saving
from trnflow.tasks.training.checkpoint.rank_files import RankFiles
from trnflow.tasks.training.checkpoint.saving import Saver
from trnflow.tasks.training.checkpoint.shards import Reader
from trnflow.tasks.training.partition_specs import Mesh
from trnflow.tasks.training.shared_types import TensorSlice
from trnflow.tasks.training.world import ALONE, World

MIB = 1 << 20


def slices(value: float, device: int = 0, ranks: int = 1, size: int = 1000) -> list[TensorSlice]:
    return [TensorSlice("w", device, (device * size,), (ranks * size,), torch.full((size,), value))]


def saver(scratch: Path, states: Partial, world: World = ALONE, said: Callable[..., Any] = print, **more: Any) -> Saver:
    scratch.mkdir(parents=True, exist_ok=True)
    options = {"keep": 2, "timeout_seconds": 30, "kept": None, **more}
    return Saver(Workdir(scratch, scratch, lambda event: said(event["warn"]), states), world, **options)


class Slow(FolderPartial):
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
        mine.save(1, slices(1.0), {})  # returns, though nothing is kept
        assert states.steps() == []
        second = training.submit(mine.save, 2, slices(2.0), {})
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
            mine.save(step, slices(step), {}, best=2)
    assert states.steps() == [2, 5, 6]


class Broken(FolderPartial):
    def commit(self, step: int, folder: Path, digests: Mapping[str, str] | None = None) -> None:
        raise ValueError("a defect")


@pytest.mark.parametrize("when", ["save", "check", "end"])
def test_a_defect_of_the_writer_ends_the_training(tmp_path: Path, when: str) -> None:
    with pytest.raises(ValueError, match="a defect"), saver(tmp_path / "scratch", Broken(tmp_path)) as mine:
        mine.save(1, slices(1.0), {})
        if when == "save":
            mine.save(2, slices(2.0), {})
        while when == "check":
            mine.check()


def test_an_error_of_training_is_told_before_that_of_the_writer(tmp_path: Path) -> None:
    said: list[str] = []
    with (
        pytest.raises(KeyError, match="of training"),
        saver(tmp_path / "scratch", Broken(tmp_path), said=said.append) as mine,
    ):
        mine.save(1, slices(1.0), {})
        raise KeyError("of training")
    assert said == ["the last checkpoint failed too: a defect"]


@pytest.mark.parametrize("full", ["scratch", "store", "both"])
def test_a_full_disk_costs_a_checkpoint_not_the_training(tmp_path: Path, full: str) -> None:
    """Wherever the room ends: among the shards, or on their way into the store."""
    said: list[str] = []
    with small_disk(tmp_path / "disk", 4 * MIB) as disk:
        scratch = disk / "scratch" if full != "store" else tmp_path / "scratch"
        root = disk / "store" if full != "scratch" else tmp_path / "store"
        states = partial_state(str(root), tmp_path / "home", "k" * 64)
        with saver(scratch, states, said=said.append) as mine:
            mine.save(10, slices(1.0, size=MIB // 8), {})
            mine.wait()
            ballast = fill(disk, leave=MIB // 4)
            mine.save(20, slices(2.0, size=MIB // 8), {})
            mine.wait()
            assert states.steps() == [10] and mine.kept == 10
            (text,) = said
            assert text.startswith("the checkpoint of step 20 could not be saved:") and "No space left" in text
            assert text.endswith("it goes on from step 10")
            assert not list(scratch.iterdir())
            assert {file.name for file in (root / "partial" / ("k" * 64)).iterdir()} == {"step-000000010"}
            ballast.unlink()
            mine.save(30, slices(3.0, size=MIB // 8), {})
        assert len(said) == 1
        found = states.newest(said.append)
        assert found is not None and found[0] == 30 and len(said) == 1
        assert Reader(found[1]).tensor("w").unique().tolist() == [3.0]


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_best_is_written_again_before_any_later_checkpoint(tmp_path: Path, ranks: int) -> None:
    """Its copy stays on the host of each rank until it is kept, and nothing after it is kept before."""
    said: list[str] = []
    with small_disk(tmp_path / "disk", 4 * MIB) as disk, ThreadPoolExecutor(ranks) as training:
        states = partial_state(str(disk / "store"), tmp_path / "home", "k" * 64)
        savers = together(tmp_path, states, ranks, said.append)

        def save(step: int, best: int) -> None:
            each = [
                training.submit(mine.save, step, slices(step, rank, ranks, MIB // 8 // ranks), {"step": step}, best)
                for rank, mine in enumerate(savers)
            ]
            assert [future.result() for future in each] == [None] * ranks

        def finish(best: int) -> list[BaseException | None]:
            return [future.exception() for future in [training.submit(mine.finish, best) for mine in savers]]

        save(10, best=10)
        assert finish(10) == [None] * ranks
        ballast = fill(disk, leave=MIB // 4)
        save(20, best=20)
        save(30, best=20)
        assert states.steps() == [10] and savers[0].kept == 10
        assert [text.split(" could")[0] for text in said] == ["the checkpoint of step 20"] * 2
        assert (
            "written again before the next one; if it is stopped before that is kept, it goes on from step 10"
            in said[0]
        )
        for error in finish(20):
            assert isinstance(error, StoreError)
        error = finish(20)[0]
        assert isinstance(error, StoreError) and "step 20, whose evaluation was the best, could not be kept" in str(
            error
        )
        assert "No space left" in error.message and "it goes on from step 10" in error.fix
        assert finish(0) == [None] * ranks, "the last step's weights need no checkpoint"

        ballast.unlink()
        save(40, best=20)
        assert finish(20) == [None] * ranks
        assert states.steps() == [20, 40]
        for step in states.steps():
            reader = Reader(disk / f"store/partial/{'k' * 64}/step-{step:09d}")
            assert (reader.tensor("w").unique().tolist(), reader.state) == ([float(step)], {"step": step})


def test_a_better_one_takes_the_place_of_a_best_that_could_not_be_written(tmp_path: Path) -> None:
    said: list[str] = []
    with small_disk(tmp_path / "disk", 4 * MIB) as disk:
        states = partial_state(str(disk / "store"), tmp_path / "home", "k" * 64)
        with saver(tmp_path / "scratch", states, said=said.append) as mine:
            ballast = fill(disk)
            mine.save(10, slices(1.0), {}, best=10)
            mine.wait()
            ballast.unlink()
            mine.save(20, slices(2.0), {}, best=20)
            mine.finish(20)
    assert len(said) == 1 and mine.kept == 20


class Threads(World):
    """Ranks that are threads of this process, which exchange rank 0's value through a barrier."""

    barrier: threading.Barrier
    said: list[bool]

    def broadcast_flag(self, value: bool) -> bool:
        if self.rank == 0:
            self.said[:] = [value]
        self.barrier.wait(30)
        found = self.said[0]
        self.barrier.wait(30)
        return found


def together(tmp_path: Path, states: Partial, ranks: int, said: Callable[..., Any] = print, **more: Any) -> list[Saver]:
    worlds = [Threads(rank, Mesh(ranks, 1)) for rank in range(ranks)]
    Threads.barrier, Threads.said = threading.Barrier(ranks), []
    return [saver(tmp_path / "scratch", states, world, said, **more) for world in worlds]


def test_ranks_write_one_checkpoint_and_wait_until_it_is_kept(tmp_path: Path) -> None:
    states = Slow(tmp_path / "partial")
    savers = together(tmp_path, states, 3)
    for rank, mine in enumerate(savers):
        mine.save(1, slices(rank, rank, 3), {"step": 1})
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
            mine.save(step, slices(step, rank, 2), {})
        for mine in savers:
            mine.wait()
    assert states.steps() == [2] and [text[:46] for text in said] == ["the checkpoint of step 1 could not be saved: I"]
    assert Reader(states.root / "2").tensor("w").unique().tolist() == [2.0]


def test_a_rank_that_does_not_write_is_named(tmp_path: Path) -> None:
    savers = together(tmp_path, FolderPartial(tmp_path / "partial"), 3, timeout_seconds=0.2)
    for rank in (0, 1):
        savers[rank].save(1, slices(rank, rank, 3), {})
    with pytest.raises(ProcessFailed, match="ranks 2 did not write their slices within 0.2 s") as caught:
        savers[0].wait()
    assert "train.collective_timeout_seconds" in caught.value.fix
    with pytest.raises(ProcessFailed, match="rank 0 did not keep a checkpoint"):
        files = RankFiles(tmp_path / "scratch", World(1, Mesh(2, 1)), 0.1, threading.Event())
        files.gather({})
        files.wait()


def test_a_rank_that_is_gone_does_not_hold_up_an_error_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "FAILED_SECONDS", 0.1)
    said: list[str] = []
    mine, _ = together(tmp_path, FolderPartial(tmp_path / "partial"), 2, said.append, timeout_seconds=600)
    begun = time.monotonic()
    with pytest.raises(KeyError, match="of training"), mine:
        mine.save(1, slices(0, 0, 2), {})
        raise KeyError("of training")
    assert time.monotonic() - begun < 300, "not the limit of the exchange"
    (text,) = said
    assert text.startswith(
        "the last checkpoint failed too: ranks 1 did not write their slices within 600 s, or before training"
    )


def test_a_store_that_fails_is_warned_of_too(tmp_path: Path) -> None:
    class Refusing(FolderPartial):
        def commit(self, step: int, folder: Path, digests: Mapping[str, str] | None = None) -> None:
            raise StoreError("the endpoint is gone", "wait")

    said: list[str] = []
    with saver(tmp_path / "scratch", Refusing(tmp_path), said=said.append) as mine:
        mine.save(3, slices(1.0), {})
    assert "step 3 could not be saved: the endpoint is gone" in said[0] and said[0].endswith("from the start")
