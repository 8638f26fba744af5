"""What the loop reports, evaluates and saves, step by step, without a model."""

from __future__ import annotations

import math
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import Interrupted, NonFiniteLoss
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.training import fit, loop
from trnflow.tasks.training.batches.sampler import BatchAddress
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.loop import Run, TrainingState, stop_signals
from trnflow.tasks.training.meter import Meters
from trnflow.tasks.training.optim.learning_rate import learning_rate
from trnflow.tasks.training.selection import Best, Chosen
from trnflow.tasks.training.shared_types import AVERAGE, PARAMETER
from trnflow.tasks.training.world import ALONE


def run_of(total: int = 10, settings: Meta | None = None, **parts: Any) -> Any:
    """A run of so many updates, of which only these parts are there."""
    config = TrainConfig(**{"engine": "native", "device": "cpu", "learning_rate": 1e-3, **(settings or {})})
    run = object.__new__(Run)
    known = {"config": config, "total": total, "progress": TrainingState(), "shown": {}, "named": (), "pending": []}
    run.__dict__ |= known | {"world": ALONE, "saving": True} | parts
    return run


def fetching(*numbers: tuple[float, ...]) -> Any:
    return SimpleNamespace(fetch=lambda handles: [*numbers][: len(handles)], evaluate=lambda batch: batch)


def test_each_point_of_a_long_curve_is_the_mean_since_the_one_before() -> None:
    """500 updates are shown as every third, and the last of them: its mean is of two losses."""
    run = run_of(total=500)
    for step in range(1, 501):
        run.note_loss(step, float(step))
    steps = [row["step"] for row in run.progress.curves]
    assert steps == [*range(3, 500, 3), 500]
    assert [row["loss"] for row in run.progress.curves] == [*(step - 1 for step in steps[:-1]), 499.5]


def test_the_rate_of_a_line_is_that_of_the_update_before_it() -> None:
    told: list[dict[str, float]] = []
    out = SimpleNamespace(metrics=lambda step, **values: told.append({"step": step, **values}))
    run = run_of(
        settings={"warmup_ratio": 0.5}, meters=SimpleNamespace(lap=None), measured=lambda meter: {},
        saver=SimpleNamespace(check=list), engine=fetching(), out=out,
    )  # fmt: skip
    run.progress.step = 3
    run.log()
    assert told == [{"step": 3, "learning_rate": learning_rate(run.config, 2, 10)}]
    assert learning_rate(run.config, 2, 10) != learning_rate(run.config, 3, 10)


def test_of_an_update_that_was_skipped_no_norm_is_shown() -> None:
    run = run_of(engine=fetching((2.0, 0.5, 1.0), (3.0, math.inf, 1.0)), pending=[(0, None)])
    run.read_losses()
    assert run.shown == {"loss": 2, "grad_norm": 0.5}
    run.pending = [(1, None), (2, None)]
    run.read_losses()
    assert run.shown == {"loss": 3} and run.progress.loss == 7


def test_the_first_loss_that_is_not_finite_ends_training_with_its_step_and_rows() -> None:
    address = BatchAddress(8, np.array([4, 7, -1]))
    run = run_of(
        engine=fetching((2.0, 0.5, 1.0), (math.nan, math.nan, 0.0), (1.0, 1.0, 1.0)),
        schedule=SimpleNamespace(address=lambda step: address), pending=[(0, None), (1, None), (2, None)],
    )  # fmt: skip
    with pytest.raises(NonFiniteLoss, match=r"step 2 has loss nan.*Its rows of train/8: 4, 7 \(2 in all\)"):
        run.read_losses()
    assert run.progress.loss == 2


@pytest.mark.parametrize(("sums", "mean"), [((3.0, 1.0), 1.0), ((-5.0, 1.0), 0.0)])
def test_the_gain_of_answers_of_others_is_a_mean_and_never_below_nothing(sums: tuple[float, ...], mean: float) -> None:
    batch = SimpleNamespace(supervised=2, documents=lambda which, unit: (which, unit))
    run = run_of(engine=fetching(*((0.0, each) for each in sums)), validation_batches=lambda: [batch, batch])
    assert run.mismatched_gain() == mean


@pytest.mark.parametrize(
    ("every", "evaluated"),
    [({"eval_every": 4}, {4, 8, 10}), ({"eval_every_epoch": True}, {3, 6, 9, 10}), ({"eval_every": 20}, {10})],
)
def test_it_evaluates_when_asked_and_after_the_last_update(every: dict[str, Any], evaluated: set[int]) -> None:
    run = run_of(schedule=SimpleNamespace(steps_per_epoch=3), settings={"eval_every_epoch": False, **every})
    found = set()
    for run.progress.step in range(1, 11):
        found |= {run.progress.step} if run.must_evaluate() else set()
    assert found == evaluated


def stepping(stop_after: int = 99, **fields: Any) -> tuple[Any, list[int], list[int]]:
    """A run without a model, the steps after which it saved, and the signals that it sees."""
    saved, stopped = list[int](), list[int]()
    run = run_of(settings={"checkpoint_every": 4}, log=list, must_evaluate=lambda: False, **fields)

    def step(_: Any) -> None:
        run.progress.step += 1
        stopped.extend([15] * (run.progress.step == stop_after))

    run.__dict__ |= {
        "step": step,
        "save": lambda: saved.append(run.progress.step),
        "stopped": lambda: Interrupted("stopped", "again"),
    }
    return run, saved, stopped


def test_it_saves_at_each_interval_but_not_after_the_last_update() -> None:
    run, saved, stopped = stepping(total=12)
    run.steps(iter(()), stopped)
    assert saved == [4, 8] and run.progress.step == 12


def test_a_signal_saves_and_ends_training() -> None:
    run, saved, stopped = stepping(stop_after=6)
    with pytest.raises(Interrupted):
        run.steps(iter(()), stopped)
    assert saved == [4, 6]
    run, saved, stopped = stepping(stop_after=10)
    run.steps(iter(()), stopped)
    assert saved == [4, 8], "after the last update there is nothing left to stop"


@pytest.mark.parametrize(("decay", "kept"), [(None, PARAMETER), (0.99, AVERAGE)])
def test_the_best_evaluation_s_weights_are_those_that_were_evaluated(
    decay: float | None, kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    reader = SimpleNamespace(names=())
    monkeypatch.setattr(fit.shards, "Reader", lambda folder, prefix: read.append(prefix) or reader)
    monkeypatch.setattr(fit.shards, "write", lambda *_: None)
    monkeypatch.setattr(fit, "beside_initial", lambda slices, *_: [*slices])
    run = run_of(
        settings={"keep_best": True, "ema_decay": decay}, built=SimpleNamespace(initial=None),
        out=SimpleNamespace(path=tmp_path, warn=print, partial=SimpleNamespace(sound=lambda step, warn: tmp_path)),
    )  # fmt: skip
    run.progress = TrainingState(step=10, best=Best(5, {"eval_loss": 1.0}))
    fit._write_weights(run)
    assert read == [kept]


def test_an_evaluation_is_of_all_rows_of_all_batches() -> None:
    """Two batches of 4 and 2 rows, of which 3 and 1 are right; a padded row counts nowhere."""
    told: list[dict[str, float]] = []
    run = run_of(
        engine=fetching((2.0, 3.0), (1.0, 1.0)), meters=Meters(), reads_rows=False, of_pairs=(),
        built=SimpleNamespace(kind=kind_of("classification")), chosen=Chosen("eval_loss", True),
        validation_batches=lambda: [SimpleNamespace(supervised=count) for count in (4, 2)],
        out=SimpleNamespace(metrics=lambda step, **values: told.append(values)),
    )  # fmt: skip
    run.progress.step = 7
    assert run.evaluate() == {"eval_loss": 0.5, "eval_accuracy": 4 / 6} == told[0]
    assert run.progress.evaluated == 7 and run.progress.curves == [{"step": 7, **told[0]}]


@pytest.mark.parametrize(("seconds", "counted"), [(0.0, 1), (3.0, 0)])
def test_a_step_that_compiles_is_in_no_rate(seconds: float, counted: int) -> None:
    registry, meters = SimpleNamespace(compile_seconds=1.0), Meters()

    def train(batch: Any, at: Any, seed: int) -> None:
        registry.compile_seconds += seconds

    batch = SimpleNamespace(
        supervised=4, samples=4, real=30, segment_ids=np.ones((4, 8), np.int32), targets=np.ones((4, 8), np.int32),
        by_row=False, length=8, input_ids=np.ones((4, 8), np.int32),
    )  # fmt: skip
    run = run_of(
        registry=registry, meters=meters, engine=SimpleNamespace(train=train), cost=SimpleNamespace(), passes=3.0,
        built=SimpleNamespace(class_weights=None, causal=True), out=SimpleNamespace(progress=lambda *_, **__: None),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "flops_per_batch", lambda cost, batch, causal: 10)
        run.step(iter([batch]))
    assert (meters.whole.steps, run.progress.step) == (counted, 1)


def test_only_a_second_ctrl_c_ends_training_before_it_has_saved() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    try:
        with stop_signals() as caught:
            for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
                signal.raise_signal(number)
            assert caught == [signal.SIGTERM, signal.SIGTERM, signal.SIGINT]
            with pytest.raises(Interrupted, match="stopped twice, and did not save"):
                signal.raise_signal(signal.SIGINT)
    finally:
        for number, handler in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
            signal.signal(number, handler)
