"""Keep torch.compile's cache in precompile's artifact.

precompile runs each step once on blank rows and random weights, on the ranks that train: each keeps its own cache, since
graphs name the rank's device. The cache is in PyTorch's format, which contains pickles: written and read only with
`train.compile_cache`, which declares the store trusted.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Input, Source
from trnflow.tasks.stage import Workdir
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.world import World

if TYPE_CHECKING:
    from trnflow.tasks.metadata import PackedMeta


def cache_file(graphs: Path, rank: str | int) -> Path:
    """Return the path of a rank's cache in precompile's artifact; beside it are the CPU's kernels, which torch leaves out."""
    return graphs / "torch-compile" / str(rank) / "graphs.bin"


def keep_cache(config: TrainConfig, model: Source, packed: Input[PackedMeta], out: Workdir) -> None:
    """Run each step once for each length on blank rows, and write this rank's cache; without the setting nothing."""
    if not config.compile_cache:
        return
    folder = _private(out.scratch)
    import torch

    from trnflow.tasks.training.choose_engine import join_ranks

    with join_ranks(config, rows=packed.digest) as world:
        _take_steps(config, replace(model, identity=model.identity | {"weights": None}), packed, world)
    cache = torch.compiler.save_cache_artifacts()
    assert cache is not None, "steps were compiled"
    file = cache_file(out.path, world.rank)
    shutil.copytree(folder, file.parent / _processor(), ignore=_all_but_kernels)
    file.write_bytes(cache[0])


def use_cache(config: TrainConfig, graphs: Input, out: Workdir) -> None:
    """Load this rank's cache of precompile's artifact into this process. Nothing without the setting."""
    if not config.compile_cache:
        return
    folder = _private(out.scratch)
    import torch

    if (file := cache_file(graphs.path, _rank())).is_file():
        if (kernels := file.parent / _processor()).is_dir():
            shutil.copytree(kernels, folder, copy_function=shutil.copyfile, dirs_exist_ok=True)
        torch.compiler.load_cache_artifacts(file.read_bytes())


def warn_of_misses(config: TrainConfig, world: World, out: Workdir) -> None:
    """Say how many graphs this training compiled, all ranks together, because the cache lacked them."""
    if not config.compile_cache:
        return
    from torch._dynamo.utils import counters

    counts = world.gather(counters["inductor"]["fxgraph_cache_miss"]) or []
    if any(counts):
        out.warn(
            f"torch.compile compiled {sum(counts)} graphs that precompile's cache lacks: it is of other code, another torch or "
            "another kind of device (--force precompile makes it again)"
        )


def _rank() -> str:
    return os.environ.get("RANK", "0")


def _processor() -> str:
    """Return a digest of what this processor can do, for which kernels are compiled."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text(encoding="utf-8").splitlines() if about.exists() else []
    known = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    return hashlib.sha256(known.encode()).hexdigest()[:12]


def _all_but_kernels(folder: str, names: list[str]) -> list[str]:
    """Return the files of a folder that are no shared libraries."""
    return [name for name in names if not name.endswith(".so") and not Path(folder, name).is_dir()]


def _private(scratch: Path) -> Path:
    """Give this rank an empty cache, and return its folder."""
    folder = scratch / f"torch-compile-{_rank()}"
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    import torch._inductor.config as settings

    # a header would be compiled before it is known whether the kernels are there
    settings.cpp_cache_precompile_headers = False
    return folder


def _take_steps(config: TrainConfig, model: Source, packed: Input[PackedMeta], world: World) -> None:
    from trnflow.tasks.training.graphs.inventory import blank, random_engine
    from trnflow.tasks.training.optim.optimizer import scalars

    engine = random_engine(config, model, packed, world)
    for length in packed.meta["lengths"]:
        batch = blank(config.global_batch, length, packed.meta)
        engine.train(batch, scalars(config, 0, 1, batch.supervised), seed=0)
        engine.fetch([engine.evaluate(next(batch.micro_batches(config.micro_rows)))])
