"""Check each graph of a training run against the list that the stage precompile made before it, and count what is
compiled.

A graph is a computation for one shape of its inputs. Its name is "eval" for an evaluation; "train" for an update of
the weights; or, where a global batch takes several passes, "accumulate" for a pass and "update" for the update after
the passes. Its length is the number of tokens in a row, 0 for a graph that is the same for every length. Its hash is
torch_xla's hash of the traced graph, or for engine native a hash of the shapes and settings."""

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
    """The graphs that this process has traced and compiled, and the list of allowed graphs, which the stage precompile
    made before training. Training may run no graph that is not listed, unless `allow_unlisted` is set."""

    expected: dict[Key, str] | None = None
    """{(name, length): hash} of each graph that precompile listed; None while precompile itself makes the list."""

    allow_unlisted: bool = False
    """Whether a graph that precompile did not list is a warning instead of an error."""

    graphs: dict[Key, Meta] = field(default_factory=dict)
    """{(name, length): {"name", "length", "hash", "inputs": [{"shape", "dtype"} of each input]}} of each registered
    graph."""

    compiled: int = 0
    """The number of graphs that were compiled during training steps and evaluations."""

    counted: int | None = None
    """How many graphs this process had compiled after the latest execution of a graph; None before the first execution.
    A later change of the count shows a compilation outside the training steps."""

    compile_seconds: float = 0.0
    """The seconds of the first executions of all graphs together: compilation and first run."""

    unlisted: list[str] = field(default_factory=list)
    """A warning for each graph that precompile did not list."""

    @classmethod
    def from_artifact(cls, graphs: Input, *, allow_unlisted: bool) -> GraphRegistry:
        """Return a registry that allows the graphs listed in `graphs`, the artifact of the stage precompile.
        allow_unlisted: whether a graph that is not listed is a warning instead of an error."""
        document = read_json(graphs.path / "graphs.json")
        return cls({(graph["name"], graph["length"]): graph["hash"] for graph in document["graphs"]}, allow_unlisted)

    def register(self, name: str, length: int, digest: str, inputs: list[Meta]) -> None:
        """Record a graph that this process has traced and not yet run. Raise CompileError unless the stage precompile
        listed the graph with this hash.

        Args:
            name: "train", "accumulate", "update" or "eval".
            length: the number of tokens in a row; 0 for a graph that is the same for every length.
            digest: the graph's hash.
            inputs: {"shape", "dtype"} of each input of the graph.

        With `allow_unlisted` a warning is added to `unlisted` instead of the error. While precompile itself makes
        the list (`expected` is None), every graph is accepted."""
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
        """Count the graphs that are compiled within the context, in which the caller executes one graph. Raise
        CompileError when something was compiled at another time than a graph's first execution, for example while a
        checkpoint was saved; with `allow_unlisted` there is no error.

        name, length: the executed graph, as in `register`; first: whether this is its first execution; compiles: a
        function that returns how many graphs this process has compiled so far."""
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
