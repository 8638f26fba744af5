"""What every target asks of a model before it is exported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import small_models
from trnflow.tasks.errors import ModelError
from trnflow.tasks.export.targets import _loaded


def test_the_longest_length_has_to_have_positions(tmp_path: Path) -> None:
    weights = small_models.bert(tmp_path)
    assert _loaded(weights, [16, 64]).config.max_position_embeddings == 64
    with pytest.raises(ModelError, match="positions for 64 tokens, and the export is for 65"):
        _loaded(weights, [16, 65])
