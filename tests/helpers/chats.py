"""What tests of conversations share: chat templates as data, a tokenizer that holds one, rows, and transformers' answer."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from tests.helpers.data_stages import loaded_rows
from trnflow.tasks.artifact import Input

TEMPLATES = Path(__file__).parent / "chat_templates"
ROLES = {"human": "user", "gpt": "assistant", "function_call": "assistant", "observation": "tool", "system": "system"}
"""ShareGPT's, for the reference."""


def chat_template(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")


def tokenizer_in(folder: Path, template: str | None) -> Path:
    """A byte-level tokenizer that frames texts with bos by itself, as Llama's does; the names in angle brackets that the template
    writes are its special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    written = re.findall(r"<\|[a-z_]+\|>|<｜[^｜>]+｜>", template or "")
    special = list(dict.fromkeys(["<s>", "</s>", "<|im_start|>", "<|im_end|>", *written]))
    vocabulary = {text: number for number, text in enumerate([*special, *alphabet])}
    found = Tokenizer(models.BPE(vocabulary, []))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    found.add_special_tokens(special)
    found.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    fast = PreTrainedTokenizerFast(tokenizer_object=found, bos_token="<s>", eos_token="</s>", chat_template=template)
    fast.save_pretrained(folder)
    return folder


def chat_model(folder: Path, template: str | None) -> tuple[dict[str, Any], PreTrainedTokenizerFast]:
    """(the recipe's `model`, its tokenizer as transformers loads it)."""
    tokenizer_in(folder, template)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return {"source": str(folder)}, PreTrainedTokenizerFast.from_pretrained(folder)


def rows_of(root: Path, column: str, talks: list[Any], **columns: list[Any]) -> Input:
    return loaded_rows(root, {column: talks, **columns})


def token_rows(tokens: Input, split: str = "train") -> list[tuple[list[int], list[int]]]:
    """(ids, loss mask) of each row of tokenize_text's artifact."""
    folder = tokens.path / split
    ends = np.load(folder / "offsets.npy")[1:-1]
    ids, mask = (np.split(np.load(folder / f"{name}.npy"), ends) for name in ("input_ids", "loss_mask"))
    return [(one.tolist(), other.tolist()) for one, other in zip(ids, mask, strict=True)]


def transformers_row(fast: PreTrainedTokenizerFast, messages: list[Any], **given: Any) -> tuple[list[int], list[int]]:
    """(ids, assistant mask) as transformers makes them; its `strftime_now` can't be set, so templates are told the date."""
    made = fast.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True, **given)
    return list(made["input_ids"]), list(made["assistant_masks"])


def openai(conversation: list[dict[str, str]]) -> list[dict[str, Any]]:
    """ShareGPT's turns as transformers takes them."""
    return [{"role": ROLES[turn["from"]], **said(turn)} for turn in conversation]


def said(turn: dict[str, str]) -> dict[str, Any]:
    if turn["from"] != "function_call":
        return {"content": turn["value"]}
    return {"tool_calls": [{"type": "function", "function": json.loads(turn["value"])}]}


def openai_tools(text: str | None) -> list[Any] | None:
    """LLaMA-Factory's tools, JSON text of bare functions, as transformers takes them."""
    return [{"type": "function", "function": tool} for tool in json.loads(text or "[]")] or None
