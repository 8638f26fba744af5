"""When two runs are one training: the same losses and gradients, and nearly the same weights."""

from __future__ import annotations

import pytest

from tests.training.run_stage import Result
from trnflow.tasks.training.checkpoint.shards import Reader


def agree(found: Result, plain: Result, *, weights: float) -> None:
    """weights: how far any of them may lie apart."""
    for name in {"loss", "eval_loss", "eval_accuracy"} & {name for m in plain.said("metrics") for name in m["values"]}:
        print(f"{name}: largest difference {farthest(found.curve(name), plain.curve(name)):.1e}")
        assert found.curve(name) == pytest.approx(plain.curve(name), abs=1e-5), name
    assert found.curve("grad_norm") == pytest.approx(plain.curve("grad_norm"), rel=1e-4)
    one, other = (Reader(result.artifact.path) for result in (found, plain))
    assert one.names == other.names
    for name in one.names:
        assert (one.tensor(name) - other.tensor(name)).abs().max() <= weights, name


def farthest(curve: dict[int, float], other: dict[int, float]) -> float:
    return max(abs(value - other[step]) for step, value in curve.items())
