"""NEFTune (https://arxiv.org/abs/2310.05914): noise on the embeddings while training, by transformers' own hook."""

from __future__ import annotations

from typing import Any

from trnflow.tasks.training.config import TrainConfig


def add_noise(config: TrainConfig, model: Any) -> None:
    """Let the input embeddings add `train.neftune_noise_alpha`'s noise in training. To be called when layers are split."""
    if config.neftune_noise_alpha is not None:
        from transformers.integrations.neftune import activate_neftune

        activate_neftune(model, config.neftune_noise_alpha)
