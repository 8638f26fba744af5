"""Only people run the benches. What these need of the pipeline must still be there: each bench can be imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT

pytestmark = pytest.mark.slow  # they import torch

PROGRAMS = sorted(file.stem for file in Path(__file__).parent.glob("*.py") if not file.stem.startswith(("_", "test_")))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_bench_can_be_imported(name: str) -> None:
    command = [sys.executable, "-c", f"import tests.bench.{name}"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
