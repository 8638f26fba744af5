"""Checkpoints of small models as `train` writes them, without training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.training.toys import scratch
from trnflow.tasks.artifact import Input
from trnflow.tasks.stage import write_json
from trnflow.tasks.training.checkpoint.shards import write
from trnflow.tasks.training.model.build import build
from trnflow.tasks.training.shared_types import PARAMETER, TensorSlice

if TYPE_CHECKING:
    import torch

NOTHING = scratch()
"""The base model of a checkpoint that holds all parameters: it is not read."""


def checkpoint(
    folder: Path, packed: Input, parts: int = 2, scale: float = 1.0, **config: Any
) -> tuple[Input, dict[str, torch.Tensor]]:
    """Return (a checkpoint of a random model as a mesh of `parts` devices leaves it, its parameters).

    Matrices are split by columns, the rest is written once. scale: multiplies the matrices, so that logits differ more."""
    built = build(scratch(**config), packed, seed=0, weights=True)
    parameters = {name: value.detach() for name, value in built.parameters().items()}
    slices = []
    for name, value in parameters.items():
        value.mul_(scale if value.dim() > 1 else 1.0)
        pieces = value.chunk(parts, dim=1) if value.dim() == 2 and value.shape[1] % parts == 0 else [value]
        start = 0
        for device, piece in enumerate(pieces):
            at = (0, start) if value.dim() == 2 else (0,) * value.dim()
            slices.append(TensorSlice(PARAMETER + name, device, at, tuple(value.shape), piece))
            start += piece.shape[-1]
    write(folder / "checkpoint", slices, {})
    write_json(folder / "checkpoint" / "config.json", built.config)
    write_json(folder / "checkpoint" / "tokenizer" / "tokenizer_config.json", {})
    meta = {name: packed.meta[name] for name in ("task", "labels", "lengths")}
    return Input(folder / "checkpoint", "checkpoint", meta, "sha256:c"), parameters
