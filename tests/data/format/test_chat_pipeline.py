"""Conversations from file to generations through the command line: what is evaluated is what was trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from tests.helpers.chats import chat_model
from tests.helpers.command_line import InProcessShell, Shell

TEMPLATE = """{{ bos_token }}
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- ' ' + message.content + eos_token }}
    {%- else %}
        {{- '[INST] ' + message.content + ' [/INST]' }}
    {%- endif %}
{%- endfor %}"""
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
DECODER = {
    "model_type": "roberta", "is_decoder": True, "vocab_size": 260, "hidden_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "intermediate_size": 64, "max_position_embeddings": 386, "pad_token_id": 2, "bos_token_id": 0,
    "eos_token_id": 1, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "initializer_range": 0.3,
}  # fmt: skip
"""Positions begin at 3, after the pad id."""
QUESTIONS = [f"Is </s> number {n} a token? <s>" for n in range(24)]
RECIPE = {
    "extends": "demo-llm",
    "name": "talks",
    "tracking": {"enabled": False},
    "data": {"source": "talks.jsonl", "name": None, "split": {"validation": 0.3}},
    "format": {"task": "chat"},
    "model": {"source": "model", "config": {}},
    "tokenize": {"train": None, "max_length": 256},
    "pack": {"chunk_length": 256},
    "train": {
        "engine": "native", "device": "cpu", "devices": 1, "tensor_parallel_size": 1, "zero1": False, "dtype": "float32",
        "max_steps": 2, "global_batch": 2, "micro_batch": 2,
    },
    "evaluate": {"split": "validation", "export_rows": 0, "generation": {"prompts": 3, "max_new_tokens": 4}},
}  # fmt: skip


def messages(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": "No, it is text."}]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> tuple[Shell, PreTrainedTokenizerFast]:
    folder = tmp_path_factory.mktemp("talks")
    _, fast = chat_model(folder / "model", TEMPLATE)
    (folder / "model/config.json").write_text(json.dumps(DECODER))
    rows = [{"messages": messages(question), "tools": TOOLS} for question in QUESTIONS]
    (folder / "talks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "talks.yaml").write_text(json.dumps(RECIPE))
    return InProcessShell(folder), fast


def test_preview_shows_what_the_template_was_given(house: tuple[Shell, PreTrainedTokenizerFast]) -> None:
    shell, fast = house
    shown = shell.json("preview", "talks.yaml", "1")["rows"][0]
    text = "".join(span["text"] for span in shown["spans"])
    number = int(text.partition("number ")[2].split()[0])
    assert text == fast.apply_chat_template(messages(QUESTIONS[number]), tools=TOOLS, tokenize=False)
    assert [span["text"] for span in shown["spans"] if span["train"]] == [" No, it is text.</s>"]


def test_generations_and_perplexity_are_of_rows_as_they_were_trained(
    house: tuple[Shell, PreTrainedTokenizerFast], tmp_path: Path
) -> None:
    """One bos; special tokens that a message spells are letters; positions begin where they began in training."""
    shell, fast = house
    done = shell.json("run", "talks.yaml", "--direct")
    metrics = {stage["stage"]: stage["metrics"] for stage in done["stages"]}
    assert metrics["evaluate_model"]["loss"] == pytest.approx(metrics["train"]["eval_loss"], abs=1e-5)
    shell.json("get", "talks.yaml", "evaluate_model", str(tmp_path / "evaluation"))
    lines = (tmp_path / "evaluation/generations.jsonl").read_text().splitlines()
    made: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert len(made) == 3
    for one in made:
        question = one["prompt"].partition("[INST] ")[2].removesuffix(" [/INST]")
        assert question in QUESTIONS
        asked = messages(question)[:1]
        assert one["prompt"] == fast.apply_chat_template(asked, tools=TOOLS, tokenize=False)
        ids = fast.apply_chat_template(asked, tools=TOOLS, sanitize_control_tokens=True, return_dict=False)
        assert one["prompt_tokens"] == len(ids)
        assert ids.count(fast.bos_token_id) == 1 and fast.eos_token_id not in ids
