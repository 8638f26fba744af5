"""What torch.compile made, kept with precompile's graphs for every later training of them.

precompile takes each step once, on blank rows and random weights of the right shapes. The cache is PyTorch's own format, which
holds pickles: it is made and read only where `train.compile_cache` says that the store is trusted.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from tasks.artifact import Input, Source
from tasks.stage import Workdir
from tasks.training.config import TrainConfig

FILE = "torch-compile-cache.bin"


def keep_cache(config: TrainConfig, model: Source, packed: Input, out: Workdir) -> None:
    """Compile every graph, and write `FILE`."""
    if not config.compile_cache:
        return
    _private(out.scratch)
    import torch

    _take_steps(config, replace(model, identity=model.identity | {"weights": None}), packed)
    found = torch.compiler.save_cache_artifacts()
    assert found is not None, "steps were compiled"
    (out.path / FILE).write_bytes(found[0])


def use_cache(config: TrainConfig, graphs: Input, out: Workdir) -> None:
    """Let this process find what precompile compiled, in a folder of its own."""
    if not config.compile_cache or not (graphs.path / FILE).is_file():
        return
    _private(out.scratch)
    import torch

    torch.compiler.load_cache_artifacts((graphs.path / FILE).read_bytes())


def _private(scratch: Path) -> None:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(scratch / "torch-compile")


def _take_steps(config: TrainConfig, model: Source, packed: Input) -> None:
    from tasks.training.adapters import prepared
    from tasks.training.engine import make_engine
    from tasks.training.inventory import Ledger, blank
    from tasks.training.model import build
    from tasks.training.optim import scalars

    built = prepared(config, build(model, packed, seed=0, weights=True), packed.meta)
    engine = make_engine(config, built, Ledger())
    for length in packed.meta["lengths"]:
        batch = blank(config.global_batch, length, packed.meta["task"])
        engine.train(batch, scalars(config, 0, 1, batch.supervised), seed=0)
        engine.fetch([engine.evaluate(next(batch.micros(config.micro_rows)))])
