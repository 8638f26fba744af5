"""Rows in files of parquet, and what pyarrow imports for them."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pandas  # noqa: F401 - pyarrow has looked for it before the test hides it
import pyarrow as pa
import pytest

from trnflow.tasks.data.tables import spare_pandas


def test_pandas_can_be_imported_after_it_was_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    pa.array([])
    finders = [*sys.meta_path]
    monkeypatch.setattr(sys, "meta_path", [*finders])
    monkeypatch.setattr(sys, "modules", {name: module for name, module in sys.modules.items() if name != "pandas"})
    spare_pandas()
    assert sys.meta_path == finders and find_spec("pandas") is not None
