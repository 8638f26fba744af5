"""Generate texts for the evaluation report, for the recipe's prompts and for the first rows of a split.

Token ids and position ids are computed as in training.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.format.chat_prompts import PromptWriter, prompt_writer
from trnflow.tasks.data.format.config import FormatConfig
from trnflow.tasks.data.format.conversation import Conversation, messages_of
from trnflow.tasks.data.special_tokens import chat_templates
from trnflow.tasks.data.texts import HELD_OUT
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.evaluation.config import GenerationConfig
from trnflow.tasks.training.model.pretrained import first_position

if TYPE_CHECKING:
    import torch

    from trnflow.tasks.data.tokenization.encoders import CausalEncoder
    from trnflow.tasks.data.tokenization.tokenizer import FastTokenizer


# a text that is supervised from its beginning gives up to eight words as the prompt, without the blank after them
OPENING = re.compile(r"\s*\S+(?:\s+\S+){0,7}(?=\s+\S)")


WHERE = "evaluate.prompts"


class Prompt(NamedTuple):
    """A prompt and the data's answer. parts: as format_prompts writes them; row: its number in the split, from 1.

    A prompt of the recipe has neither answer nor row.
    """

    parts: list[Meta]
    answer: str | None = None
    row: int | None = None

    @property
    def text(self) -> str:
        """The prompt as plain text."""
        return "".join(part["text"] for part in self.parts)


def prompts(texts: Path, count: int) -> list[Prompt]:
    """Return up to `count` prompts of a Parquet file of format_prompts: the first rows with prompt and answer."""
    from pyarrow.parquet import ParquetFile

    chosen: list[Prompt] = []
    first = 0
    if not count:
        return chosen
    with ParquetFile(texts) as file:
        marked = "label" in file.schema_arrow.names  # an undesirable answer is not what is expected
        for batch in file.iter_batches(batch_size=count, columns=["parts", *(["label"] if marked else [])]):
            if len(chosen) >= count:
                break
            candidates = [
                _prompt(example["parts"])._replace(row=row)
                for row, example in enumerate(batch.to_pylist(), first + 1)
                if example.get("label", 1)
            ]
            chosen += [prompt for prompt in candidates if prompt.text and prompt.answer]
            first += batch.num_rows
    return chosen[:count]


def given_prompts(given: Sequence[str | Sequence[Mapping[str, Any]]], folder: Path, texts: Meta) -> list[Prompt]:
    """Return the prompts of `evaluate.prompts`; messages become texts as those of rows do (`chat_prompts`).

    folder: the model's; texts: metadata of format_prompts. Raises ConfigError without a chat template, or if it refuses the
    messages.
    """
    config = FormatConfig.model_validate(texts.get("rows", {}).get("settings", {}))
    has_template = config.chat_template != "tokenizer" or "default" in chat_templates(folder)
    refuse_messages(given, framed=bool(texts.get("framed")) and has_template)
    write = None if all(isinstance(prompt, str) for prompt in given) else prompt_writer(config, folder)
    return [
        Prompt([{"text": prompt, "train": False}] if isinstance(prompt, str) or not write else _written(write, prompt))
        for prompt in given
    ]


def _written(write: PromptWriter, messages: Sequence[Mapping[str, Any]]) -> list[Meta]:
    try:
        (prompt,) = write([(Conversation(messages_of([*map(dict, messages)], WHERE)), WHERE)])
        return prompt
    except DataError as error:
        fix = "write each message as {role: user, content: ...}, in the order that the template wants"
        raise ConfigError(error.message, fix) from error


def refuse_messages(given: Sequence[Any], *, framed: bool) -> None:
    """Raise ConfigError for prompts of messages where no chat template frames the rows."""
    if not framed and not all(isinstance(given_prompt, str) for given_prompt in given):
        raise ConfigError(
            "evaluate.prompts has messages, and the model was not trained with a chat template", "write them as texts"
        )


def generate(
    model: Any,
    tokenizer: FastTokenizer,
    encoder: CausalEncoder,
    prompt: Prompt,
    config: GenerationConfig,
    *,
    positions: int | None,
    ends: list[int],
    sample: bool = True,
) -> Meta:
    """Generate a text for one prompt.

    Args:
        encoder: Turns the prompt into token ids.
        positions: Tokens that the model has positions for, or None.
        ends: Ids of the tokens that end a text.
        sample: Draw tokens; else take the most probable ones.

    Returns:
        row, prompt, answer, generated, tokens, prompt_tokens, prompt_tokens_cut, ended
    """
    import torch

    new = config.max_new_tokens if positions is None else min(config.max_new_tokens, max(positions // 2, 1))
    ids, prefix = prompt_ids(encoder, prompt.parts), tokenizer.prefix()
    opening = len(prefix) if ids[: len(prefix)] == prefix else 0
    # a prompt that leaves no room for the answer loses its first tokens
    kept = ids if positions is None else shortened(ids, positions - new, opening)
    torch.manual_seed(prompt_seed(config.seed, prompt.text))
    with torch.inference_mode():
        row = torch.tensor([kept], device=model.device)
        new_ids = model.generate(
            row,
            attention_mask=torch.ones_like(row),
            do_sample=sample,
            use_cache=True,
            temperature=config.temperature if sample else None,
            top_k=config.top_k if sample else None,
            top_p=config.top_p if sample else None,
            max_new_tokens=new,
            num_return_sequences=1,
            return_dict_in_generate=False,
            eos_token_id=ends or None,
            pad_token_id=ends[0] if ends else 0,
            **position_ids(model, row),
        )[0, len(kept) :].tolist()
    return {
        "row": prompt.row,
        "prompt": prompt.text,
        "answer": None if prompt.answer is None else _without_special(tokenizer.tokenizer, prompt.answer),
        "generated": tokenizer.tokenizer.decode(new_ids, skip_special_tokens=True),
        "tokens": len(new_ids),
        "prompt_tokens": len(ids),
        "prompt_tokens_cut": len(ids) - len(kept),
        "ended": bool(new_ids) and new_ids[-1] in ends,
    }


def prompt_seed(seed: int, text: str) -> int:
    """Return the seed for sampling the text of one prompt."""
    # of its own: adding or removing a prompt does not change the texts of others
    return int.from_bytes(hashlib.sha256(f"{seed}\n{text}".encode()).digest()[:8], "big") >> 1


def prompt_encoder(tokenizer: FastTokenizer, texts: Meta) -> CausalEncoder:
    """Return an encoder of prompts as in training, without an end token. texts: metadata of format_prompts."""
    from trnflow.tasks.data.tokenization.encoders import CausalEncoder

    framed, templates = texts.get("framed", False), tuple(texts.get("templates", ()))
    return CausalEncoder(tokenizer, 0, "error", add_eos=False, framed=framed, templates=templates)


def prompt_ids(encoder: CausalEncoder, parts: list[Meta]) -> list[int]:
    """Return the token ids of a prompt, with the special tokens with which a row begins."""
    import pyarrow as pa

    ids: list[int] = encoder.encode(pa.table({"parts": [parts]})).ids.tolist()
    return ids


def position_ids(model: Any, row: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return {"position_ids": int64 [1, length]} for a model whose positions do not start at 0, else {}."""
    import torch

    first = first_position(model)
    return {"position_ids": torch.arange(first, first + row.shape[1], device=row.device)[None]} if first else {}


def shortened(ids: list[int], room: int, opening: int) -> list[int]:
    """Cut token ids to at most `room`: keep the first `opening` ones and the last."""
    return ids if len(ids) <= room else [*ids[:opening], *ids[len(ids) - room + opening :]]


def _without_special(tokenizer: Any, answer: str) -> str:
    """Return the answer without special tokens, as a generated text is shown."""
    for token in tokenizer.get_added_tokens_decoder().values():
        answer = answer.replace(token.content, "") if token.special else answer
    return answer


def _prompt(parts: list[Meta]) -> Prompt:
    """Return a row as its first prompt, or all before the first supervised part, and the answer that follows."""
    ends = [index for index, part in enumerate(parts, 1) if part.get("ends_prompt")]
    answers = [index for index, part in enumerate(parts) if part["train"] or part.get(HELD_OUT)]
    first = next(iter(ends or answers), len(parts))
    begin = next((index for index in answers if index >= first), len(parts))
    end = next((index for index in range(begin, len(parts)) if index not in answers), len(parts))
    after = "".join(part["text"] for part in parts[first:end])  # later turns are no answer to this prompt
    if not any(part["text"] for part in parts[:first]) and (opening := OPENING.match(after)):
        return Prompt([{**parts[first], "text": opening[0]}], after[opening.end() :])
    return Prompt(parts[:first], after)
