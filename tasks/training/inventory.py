"""The graphs of a training run: listed by precompile, met by train, and nothing else compiled.

A graph has a name ("train", or "accumulate" and "update" where a global batch takes several passes; "eval"), a length
(0: any) and a hash. The hash is torch_xla's own of the traced graph, or for engine native one of the shapes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tasks.artifact import Input, Meta, Source
from tasks.errors import CompileError
from tasks.stage import Workdir, read_json
from tasks.training.config import TrainConfig
from tasks.training.ranks import ALONE, World

Key = tuple[str, int]


@dataclass
class Ledger:
    """listed: what precompile found, hash by name and length; None while it is being found."""

    listed: dict[Key, str] | None = None
    allow: bool = False
    met: dict[Key, Meta] = field(default_factory=dict)
    compiled: int = 0
    counted: int | None = None
    compile_seconds: float = 0.0
    unlisted: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, graphs: Input, *, allow: bool) -> Ledger:
        """That of precompile's artifact."""
        document = read_json(graphs.path / "graphs.json")
        return cls({(graph["name"], graph["length"]): graph["hash"] for graph in document["graphs"]}, allow)

    def meet(self, name: str, length: int, digest: str, inputs: list[Meta]) -> None:
        """Before a graph runs for the first time. CompileError when it is not the one that precompile listed."""
        self.met[name, length] = {"name": name, "length": length, "hash": digest, "inputs": inputs}
        if self.listed is None or self.listed.get((name, length)) == digest:
            return
        shapes = ", ".join(f"{entry['dtype']}{entry['shape']}" for entry in inputs)
        known = self.listed.get((name, length))
        why = f"precompile listed it as {known[:12]}" if known else "precompile did not list it"
        text = f"the graph {name} of length {length or 'any'} is {digest[:12]} and {why} (inputs {shapes})"
        if not self.allow:
            raise CompileError(
                text,
                "run precompile again with this very configuration, or set train.allow_recompile=true to compile it now",
            )
        self.unlisted.append(text)

    @contextmanager
    def running(self, name: str, length: int, *, first: bool, compiles: Callable[[], int]) -> Iterator[None]:
        """Around a graph's execution. compiles: how many graphs this process has compiled so far. CompileError when
        anything but the first execution compiles, such as saving or evaluating in between."""
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
        if not self.allow:
            fix = (
                "this is a defect of trnflow: report it with the recipe (train.allow_recompile=true goes on regardless)"
            )
            raise CompileError(what, fix)


def inventory(config: TrainConfig, model: Source, packed: Input, out: Workdir, world: World = ALONE) -> list[Meta]:
    """Trace every graph of `config` on the lengths of `packed`, sorted by name and length. world: of engine xla, where each of
    several processes traces its own."""
    from tasks.training.adapters import passes, prepared
    from tasks.training.devices import check_device
    from tasks.training.engine import make_engine
    from tasks.training.flops import flops_per_row
    from tasks.training.model import build
    from tasks.training.optim import scalars

    check_device(config)
    built = prepared(config, build(model, packed, seed=0, weights=False), packed.meta)
    ledger = Ledger()
    engine = make_engine(config, built, ledger, world=world)
    lengths = packed.meta["lengths"]
    for done, length in enumerate(lengths, start=1):
        batch = blank(config.global_batch, length, packed.meta["task"])
        engine.train(batch, scalars(config, 0, 1, batch.supervised), seed=0)
        engine.evaluate(next(batch.micros(config.micro_rows)))
        out.progress(done, len(lengths), "lengths")
    cost = passes(built)
    rows = {"train": cost * config.global_batch, "accumulate": cost * config.micro_rows, "eval": config.micro_rows}
    for graph in ledger.met.values():
        graph["flops"] = int(rows.get(graph["name"], 0) * flops_per_row(built, graph["length"]))
    return [ledger.met[key] for key in sorted(ledger.met)]


def blank(rows: int, length: int, task: str) -> Any:
    """A batch of the right shapes that says nothing."""
    import numpy as np

    from tasks.training.batches import Batch

    zeros = np.zeros((rows, length), np.int32)
    targets = np.zeros(rows if task == "classification" else (rows, length), np.int32)
    return Batch(length, zeros, targets, zeros + 1, zeros, samples=rows)
