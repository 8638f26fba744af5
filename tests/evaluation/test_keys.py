"""What is in the key of predictions, and how they lie in files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trnflow.tasks.artifact import Artifact, Source
from trnflow.tasks.evaluate_model import EvaluateConfig, evaluate_inputs
from trnflow.tasks.evaluation import config as evaluation
from trnflow.tasks.evaluation.columns import ClassPredictions, load_columns, save_columns
from trnflow.tasks.evaluation.config import PredictConfig


def test_other_threads_and_another_device_are_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def keyed(cores: int, device: str) -> object:
        monkeypatch.setattr(evaluation, "cores", lambda: cores)
        monkeypatch.setattr(evaluation, "device_kind", lambda name: f"kind of {name}")
        return evaluation.accelerator(PredictConfig(device=device))  # type: ignore[arg-type]

    assert keyed(2, "cpu") == keyed(2, "cpu") not in (keyed(4, "cpu"), keyed(2, "cuda"))


def test_predictions_come_back_with_all_their_digits(tmp_path: Path) -> None:
    losses = np.random.default_rng(0).random(5) / 3
    given = ClassPredictions(np.arange(5), np.arange(5)[::-1], np.eye(5, 3, dtype=np.float32), losses)
    save_columns(given, tmp_path)
    for name, value in load_columns(ClassPredictions, tmp_path)._asdict().items():
        assert value.dtype == getattr(given, name).dtype and (value == getattr(given, name)).all(), name


def test_the_texts_and_the_files_of_the_harness_are_in_the_key() -> None:
    def keyed(texts: str, files: dict[str, str] | None) -> object:
        artifacts = {
            name: Artifact(f"sha256:{name}", name, {"task": "classification"}, ()) for name in ("packed", "weights")
        }
        harness = {"harness": Source("harness", {"files": files})} if files else {}
        given: dict[str, Artifact | Source] = {**artifacts, "texts": Artifact(texts, "texts", {}, ()), **harness}
        return evaluate_inputs(EvaluateConfig(), given)

    keys = [
        keyed("sha256:a", None),
        keyed("sha256:b", None),
        keyed("sha256:a", {"t": "1"}),
        keyed("sha256:a", {"t": "2"}),
    ]
    assert all(keys.count(key) == 1 for key in keys)


@pytest.mark.parametrize(("own", "device"), [("cuda", "cuda"), (None, "cpu")])
def test_the_harness_has_the_device_of_the_evaluation_unless_it_names_its_own(own: str | None, device: str) -> None:
    config = EvaluateConfig(device="cpu", harness={"tasks": ["mine"], "include_path": ".", "device": own})  # type: ignore[arg-type]
    harness = config.harnessing()
    assert harness is not None and harness.device == device
    assert EvaluateConfig().harnessing() is None
