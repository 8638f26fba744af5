"""Each family of models, tensor and data parallel at once, against one plain device: fp32, no dropout, five steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from tests.training.parity import agree
from tests.training.run_stage import Result, run_stage, traced_and_trained
from tests.training.toys import BERT, DISTILBERT, DRY, LLAMA, packed_classes, packed_lm, scratch
from trnflow.tasks.train import TrainConfig

LEARNING_RATE, STEPS = 1e-2, 5
DRY_DISTILBERT = {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {**BERT, **DRY},
    "roberta": {**BERT, **DRY, "model_type": "roberta"},
    "distilbert": {**DISTILBERT, **DRY_DISTILBERT},
}
DECODERS: dict[str, dict[str, Any]] = {
    "llama": {**LLAMA, "num_key_value_heads": 2},
    "qwen2": {**LLAMA, "model_type": "qwen2", "num_key_value_heads": 2, "tie_word_embeddings": True},
    "qwen3": {**LLAMA, "model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 8},
    "mistral": {**LLAMA, "model_type": "mistral", "num_key_value_heads": 2},
}
QUICK = ("bert",)  # llama's layouts are in test_parity
FAMILIES = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.nightly) for name in (*ENCODERS, *DECODERS)]


LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {"engine": "native"},
    **{engine: {"engine": engine, "devices": 4, "tensor_parallel_size": 2} for engine in ("xla", "native")},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Result]:
    @cache
    def run(family: str, layout: str) -> Result:
        folder = tmp_path_factory.mktemp(f"{family}-{layout}")
        if family in ENCODERS:
            model, packed = ENCODERS[family], packed_classes(folder / "packed", rows=STEPS * 8, lengths=[16])
        else:
            model, packed = DECODERS[family], packed_lm(folder / "packed", rows=STEPS * 8)
        settings: dict[str, Any] = {"global_batch": 8, "max_steps": STEPS, "learning_rate": LEARNING_RATE}
        config = TrainConfig(**settings, log_every=1, **LAYOUTS[layout])
        return run_stage(traced_and_trained, config, folder / "run", model=scratch(**model), packed=packed)

    return run


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "engine", [pytest.param("xla", marks=pytest.mark.xla), pytest.param("native", marks=pytest.mark.nightly)]
)
def test_a_family_trains_the_same_on_two_by_two(
    engine: str, family: str, trained: Callable[[str, str], Result]
) -> None:
    plain, mesh = trained(family, "plain"), trained(family, engine)
    assert len(plain.curve("loss")) == STEPS
    assert len(list(mesh.artifact.path.glob("shard-*"))) > 1, "nothing was split"
    agree(mesh, plain, weights=0.1 * LEARNING_RATE * STEPS)
