"""Say in a GGUF file and a Modelfile how tokens are drawn: llama.cpp and Ollama would draw them by defaults of their own."""

from __future__ import annotations

from typing import Any

NAMES = {
    "temperature": "temp", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "repeat_penalty": "penalty_repeat",
    "repeat_last_n": "penalty_last_n",
}  # fmt: skip
"""{Ollama's name: that behind `general.sampling.` in GGUF}."""
WHOLE = ("top_k", "repeat_last_n")
"""What is a whole number."""
MOST = 50
"""The tokens among which transformers draws where nothing says how many."""


def sampling_of(settings: Any) -> dict[str, float]:
    """Return how transformers draws tokens, by Ollama's names; the best token has temperature 0. settings: a GenerationConfig."""
    penalty = settings.repetition_penalty or 1.0
    # transformers' penalty is for all tokens before, theirs for the last 64
    repeated = {"repeat_penalty": penalty, **({"repeat_last_n": -1} if penalty != 1 else {})}
    if not settings.do_sample:
        return {"temperature": 0.0, **repeated}
    return {
        "temperature": 1.0 if settings.temperature is None else settings.temperature,
        "top_k": MOST if settings.top_k is None else settings.top_k,
        "top_p": 1.0 if settings.top_p is None else settings.top_p,
        "min_p": settings.min_p or 0.0,
        **repeated,
    }


def write_sampling(writer: Any, sampling: dict[str, float]) -> None:
    """Add what `sampling_of` returns to a GGUF file. writer: a GGUFWriter."""
    for name, value in sampling.items():
        add = writer.add_int32 if name in WHOLE else writer.add_float32
        add(f"general.sampling.{NAMES[name]}", value)
