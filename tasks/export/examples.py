"""Random inputs of an export's shapes, with padding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trnflow.tasks.evaluation.models import input_names

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def example(model: PreTrainedModel, batch: int, length: int, number: int = 0) -> tuple[torch.Tensor, ...]:
    """Return random inputs of the model (`input_names`), int64 [batch, length] each. number: the seed."""
    generator = torch.Generator().manual_seed(number)
    input_ids = torch.randint(0, model.config.get_text_config().vocab_size, (batch, length), generator=generator)
    real = torch.randint(1, length + 1, (batch,), generator=generator)
    if number == 0:
        # example 0 has half-padded and whole rows
        real[::2], real[1::2] = (length + 1) // 2, length
    attention_mask = (torch.arange(length) < real[:, None]).long()
    padding = model.config.get_text_config().pad_token_id
    # the second text begins in the middle of a row's tokens
    types = attention_mask * (torch.arange(length) >= real[:, None] // 2)
    inputs = (input_ids.masked_fill(attention_mask == 0, padding if padding is not None else 0), attention_mask, types)
    return inputs[: len(input_names(model))]
