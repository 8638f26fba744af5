"""The best evaluation, and when to stop."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.training.run_stage import traced_and_trained
from tests.training.toys import BERT, packed_classes, scratch
from trnflow.tasks.artifact import Input
from trnflow.tasks.data.chunks import open_chunks
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.stage import Workdir
from trnflow.tasks.train import TrainConfig
from trnflow.tasks.training import fit
from trnflow.tasks.training.batches.sampler import Split
from trnflow.tasks.training.loop import Run, TrainingState
from trnflow.tasks.training.losses import with_logits
from trnflow.tasks.training.selection import Best, Chosen, check_selection, validated, without_effect
from trnflow.tasks.training.unread_settings import unread_settings
from trnflow.tasks.training.world import ALONE

LOSSES = st.lists(st.floats(0, 10) | st.just(math.nan), min_size=1, max_size=20)


def walk(config: TrainConfig, values: list[float], metric: str = "eval_loss") -> Best:
    best = Best()
    for step, value in enumerate(values, start=1):
        best = best.after(config, Chosen(metric, metric == "eval_loss"), step, {metric: value})
        if best.exhausted(config):
            break
    return best


@given(LOSSES)
def test_the_best_is_the_first_of_the_smallest(losses: list[float]) -> None:
    real = [loss for loss in losses if math.isfinite(loss)]
    best = walk(TrainConfig(keep_best=True), losses)
    assert best.step == (losses.index(min(real)) + 1 if real else 0)


@given(LOSSES)
def test_a_checkpoint_holds_the_best(losses: list[float]) -> None:
    state = TrainingState(step=len(losses), best=walk(TrainConfig(keep_best=True), losses))
    assert TrainingState.of(json.loads(json.dumps(asdict(state)))) == state


def test_accuracy_is_better_when_higher() -> None:
    config = TrainConfig(keep_best=True, best_metric="eval_accuracy")
    assert walk(config, [0.5, 0.7, 0.6], "eval_accuracy").step == 2


def test_patience_counts_evaluations_in_a_row() -> None:
    config = TrainConfig(early_stopping_patience=2, early_stopping_threshold=0.1)
    assert config.keeps_best
    assert walk(config, [3.0, 2.0, 2.1, 1.8, 1.75, 1.0]) == Best(4, {"eval_loss": 1.8}, 1).after(
        config, Chosen("eval_loss", less_is_better=True), 6, {"eval_loss": 1.0}
    )
    stopped = walk(config, [3.0, 2.0, 1.95, 2.5, 0.1])
    assert (stopped.step, stopped.stale) == (2, 2)


@pytest.mark.parametrize(
    ("fields", "remark"),
    [
        ({"eval_every": 60}, "train.eval_every=60 does nothing: this training of 60 updates evaluates 3 times"),
        (
            {"keep_best": True, "eval_every_epoch": False, "eval_every": 500},
            "train.keep_best has nothing to choose: this training of 60 updates evaluates once, after the last",
        ),
        ({"keep_best": True, "max_steps": 20}, "train.keep_best has nothing to choose: this training of 20 updates"),
        (
            {"early_stopping_patience": 2},
            "train.early_stopping_patience=2 can't stop training early: this training of 60 updates evaluates 3 times",
        ),
        ({"early_stopping_patience": 1}, ""),
        ({"early_stopping_patience": 2, "eval_every": 15}, ""),
        ({"keep_best": True, "eval_every": 50, "eval_every_epoch": False}, ""),
        ({"keep_best": True, "max_steps": 21}, ""),
        ({"max_steps": 5}, ""),
        ({"eval_every": 59}, ""),
        ({}, ""),
    ],
)
def test_evaluations_that_never_come_are_remarked(fields: dict, remark: str) -> None:
    said = [*without_effect(TrainConfig(epochs=3, **fields), 20)]
    assert [text.startswith(remark) for text in said] == [True] * bool(remark)


@pytest.mark.parametrize(
    ("fields", "remark"),
    [
        (
            {"best_metric": "f1_macro"},
            "train.best_metric=eval_f1_macro does not choose the weights, which are the last",
        ),
        ({"best_metric": "f1_macro", "keep_best": True}, ""),
        ({"best_metric": "f1_macro", "early_stopping_patience": 2}, ""),
        ({"early_stopping_threshold": 0.1}, "train.early_stopping_threshold=0.1 does not choose the weights"),
        ({"decay_ratio": 0.3}, "train.decay_ratio=0.3 does nothing with train.schedule=linear"),
        ({"decay_ratio": 0.3, "schedule": "warmup_stable_decay"}, ""),
        ({"beta2": 0.95, "optimizer": "adafactor"}, "train.beta2=0.95 does nothing with train.optimizer=adafactor"),
        ({"beta2": 0.95}, ""),
        ({"group_by_length": True}, "train.group_by_length does nothing: rows of pack.strategy=bfd have one length"),
        ({}, ""),
    ],
)
def test_settings_that_nothing_reads_are_remarked(fields: dict[str, Any], remark: str) -> None:
    said = [*unread_settings(TrainConfig(**fields), {"strategy": "bfd"})]
    assert [text.startswith(remark) for text in said] == [True] * bool(remark)
    padded = [*unread_settings(TrainConfig(**fields), {"strategy": "pad"})]
    assert padded == ([] if "group_by_length" in fields else said)


def test_a_training_says_what_nothing_reads_and_whose_labels_its_head_learnt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "remarks_of_method", lambda config, built: ["of the method"])
    config = TrainConfig(engine="native", max_steps=1, global_batch=8, decay_ratio=0.3, threads=1)
    packed, told = packed_classes(tmp_path / "rows"), list[Any]()
    first, again = (Workdir(tmp_path / name, tmp_path / name / "scratch", told.append) for name in ("first", "again"))
    for workdir in (first, again):
        workdir.scratch.mkdir(parents=True)
    meta = traced_and_trained(config, scratch(**BERT), packed, first)
    start = Input(first.path, "checkpoint", {**meta, "labels": ["green", "red", "blue"]}, "sha256:w")
    traced_and_trained(config, scratch(**BERT), packed, again, start)
    warned = [event["warn"] for event in told if "warn" in event]
    assert warned.count("of the method") == 2
    assert sum("train.decay_ratio=0.3 does nothing" in text for text in warned) == 2
    assert sum("begins with them exchanged" in text for text in warned) == 1


def test_a_metric_reads_each_row_once_and_none_that_only_fills_a_batch(tmp_path: Path) -> None:
    packed = packed_classes(tmp_path, validation=10)
    split = Split(packed, "validation")
    batches = [split.read(address) for address in split.in_order(4)]
    numbers = [[0.5, 2.0, *np.arange(12) + 100.0 * at] for at in range(len(batches))]
    seen = validated(numbers, 20, batches)
    labels = np.concatenate([open_chunks(packed, "validation", length)["labels"] for length in (8, 16)])
    assert len(batches) * 4 > len(labels) and seen.expected.tolist() == labels.tolist()
    rows = [at for at, batch in enumerate(batches) for _ in range(batch.samples)]
    assert (seen.logits // 100).tolist() == [[at] * 3 for at in rows] and seen.loss == 0.5 * len(batches)


@pytest.mark.parametrize(
    ("fields", "meta", "text"),
    [
        (
            {"keep_best": True},
            {"task": "causal_lm", "rows": {"train": {"8": 3}}},
            "validation split, which has no rows",
        ),
        (
            {"early_stopping_patience": 1, "best_metric": "eval_accuracy"},
            {"task": "causal_lm", "rows": {"validation": {"8": 3}}},
            "the task causal_lm does not have",
        ),
    ],
)
def test_a_metric_that_nothing_yields_is_refused(fields: dict, meta: dict, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        check_selection(TrainConfig(**fields), meta)
    check_selection(TrainConfig(), meta)


@pytest.mark.parametrize(("fields", "kept"), [({"keep_best": True}, [True, False, True]), ({}, [False, False, False])])
def test_a_run_that_keeps_the_best_says_which_evaluation_is_a_new_one(fields: dict[str, Any], kept: list[bool]) -> None:
    """What an evaluation gives is given: a model takes longer."""
    losses, found = iter([3.0, 4.0, 2.0]), []
    run: Any = SimpleNamespace(config=TrainConfig(**fields), progress=TrainingState(), world=ALONE)
    run.chosen, run.evaluate = Chosen("eval_loss", less_is_better=True), lambda: {"eval_loss": next(losses)}
    for run.progress.step in (1, 2, 3):
        found.append(Run.is_new_best(run))
    assert (found, run.progress.best.step) == (kept, 3 if fields else 0)


def test_rows_of_all_replicas_stand_in_their_order_after_the_scores() -> None:
    import torch

    scores, first, second = torch.tensor([3.0, 4.0]), torch.tensor([[1.0, 2.0]]), torch.tensor([[5.0, 6.0]])
    shares = [with_logits(scores / 2, logits, replica, 2) for replica, logits in enumerate((first, second))]
    assert sum(shares[1:], shares[0]).tolist() == [3, 4, 1, 2, 5, 6]
    assert with_logits(scores, first, 0, 1).tolist() == [3, 4, 1, 2]
