"""The model that training started from writes texts by the settings of the trained one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.training.toys import LLAMA, saved
from trnflow.tasks.evaluation.base_model import load_base_model


@pytest.mark.parametrize("written", [True, False])
def test_texts_before_and_after_training_are_made_by_one_setting(tmp_path: Path, written: bool) -> None:
    source = saved(tmp_path / "base", **LLAMA, eos_token_id=7)
    saved(tmp_path / "trained", **LLAMA, eos_token_id=9)
    settings = tmp_path / "trained/generation_config.json"
    if written:
        settings.write_text(json.dumps({**json.loads(settings.read_text()), "eos_token_id": [9, 11]}))
    else:
        settings.unlink(missing_ok=True)
    model = load_base_model(source, None, tmp_path / "trained")
    assert model.generation_config is not None
    assert model.generation_config.eos_token_id == ([9, 11] if written else 9) and not model.training
