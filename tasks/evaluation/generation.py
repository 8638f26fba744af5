"""Sample generations for fixed prompts: the first rows of a split, up to where their supervised part begins."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from tasks.artifact import Meta
from tasks.config import StageConfig

if TYPE_CHECKING:
    from tasks.text.tokenizer import FastTokenizer


OPENING = re.compile(r"\s*(?:\S+\s+){1,8}")
"""What serves as the prompt of a text that is supervised from its beginning: up to eight words."""


class GenerationConfig(StageConfig):
    """prompts: how many (0: none); the rest as in Hugging Face's `generate`, sampling; seed: of each prompt anew."""

    prompts: NonNegativeInt = 5
    max_new_tokens: PositiveInt = 64
    temperature: PositiveFloat = 0.9
    top_k: PositiveInt = 50
    top_p: PositiveFloat = 0.9
    seed: NonNegativeInt = 0


class Prompt(NamedTuple):
    """text: what the model is given; reference: what the data answers."""

    text: str
    reference: str


def prompts(texts: Path, count: int) -> list[Prompt]:
    """The first `count` rows of a `parts` file that have something to go by and something to complete."""
    from pyarrow.parquet import ParquetFile

    found: list[Prompt] = []
    if not count:
        return found
    with ParquetFile(texts) as file:
        for batch in file.iter_batches(batch_size=count, columns=["parts"]):
            if len(found) >= count:
                break
            found += [prompt for parts in batch.column("parts").to_pylist() if all(prompt := _prompt(parts))]
    return found[:count]


def generate(
    model: Any,
    tokenizer: FastTokenizer,
    prompt: Prompt,
    config: GenerationConfig,
    *,
    positions: int | None,
    ends: list[int],
) -> Meta:
    """One sample. positions: what the model has, of which a long prompt keeps its last ones; ends: token ids that stop."""
    import torch

    new = config.max_new_tokens if positions is None else min(config.max_new_tokens, max(positions // 2, 1))
    ids = prompt_ids(tokenizer, prompt.text)
    kept = ids if positions is None else shortened(ids, positions - new, len(tokenizer.prefix()))
    torch.manual_seed(config.seed)
    with torch.inference_mode():
        row = torch.tensor([kept], device=model.device)
        made = model.generate(
            row,
            attention_mask=torch.ones_like(row),
            do_sample=True,
            use_cache=True,
            temperature=config.temperature,
            top_k=config.top_k,
            top_p=config.top_p,
            max_new_tokens=new,
            eos_token_id=ends or None,
            pad_token_id=ends[0] if ends else 0,
        )[0, len(kept) :].tolist()
    return {
        "prompt": prompt.text,
        "reference": prompt.reference,
        "generated": tokenizer.tokenizer.decode(made, skip_special_tokens=True),
        "tokens": len(made),
        "prompt_tokens": len(ids),
        "prompt_tokens_cut": len(ids) - len(kept),
        "ended": bool(made) and made[-1] in ends,
    }


def prompt_ids(tokenizer: FastTokenizer, text: str) -> list[int]:
    """With the special tokens that stand before a row in training, without those that close it."""
    ids: list[int] = tokenizer.tokenizer.encode(text, add_special_tokens=False).ids
    return [*tokenizer.prefix(), *ids]


def shortened(ids: list[int], room: int, opening: int) -> list[int]:
    """`ids` cut to `room` tokens: its first `opening` ones and its last."""
    return ids if len(ids) <= room else [*ids[:opening], *ids[len(ids) - room + opening :]]


def _prompt(parts: list[dict[str, Any]]) -> Prompt:
    """Up to the first supervised part; of a plain text, its first words."""
    first = next((index for index, part in enumerate(parts) if part["train"]), len(parts))
    before, after = ("".join(part["text"] for part in some) for some in (parts[:first], parts[first:]))
    if not before and (opening := OPENING.match(after)):
        return Prompt(opening[0], after[opening.end() :])
    return Prompt(before, after)
