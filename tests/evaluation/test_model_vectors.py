"""The vectors that the model gives before training, by which its texts are compared."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.helpers import small_models
from trnflow.tasks.artifact import Input
from trnflow.tasks.evaluation.baselines.model_vectors import model_vectors
from trnflow.tasks.evaluation.models import load_model


def test_each_text_has_the_vector_that_it_has_alone(tmp_path: Path) -> None:
    model = load_model(small_models.bert(tmp_path / "tokenizer").path, "classification")
    meta: Any = {"max_length": 8, "pad_id": 0}
    packed, built = Input(tmp_path, "packed", meta, "sha256:0"), SimpleNamespace(model=model)
    texts = ["the cat sat on the mat", "dog", "a dog ran", "the cat sat on the mat", "what does it do"]
    together, alone = (
        np.concatenate([model_vectors(built, packed, some, 2, lambda done, of: None) for some in parts])  # type: ignore[arg-type]
        for parts in ([texts], [[text] for text in texts])
    )
    np.testing.assert_allclose(together, alone, atol=1e-5)
    assert np.allclose((together**2).sum(-1), 1) and len({*together[:, 0].round(4)}) == 4
