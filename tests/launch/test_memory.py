"""A stage that holds more memory than it may is ended, and named; what it only reserves or maps is not counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch import stages
from trnflow.tasks.errors import MachineError
from trnflow.tasks.launch import memory
from trnflow.tasks.launch.call import Call
from trnflow.tasks.launch.local import run_call
from trnflow.tasks.launch.memory import memory_limit
from trnflow.tasks.system.memory import machine_memory

BEGAN = [pytest.param((), id="started"), pytest.param(("json",), id="forked")]


def eater(folder: Path, how: str, preload: tuple[str, ...] = ("json",)) -> Call:
    config = stages.NapConfig(how=how)
    return Call.of(stages.eat, config, {}, folder / "out", preload=preload, memory_gib=0.25)


@pytest.mark.parametrize("how", ["held", "child"])
@pytest.mark.parametrize("preload", BEGAN)
def test_a_stage_that_holds_too_much_is_ended_with_its_figure(
    tmp_path: Path, how: str, preload: tuple[str, ...]
) -> None:
    with pytest.raises(
        MachineError, match=r"eat took (0\.\d+|1(\.\d+)?) GiB of memory, more than the 0.25 GiB"
    ) as caught:
        run_call(eater(tmp_path, how, preload), lambda event: None)
    assert "raise launch.memory_gib" in caught.value.fix


@pytest.mark.parametrize("how", ["mapped", "reserved"])
def test_files_that_a_stage_maps_and_what_it_never_uses_do_not_count(tmp_path: Path, how: str) -> None:
    assert run_call(eater(tmp_path, how), lambda event: None)


def test_an_allocation_that_fails_at_once_reads_as_memory(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="there is no memory left"):
        run_call(eater(tmp_path, "huge"), lambda event: None)


def test_a_full_gpu_is_one_line_with_the_settings_that_help(tmp_path: Path) -> None:
    call = Call.of(stages.train, stages.NapConfig(), {}, tmp_path / "out")
    with pytest.raises(
        MachineError, match="the GPU has no memory left: CUDA out of memory. Tried .* 2.00 GiB"
    ) as caught:
        run_call(call, lambda event: None)
    assert caught.value.message.endswith("is reserved by PyTorch but unallocated")
    for setting in ("train.micro_batch", "tokenize.max_length", "train.remat=true", "checkpoints stay"):
        assert setting in caught.value.fix


def test_by_default_a_stage_may_hold_most_of_the_machine() -> None:
    machine = machine_memory()
    assert machine / 2 <= memory_limit(None) < machine
    assert memory_limit(0.5) == 2**29


@pytest.mark.parametrize(("machine", "limit"), [(64.0, 57.6), (4.0, 3.0), (1.5, 0.75)])
def test_a_tenth_or_a_gibibyte_is_left_to_the_rest_but_never_more_than_half(
    machine: float, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "machine_memory", lambda: int(machine * 2**30))
    assert memory_limit(None) == pytest.approx(limit * 2**30, abs=1)
