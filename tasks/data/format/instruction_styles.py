"""The prompt of an instruction row in the wording of the Dolly or the Alpaca data set."""

from __future__ import annotations


def dolly(instruction: str, context: str) -> str:
    """Return the prompt in the wording of Dolly's tutorial. context: "" where there is none."""
    given = [f"### Context\n{context}"] if context else []
    return "\n\n".join([f"### Instruction\n{instruction}", *given, "### Answer\n"])


def alpaca(instruction: str, context: str) -> str:
    """Return the prompt in Alpaca's wording. context: "" where there is none."""
    given = [f"### Input:\n{context}"] if context else []
    paired = ", paired with an input that provides further context" if context else ""
    opening = (
        f"Below is an instruction that describes a task{paired}. "
        "Write a response that appropriately completes the request."
    )
    return "\n\n".join([opening, f"### Instruction:\n{instruction}", *given, "### Response:\n"])


STYLES = {"dolly": dolly, "alpaca": alpaca}
"""`format.style` -> function of instruction and context."""
