"""What is measured on a GPU, in order of worth: the one list that `gpu`, `gpu_wheels` and `gpu_table` read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

DEFAULT, COMPILED, FASTEST = "trnflow", "trnflow compile", "trnflow compile any-kernels"


BASE = ("pydantic", "transformers", "datasets", "peft")
"""What each item needs of packages that the lent machine lacks, or has in another version."""
UNSLOTH = ("unsloth==2026.10.9", "unsloth_zoo==2026.10.9", "trl==1.15.0", "datasets==4.8.5", "pydantic")
"""Unsloth wants older ones than BASE: transformers stays the machine's."""


class Item(NamedTuple):
    """A program below tests/bench, and what it measures.

    Attributes:
        call: In which command on the lent machine; the third is for another machine, since its wheels exclude the others'.
        seconds: After which it is ended, unless earlier items left some.
        program: The module that measures.
        needs: Packages that are taken along, beside `base`; with a version where the native lock has none.
        cases: {case: its ways, in order of worth}. A way is ours or another program's.
        base: Packages that all of the call's items need.
        steps: Updates of a training; the first third, which compiles, does not count.
    """

    name: str
    call: int
    seconds: int
    program: str
    cases: dict[str, tuple[str, ...]]
    needs: tuple[str, ...] = ()
    base: tuple[str, ...] = BASE
    steps: int = 12


TRL, LIGER, BITSANDBYTES = "trl==1.16.0", "liger-kernel==0.8.5", "bitsandbytes"
"""TRL 1.15 computes losses by kernels that no processor runs, so it can't be rehearsed."""
INSTALL = 20
"""Seconds until the wheels are installed."""

TRAINING = "gpu_training"

ITEMS = (
    Item("tests", 1, 70, "gpu_tests", {"test_cuda.py": (DEFAULT,)}),
    Item(
        "generation",
        1,
        70,
        "gpu_generation",
        {"64 prompts": (DEFAULT, "transformers generate", "transformers generate_batch")},
    ),
    Item("packed", 1, 90, TRAINING, {"packed": (FASTEST, "HF Trainer liger", DEFAULT, "TRL wrapped")}, (TRL, LIGER)),
    Item(
        "bert",
        1,
        50,
        TRAINING,
        {"bert": ("trnflow by-length", "HF Trainer by-length", DEFAULT, "trnflow compile by-length")},
        steps=198,
    ),
    Item(
        "qlora",
        2,
        100,
        TRAINING,
        {"qlora-7b": (FASTEST, "HF Trainer liger", DEFAULT, "HF Trainer")},
        (LIGER, BITSANDBYTES),
    ),
    Item("dpo", 2, 80, TRAINING, {"dpo": (DEFAULT, "TRL DPO", FASTEST, "TRL DPO precomputed")}, (TRL,)),
    Item(
        "llama",
        2,
        60,
        TRAINING,
        dict.fromkeys(("llama-4096", "llama-512"), (FASTEST, "HF Trainer liger", DEFAULT)),
        (LIGER,),
    ),
    Item(
        "unsloth",
        3,
        240,
        TRAINING,
        dict.fromkeys(("llama", "lora", "qlora"), ("Unsloth", FASTEST)),
        (BITSANDBYTES,),
        base=UNSLOTH,
    ),
)
NAMES = tuple(item.name for item in ITEMS)


class Row(NamedTuple):
    """What one way of one case is known by, in results and in the table."""

    item: str
    case: str
    way: str


def rows() -> Iterator[Row]:
    """Yield all that is to be measured."""
    for item in ITEMS:
        yield from (Row(item.name, case, way) for case, ways in item.cases.items() for way in ways)


def items_of(call: int | None, names: list[str] | None) -> list[Item]:
    """Return the items of a call, or of these names, in the list's order; all but the third call's without either."""
    return [item for item in ITEMS if (item.name in names if names else item.call in ({call} if call else {1, 2}))]
