"""What becomes of a training on several ranks when one of them is lost, or never comes; and what each draws."""

from __future__ import annotations

import math
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.waiting import wait_for
from tests.launch.processes import children, gone
from tests.training.run_stage import FolderPartial, Stage, run_stage, traced_and_trained
from tests.training.toys import BERT, packed_classes, scratch
from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.errors import MachineError, ModelError, ProcessFailed
from trnflow.tasks.stage import Workdir, stage
from trnflow.tasks.train import TrainConfig, ranks
from trnflow.tasks.train import environ as train_environ
from trnflow.tasks.training.alike import TEXT, _short
from trnflow.tasks.training.choose_engine import join_ranks
from trnflow.tasks.training.world import ALONE, replica_seed

CONFIG: dict[str, Any] = {"engine": "native", "devices": 2, "global_batch": 8, "epochs": 40, "log_every": 1}


@stage(kind="checkpoint", environ=train_environ, ranks=ranks)
def hangs(config: TrainConfig, model: Source, packed: Input, out: Workdir) -> Meta:
    def emit(event: Meta) -> None:
        if os.environ["RANK"] == "1" and event.get("progress", {}).get("done", 0) >= 3:
            fall_asleep()

    return traced_and_trained(config, model, packed, Workdir(out.path, out.scratch, emit))


def fall_asleep() -> None:
    time.sleep(600)


def inputs(folder: Path) -> dict[str, Any]:
    return {"model": scratch(**BERT), "packed": packed_classes(folder / "packed", rows=24)}


def test_a_lost_rank_ends_the_training_and_is_named(tmp_path: Path) -> None:
    config = TrainConfig(**CONFIG, checkpoint_every=5)
    started = Stage(traced_and_trained, config, tmp_path / "run", tmp_path / "partial", **inputs(tmp_path))
    while not FolderPartial(tmp_path / "partial").steps():
        assert started.process.poll() is None
        time.sleep(0.1)
    everyone = children(started.process.pid)
    assert len(everyone) == 2
    os.kill(everyone[1], signal.SIGKILL)
    with pytest.raises(ProcessFailed, match=r"rank 1 of 2 died without a word \(signal SIGKILL\)"):
        started.result()
    assert gone(everyone)
    assert FolderPartial(tmp_path / "partial").steps()  # what the next run goes on from


@pytest.mark.nightly  # its quick sibling, without torch, is in tests/launch
def test_a_rank_that_does_not_come_is_waited_for_only_so_long(tmp_path: Path) -> None:
    config = TrainConfig(**CONFIG, collective_timeout_seconds=20)
    with pytest.raises(ProcessFailed, match="rank 0 of 2: waited 20 s .*; still at work were ranks 1") as caught:
        run_stage(hangs, config, tmp_path / "run", **inputs(tmp_path))
    assert "train.collective_timeout_seconds" in caught.value.fix
    log = (tmp_path / "run" / "log").read_text()
    assert "in fall_asleep" in log.partition("--- rank 1")[2]  # where it was
    assert "Traceback" in log.partition("--- rank 0")[2]  # and who waited


@stage(kind="checkpoint", environ=train_environ, ranks=ranks)
def other_rows_on_rank_1(config: TrainConfig, model: Source, packed: Input, out: Workdir) -> Meta:
    if os.environ["RANK"] == "1":
        packed = packed_classes(out.scratch / "other", rows=32)
    return traced_and_trained(config, model, packed, out)


def test_ranks_with_other_rows_end_in_one_line(tmp_path: Path) -> None:
    started = Stage(other_rows_on_rank_1, TrainConfig(**CONFIG), tmp_path / "run", **inputs(tmp_path))
    wait_for(lambda: len(children(started.process.pid)) == 2)
    everyone = children(started.process.pid)
    with pytest.raises(
        MachineError, match=r"^the ranks differ: packed is \[49, 20\] .* on rank 0 and \[65, 20\] .* on rank 1"
    ):
        started.result()
    assert not [event for event in started.events() if "progress" in event or "metrics" in event]
    assert gone(everyone)


@stage(kind="checkpoint", environ=train_environ, ranks=ranks)
def unlike(config: TrainConfig, model: Source, packed: Input, out: Workdir) -> Meta:
    """What ranks say of which the last one has another recipe, torch or code."""
    import torch

    from trnflow.tasks.training import losses

    meeting, other = os.environ["TRNFLOW_RENDEZVOUS"], os.environ["RANK"] == "1"
    edited = out.scratch / "losses.py"
    edited.write_bytes(Path(str(losses.__file__)).read_bytes() + b"\n")
    texts = []
    for number, (owner, name, value) in enumerate(
        [(None, "", ""), (torch, "__version__", "1.0"), (losses, "__file__", str(edited))]
    ):
        os.environ["TRNFLOW_RENDEZVOUS"] = f"{meeting}-{number}"
        with pytest.MonkeyPatch.context() as patch:
            if other and owner:
                patch.setattr(owner, name, value)
            mine = config.model_copy(update={"tensor_parallel_size": 2}) if other and not owner else config
            with pytest.raises(MachineError) as caught, join_ranks(mine):
                pass
        texts.append(caught.value.message)
        torch.distributed.destroy_process_group()
    return {"texts": texts}


@pytest.mark.slow
def test_ranks_with_another_recipe_torch_or_code_are_refused(tmp_path: Path) -> None:
    found = run_stage(unlike, TrainConfig(**CONFIG), tmp_path / "run", **inputs(tmp_path)).artifact.meta["texts"]
    recipe, torch, code = found
    assert recipe == "the ranks differ: train.tensor_parallel_size is 1 on rank 0 and 2 on rank 1"
    assert "PyTorch is 2." in torch and torch.endswith("and 1.0 on rank 1")
    assert "trnflow's code is " in code


@stage(kind="checkpoint", environ=train_environ, ranks=ranks)
def tells(config: TrainConfig, model: Source, packed: Input, out: Workdir) -> Meta:
    with join_ranks(config) as world:
        mine = {"loss": math.nan if world.rank else math.inf, "text": "é" * (1 + 5 * world.rank)}
        first = world.on_first(lambda: (world.rank, None, 1 / 3))
        told = {"first": world.gather(first), "all": world.gather(mine), "none": world.gather(world.broadcast(None))}
        return {name: repr(values) for name, values in told.items()}


@pytest.mark.slow
def test_ranks_tell_each_other_values_of_json_and_no_pickles(tmp_path: Path) -> None:
    told = run_stage(tells, TrainConfig(**CONFIG), tmp_path / "run", **inputs(tmp_path)).artifact.meta
    assert told == {
        "first": f"[[0, None, {1 / 3}], [0, None, {1 / 3}]]",
        "all": "[{'loss': inf, 'text': 'é'}, {'loss': nan, 'text': 'éééééé'}]",
        "none": "[None, None]",
    }


def test_one_process_is_a_world_that_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with join_ranks(TrainConfig(engine="native")) as world:
        assert (
            world is ALONE and world.broadcast_flag(True) and world.on_first(lambda: 3) == 3 and world.gather(4) == [4]
        )
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with (
        pytest.raises(ModelError, match="train.devices is 2, and no ranks were started"),
        join_ranks(TrainConfig(**CONFIG)),
    ):
        pass


def draws(seed: int) -> tuple[float, ...]:
    import torch

    torch.manual_seed(seed)
    return tuple(torch.rand(4).tolist())


def test_no_replica_repeats_the_dropout_of_another_step() -> None:
    assert replica_seed(7, 0) == 7  # one device draws as it always did
    seeds = {replica_seed(step, replica) % 2**32 for step in range(2000) for replica in range(64)}
    assert len(seeds) == 2000 * 64
    assert len({draws(replica_seed(step, replica)) for step in range(20) for replica in range(8)}) == 160


def test_long_values_that_end_otherwise_differ_in_a_short_text() -> None:
    first, second = (_short(f"{'layer ' * 20}{end}") for end in "ab")
    assert first != second and len(first) == len(second) <= TEXT
    assert _short({"b": 1, "a": 2}) == _short({"a": 2, "b": 1}) == '{"a": 2, "b": 1}'
