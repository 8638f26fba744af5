"""The traced memory beside what real training takes: see `tests/bench/bench_train_memory.py`, which has more of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.memory.measured_memory import CASES, figures

TOLERANCE = 0.2


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name", ["llama-remat", "llama-zero1", "bert", "llama-masters", "llama-rounded", "llama-fsdp-bf16-4-by-1"]
)
def test_the_traced_memory_is_what_training_takes(name: str, tmp_path: Path) -> None:
    found = figures(CASES[name], tmp_path)
    assert found.traced == pytest.approx(found.held, rel=TOLERANCE)
