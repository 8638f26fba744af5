"""The check of a written model folder."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers import small_models
from trnflow.tasks.errors import ModelError
from trnflow.tasks.model_folder.check import check_finite, check_folder, check_shapes
from trnflow.tasks.model_folder.published_weights import PublishedWeights, model_without_values
from trnflow.tasks.training.checkpoint.pretrained_weights import PretrainedWeights


class Stored(PretrainedWeights):
    """The weights of a folder as what should be written into it."""

    def __init__(self, folder: Path, model: Any) -> None:
        super().__init__(folder, model)
        self.names = [name for name, _ in model.named_parameters()]

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.tensor(name).shape)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_file_is_mapped_once_not_once_for_each_parameter(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    out = small_models.workdir(tmp_path / "model")
    small_models.llama(out.path)
    config = AutoConfig.from_pretrained(tmp_path / "model")
    maps: list[int] = []

    def count(*given: Any) -> None:
        file = str(tmp_path / "model" / "model.safetensors")
        maps.append(sum(file in line for line in Path("/proc/self/maps").read_text().splitlines()))

    def from_config(*given: Any, **options: Any) -> Any:
        model = AutoModelForCausalLM.from_config(*given, **options)
        model.register_forward_pre_hook(count)
        return model

    empty = model_without_values("causal_lm", config)
    weights = PublishedWeights(Stored(tmp_path / "model", empty), empty)
    check_folder(out, SimpleNamespace(from_config=from_config), config, weights, "float32")
    assert len(weights.names) > 10 and len(maps) == 1 and maps[0] <= 2


@pytest.mark.parametrize(
    ("shapes", "told"),
    [
        ({"weight": (3, 2), "bias": (3,)}, None),
        ({"weight": (3, 2)}, r"missing keys bias\."),
        ({"weight": (3, 2), "bias": (3,), "score.weight": (1, 2)}, r"unexpected keys score.weight\."),
        ({"weight": (2, 3), "bias": (3,)}, r"mismatched keys weight\."),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(shapes: dict[str, tuple[int, ...]], told: str | None) -> None:
    import torch

    weights: Any = SimpleNamespace(names=[*shapes], shape=shapes.__getitem__)
    model = torch.nn.Linear(2, 3, device="meta")
    if told is None:
        check_shapes(weights, model)
        return
    with pytest.raises(ModelError, match=told):
        check_shapes(weights, model)


@pytest.mark.parametrize("values", [[1.0, float("inf")], [float("-inf"), 1.0], [float("nan"), 1.0], [1.0, 2.0], []])
def test_weights_with_an_infinite_end_are_refused(values: list[float]) -> None:
    import torch

    is_fine = values in ([], [1.0, 2.0])
    with nullcontext() if is_fine else pytest.raises(ModelError, match="the weights w hold NaN or infinite numbers"):
        check_finite("w", torch.tensor(values), "float16")
