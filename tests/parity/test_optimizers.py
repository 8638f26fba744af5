"""Adafactor, smoothed labels and weighted classes give the same losses on both engines and any layout: to 1e-5 in fp32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.training.parity import agree
from tests.training.run_stage import Result, run_in_turn
from tests.training.toys import BERT, DRY, LLAMA, packed_classes, packed_lm, scratch
from trnflow.tasks.train import TrainConfig

RATE, STEPS = 1e-2, 5
COMMON: dict[str, Any] = {"global_batch": 8, "epochs": 1, "learning_rate": RATE, "log_every": 1}
TP = {"tensor_parallel_size": 2}
ADAFACTOR = {
    "plain": {"engine": "native"},
    "native": {"engine": "native", "devices": 4, **TP, "zero1": True},
    "fsdp": {"engine": "native", "devices": 4, **TP, "fsdp": True, "micro_batch": 1},
    "xla": {"devices": 4, **TP, "zero1": True, "micro_batch": 1},
}
WEIGHTED = {
    "plain": {"engine": "native"},
    "native": {"engine": "native", "devices": 2, "micro_batch": 2},
    "xla": {"devices": 2, "micro_batch": 2},
}


BY_ENGINE = pytest.mark.parametrize("engine", ["native", pytest.param("xla", marks=pytest.mark.xla)])


def of_engine(engine: str, layouts: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The plain layout, and the others of an engine."""
    return {name: one for name, one in layouts.items() if name == "plain" or one.get("engine", "xla") == engine}


def trained(folder: Path, layouts: dict[str, dict[str, Any]], extra: dict[str, Any], **inputs: Any) -> list[Result]:
    """Each layout's result; those of one engine on as many devices in one process."""
    found: dict[str, Result] = {}
    for names in groups(layouts):
        configs = [TrainConfig(**COMMON, **extra, **layouts[name]) for name in names]
        found |= zip(names, run_in_turn(configs, folder / names[0], **inputs), strict=True)
    return [found[name] for name in layouts]


def groups(layouts: dict[str, dict[str, Any]]) -> list[list[str]]:
    kinds = [(one.get("engine"), one.get("devices")) for one in layouts.values()]
    return [
        [name for name, kind in zip(layouts, kinds, strict=True) if kind == wanted] for wanted in dict.fromkeys(kinds)
    ]


@BY_ENGINE
def test_adafactor(engine: str, tmp_path) -> None:
    inputs = {"model": scratch(**LLAMA), "packed": packed_lm(tmp_path / "packed", rows=STEPS * 8)}
    plain, *others = trained(tmp_path, of_engine(engine, ADAFACTOR), {"optimizer": "adafactor"}, **inputs)
    assert plain.curve("loss")[1] > plain.curve("loss")[STEPS]
    for found in others:
        agree(found, plain, weights=0.1 * RATE * STEPS)


@BY_ENGINE
@pytest.mark.parametrize("weights", ["balanced", pytest.param({"red": 3.0, "blue": 0.5}, marks=pytest.mark.nightly)])
def test_weighted_and_smoothed(engine: str, weights: Any, tmp_path) -> None:
    inputs = {"model": scratch(**BERT, **DRY), "packed": packed_classes(tmp_path / "packed", rows=38)}
    extra = {"label_smoothing": 0.1, "class_weights": weights}
    plain, *others = trained(tmp_path, of_engine(engine, WEIGHTED), extra, **inputs)
    for found in others:
        agree(found, plain, weights=0.1 * RATE * len(plain.curve("loss")))
    unlike = trained(tmp_path / "plain", {"plain": {"engine": "native"}}, {}, **inputs)[0]
    assert unlike.curve("loss")[1] != pytest.approx(plain.curve("loss")[1], abs=1e-4)
    assert unlike.curve("eval_loss")[0] == plain.curve("eval_loss")[0]  # evaluation's is plain
