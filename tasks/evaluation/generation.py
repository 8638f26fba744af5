"""Sample generations for fixed prompts: the first rows of a split, up to where their supervised part begins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from tasks.artifact import Meta
from tasks.config import StageConfig
from tasks.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


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
    """The first `count` rows of a `parts` file that have a part to complete."""
    from pyarrow.parquet import ParquetFile

    found: list[Prompt] = []
    with ParquetFile(texts) as file:
        for batch in file.iter_batches(batch_size=max(count, 1), columns=["parts"]):
            if len(found) >= count:
                break
            found += [prompt for parts in batch.column("parts").to_pylist() if (prompt := _prompt(parts)).reference]
    return found[:count]


def load_tokenizer(folder: Path) -> Tokenizer:
    """The fast tokenizer that made the rows, without transformers' layers above it."""
    from tokenizers import Tokenizer

    file = folder / "tokenizer.json"
    if not file.is_file():
        raise DataError(
            f"the model's folder has no {file.name}, so prompts can't be tokenized", "run consolidate again"
        )
    return Tokenizer.from_file(str(file))


def generate(
    model: Any,
    tokenizer: Tokenizer,
    prompt: Prompt,
    config: GenerationConfig,
    *,
    positions: int | None,
    ends: list[int],
) -> Meta:
    """One sample. positions: what the model has, of which the prompt keeps its last ones; ends: token ids that stop."""
    import torch

    new = config.max_new_tokens if positions is None else min(config.max_new_tokens, max(positions // 2, 1))
    ids = prompt_ids(tokenizer, prompt.text, ends)
    kept = ids if positions is None else ids[-(positions - new) :]
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
        "generated": tokenizer.decode(made, skip_special_tokens=True),
        "tokens": len(made),
        "prompt_tokens": len(ids),
        "prompt_tokens_cut": len(ids) - len(kept),
        "ended": bool(made) and made[-1] in ends,
    }


def prompt_ids(tokenizer: Tokenizer, text: str, ends: list[int]) -> list[int]:
    """With the tokenizer's own beginning, but without the end that some of them append."""
    ids: list[int] = tokenizer.encode(text).ids
    while len(ids) > 1 and ids[-1] in ends:
        ids.pop()
    return ids


def _prompt(parts: list[dict[str, Any]]) -> Prompt:
    first = next((index for index, part in enumerate(parts) if part["train"]), len(parts))
    return Prompt("".join(part["text"] for part in parts[:first]), "".join(part["text"] for part in parts[first:]))
