from __future__ import annotations

from pathlib import Path

import pytest

from tests.data_stages import Bench, new_bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return new_bench(tmp_path)
