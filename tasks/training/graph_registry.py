"""Check each graph against precompile's list, and count what is compiled.

A graph is "eval", "train", or of several passes "accumulate" and "update". Its length is a row's tokens, 0 for any.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from trnflow.tasks.artifact import Input, Meta
from trnflow.tasks.errors import CompileError
from trnflow.tasks.stage import read_json

Key = tuple[str, int]
"""A graph's name and length."""


@dataclass
class GraphRegistry:
    """The graphs that this process traced and compiled; no other than precompile's may run unless `allow_unlisted`."""

    expected: dict[Key, str] | None = None
    """{(name, length): hash}; None while precompile makes the list."""

    allow_unlisted: bool = False
    """Whether an unlisted graph is a warning, not an error."""

    graphs: dict[Key, Meta] = field(default_factory=dict)
    """{(name, length): {"name", "length", "hash", "inputs": [{"shape", "dtype"}]}}."""

    compiled: int = 0
    """Graphs compiled during steps and evaluations."""

    counted: int | None = None
    """Graphs compiled when a graph last ran; a later change shows a compilation outside the steps."""

    compile_seconds: float = 0.0
    """Seconds of all first executions."""

    unlisted: list[str] = field(default_factory=list)
    """A warning for each graph that precompile did not list."""

    @classmethod
    def from_artifact(cls, graphs: Input, *, allow_unlisted: bool) -> GraphRegistry:
        """Return a registry that allows the graphs of precompile's artifact."""
        document = read_json(graphs.path / "graphs.json")
        return cls({(graph["name"], graph["length"]): graph["hash"] for graph in document["graphs"]}, allow_unlisted)

    def register(self, name: str, length: int, digest: str, inputs: list[Meta]) -> None:
        """Record a traced graph before it runs. Raises CompileError unless listed; a warning with `allow_unlisted`."""
        self.graphs[name, length] = {"name": name, "length": length, "hash": digest, "inputs": inputs}
        if self.expected is None or self.expected.get((name, length)) == digest:
            return
        shapes = ", ".join(f"{entry['dtype']}{entry['shape']}" for entry in inputs)
        listed = self.expected.get((name, length))
        why = f"precompile listed it as {listed[:12]}" if listed else "precompile did not list it"
        text = f"the graph {name} of length {length or 'any'} is {digest[:12]} and {why} (inputs {shapes})"
        if not self.allow_unlisted:
            raise CompileError(
                text,
                "run precompile again with this very configuration, or set train.allow_recompile=true to compile it now",
            )
        self.unlisted.append(text)

    @contextmanager
    def executing(self, name: str, length: int, *, first: bool, compiles: Callable[[], int]) -> Iterator[None]:
        """Count what is compiled while a graph executes. Raises CompileError except at its first time.

        compiles: returns how many graphs this process has compiled.
        """
        before, start = compiles(), time.perf_counter()
        if self.counted not in (None, before):
            self._defect("something beside the steps was compiled")
        yield
        self.counted = compiles()
        self.compiled += self.counted - before
        if first:
            self.compile_seconds += time.perf_counter() - start
        elif self.counted > before:
            self._defect(f"the graph {name} of length {length or 'any'} was compiled again after its first run")

    def _defect(self, what: str) -> None:
        if not self.allow_unlisted:
            fix = (
                "this is a defect of trnflow: report it with the recipe (train.allow_recompile=true goes on regardless)"
            )
            raise CompileError(what, fix)
