"""The prompt of an instruction row in the wording of the Dolly or the Alpaca data set."""

from __future__ import annotations


def dolly(instruction: str, context: str) -> str:
    """Return the prompt in the wording of Dolly's tutorial. context: "" where there is none."""
    given = [f"### Context\n{context}"] if context else []
    return "\n\n".join([f"### Instruction\n{instruction}", *given, "### Answer\n"])


def alpaca(instruction: str, context: str) -> str:
    """Return the prompt in Alpaca's wording. context: "" where there is none."""
    return f"{alpaca_opening(context)}\n\n{alpaca_round(instruction, context)}"


def alpaca_opening(context: str, system: str = "") -> str:
    """Return what stands before the first round: a row's system prompt in the place of Alpaca's own, as axolotl and
    LLaMA-Factory have it."""
    paired = ", paired with an input that provides further context" if context else ""
    return system or (
        f"Below is an instruction that describes a task{paired}. "
        "Write a response that appropriately completes the request."
    )


def alpaca_round(instruction: str, context: str = "") -> str:
    """Return a round up to its response."""
    given = [f"### Input:\n{context}"] if context else []
    return "\n\n".join([f"### Instruction:\n{instruction}", *given, "### Response:\n"])


STYLES = {"dolly": dolly, "alpaca": alpaca}
"""`format.style` -> function of instruction and context."""
