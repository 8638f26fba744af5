"""Keep torch.compile's cache in precompile's artifact.

precompile runs each step once on blank rows and random weights. The cache is in PyTorch's format, which contains
pickles: written and read only with `train.compile_cache`, which declares the store trusted.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Input, Source
from trnflow.tasks.stage import Workdir
from trnflow.tasks.training.config import TrainConfig

if TYPE_CHECKING:
    from trnflow.tasks.metadata import PackedMeta

CACHE_FILE = "torch-compile-cache.bin"


def keep_cache(config: TrainConfig, model: Source, packed: Input[PackedMeta], out: Workdir) -> None:
    """Run each step once for each length on blank rows, and write the cache; without the setting nothing."""
    if not config.compile_cache:
        return
    _private(out.scratch)
    import torch

    _take_steps(config, replace(model, identity=model.identity | {"weights": None}), packed)
    cache = torch.compiler.save_cache_artifacts()
    assert cache is not None, "steps were compiled"
    (out.path / CACHE_FILE).write_bytes(cache[0])


def use_cache(config: TrainConfig, graphs: Input, out: Workdir) -> None:
    """Load the cache of precompile's artifact into this process. Nothing without setting or cache."""
    if not config.compile_cache or not (graphs.path / CACHE_FILE).is_file():
        return
    _private(out.scratch)
    import torch

    torch.compiler.load_cache_artifacts((graphs.path / CACHE_FILE).read_bytes())


def _private(scratch: Path) -> None:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(scratch / "torch-compile")


def _take_steps(config: TrainConfig, model: Source, packed: Input[PackedMeta]) -> None:
    from trnflow.tasks.training.choose_engine import make_engine
    from trnflow.tasks.training.graph_registry import GraphRegistry
    from trnflow.tasks.training.graphs.inventory import blank
    from trnflow.tasks.training.model.adapters import prepared
    from trnflow.tasks.training.model.build import build
    from trnflow.tasks.training.optim.optimizer import scalars

    built = prepared(config, build(model, packed, seed=0, weights=True), packed.meta)
    engine = make_engine(config, built, GraphRegistry())
    for length in packed.meta["lengths"]:
        batch = blank(config.global_batch, length, packed.meta)
        engine.train(batch, scalars(config, 0, 1, batch.supervised), seed=0)
        engine.fetch([engine.evaluate(next(batch.micro_batches(config.micro_rows)))])
