"""The task of language models: the next token, at the positions that `format_prompts` marks."""

from __future__ import annotations

from trnflow.tasks.kinds.kind import Kind


class CausalLM(Kind):
    name = "causal_lm"
    formats: tuple[str, ...] = ("instruction", "chat", "text")
    per_row = False
    per_position = True
    auto_class = "AutoModelForCausalLM"
    pipeline = "text-generation"
    adapter = "CAUSAL_LM"
    answers = {"prompt": "string", "generated": "string", "tokens": "long", "ended": "boolean"}
