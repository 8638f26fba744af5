"""When a loss is computed in chunks, and to how many digits: `test_chunked_loss` compares whatever chunks and targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.toys import LLAMA, packed_lm, scratch
from trnflow.tasks.training.chunked_loss import ChunkedLoss, chunk_positions
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.model.build import build

NATIVE = TrainConfig(engine="native")


@pytest.mark.parametrize(
    ("model", "settings", "positions"),
    [
        # 32 MiB of fp32 logits over 64 words
        (LLAMA, {}, (32 << 20) // (4 * 64)),
        (LLAMA, {"devices": 2, "tensor_parallel_size": 2, "global_batch": 8}, 0),
        ({**LLAMA, "model_type": "gemma3_text", "head_dim": 8, "final_logit_softcapping": 30.0}, {}, 0),
        ({**LLAMA, "model_type": "cohere", "logit_scale": 0.1}, {}, 0),
    ],
)
def test_only_whole_logits_that_are_a_linear_layer_s_are_computed_in_chunks(
    model: dict[str, Any], settings: dict[str, Any], positions: int, tmp_path: Path
) -> None:
    built = build(scratch(**model), packed_lm(tmp_path), seed=0, weights=False)
    assert chunk_positions(TrainConfig(engine="native", **settings), built) == positions


def test_the_gradient_of_many_chunks_is_rounded_once() -> None:
    """512 chunks of one position, in bfloat16: summed in that type, the last ones would change nothing."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.rand(512, 8, generator=generator).bfloat16()
    weight = torch.rand(3, 8, generator=generator).bfloat16().requires_grad_()
    bias = torch.zeros(3, dtype=torch.bfloat16).requires_grad_()

    def score(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return logits.float().sum()

    loss = ChunkedLoss.apply(hidden, weight, bias, torch.zeros(512, dtype=torch.long), score, 1)
    loss.backward()
    expected = hidden.double().sum(0).expand(3, 8)
    torch.testing.assert_close(weight.grad.double(), expected, rtol=2**-8, atol=0)
    assert bias.grad.tolist() == [512.0] * 3
