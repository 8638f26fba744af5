"""The estimates beside what real training holds: see `tests/bench/bench_train_memory.py`, which has more of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.memories import CASES, figures

TOLERANCE = 0.2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama-remat", "llama-zero1", "bert", "llama-masters", "llama-rounded"])
def test_the_estimates_are_what_is_held(name: str, tmp_path: Path) -> None:
    found = figures(CASES[name], tmp_path)
    assert found.trace == pytest.approx(found.held, rel=TOLERANCE)
    assert found.plan == pytest.approx(found.held, rel=TOLERANCE)
