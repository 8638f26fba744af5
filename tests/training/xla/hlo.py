"""What XLA made of the graphs of a stage's process: its own dumps, read as text.

Every module that XLA compiles is there: as torch_xla traced it, and as GSPMD's partitioner left it, one device's program.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

KINDS = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")
BYTES = {"pred": 1, "bf16": 2, "f16": 2, "f32": 4, "s32": 4, "u32": 4, "f64": 8, "s64": 8, "u64": 8}
INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?\S+ = (\([^=]*?\)|\S+) ([a-z][\w-]*)\((.*)")


@dataclass(frozen=True)
class Module:
    """instructions: (operator, its result's type, operands and attributes), those of its computations too."""

    instructions: list[tuple[str, str, str]]

    @classmethod
    def read(cls, file: Path) -> Module:
        found = filter(None, map(INSTRUCTION.match, file.read_text().splitlines()))
        return cls(
            [(name, re.sub(r"\{[\d,]*\}", "", kind), rest) for kind, name, rest in (one.groups() for one in found)]
        )

    @property
    def operators(self) -> set[str]:
        """Their names; of a custom call its target's as well."""
        targets = [re.findall('custom_call_target="([^"]*)"', rest) for _, _, rest in self.instructions]
        return {" ".join([name, *target]) for (name, _, _), target in zip(self.instructions, targets, strict=True)}

    @property
    def types(self) -> set[str]:
        return {name for _, kind, _ in self.instructions for name in re.findall(r"([a-z]+\d+)\[", kind)}

    @property
    def collectives(self) -> Counter[tuple[str, str]]:
        return Counter((name, kind) for name, kind, _ in self.instructions if name.removesuffix("-start") in KINDS)

    @property
    def moved(self) -> int:
        return sum(count * size(kind) for (_, kind), count in self.collectives.items())


def size(kind: str) -> int:
    """Bytes of a type such as `f32[8,128]`, or of a tuple of them."""
    shapes = re.findall(r"([a-z]+\d*)\[([\d,]*)\]", kind)
    return sum(BYTES[name] * math.prod(int(n) for n in dimensions.split(",") if n) for name, dimensions in shapes)


@contextmanager
def dumped(to: Path) -> Iterator[None]:
    """Let the stages that run in this context write their modules to a new folder.

    They write to a place that is the same for all, so that one process that has imported torch_xla serves all."""
    common = Path(tempfile.gettempdir()) / f"trnflow-hlo-{os.getpid()}"
    flags = ["--xla_dump_hlo_as_text", "--xla_dump_hlo_pass_re=spmd-partitioning", "--xla_backend_optimization_level=0"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_FLAGS", " ".join([f"--xla_dump_to={common}", *flags]))
        yield
    shutil.move(common, to)


def traced(folder: Path) -> list[Module]:
    """Modules as torch_xla traced them, in the order in which they were compiled."""
    return [Module.read(file) for file in sorted(folder.glob("*.before_optimizations.txt"))]


def partitioned(folder: Path) -> list[Module]:
    """A device's programs that multiply matrices or move data, in the order in which they were compiled."""
    modules = [Module.read(file) for file in sorted(folder.glob("*.after_spmd-partitioning.*.txt"))]
    return [module for module in modules if "dot" in module.operators or module.collectives]
