"""Compile graphs for Trainium with AWS's `neuron_parallel_compile`. Written from AWS's documentation; never run.

Its trial run is this module, by torchrun, which executes every graph on zeros. It gets private folders, because its
default ones are shared and deleted at start; success is read from its JSON report, since the exit code is the number of
failed graphs modulo 256.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.errors import CompileError, MissingDependency
from trnflow.tasks.stage import Workdir, read_json, write_json
from trnflow.tasks.training.choose_engine import join_ranks
from trnflow.tasks.training.config import TrainConfig, ranks
from trnflow.tasks.training.devices import check_device
from trnflow.tasks.training.graphs.inventory import inventory

if TYPE_CHECKING:
    from trnflow.tasks.metadata import PackedMeta

CACHE = "neuron-cache"


def compile_graphs(config: TrainConfig, model: Source, packed: Input[PackedMeta], out: Workdir) -> list[Meta]:
    """Compile every graph into `neuron-cache/`; return the list. Raises MissingDependency, CompileError."""
    check_device(config)
    utility = shutil.which("neuron_parallel_compile")
    if utility is None:
        raise MissingDependency(
            "neuron_parallel_compile is not on the PATH", "install torch-neuronx from AWS's Neuron package index"
        )
    spec = out.scratch / "trial.json"
    listed = out.scratch / "graphs.json"
    source = {**asdict(packed), "path": str(packed.path)}
    write_json(
        spec,
        {"config": config.model_dump(mode="json"), "model": asdict(model), "packed": source, "graphs": str(listed)},
    )
    command = [utility, "--parallel_compile_workdir", str(out.scratch / "compile"), *trial_command(config, spec)]
    # a variable, not -P: torchrun's processes inherit it, and import no file of their working folder either
    variables = {
        "NEURON_PARALLEL_COMPILE_DUMP_RESULTS": "1",
        "PYTHONSAFEPATH": "1",
        **cache_variables(out.path / CACHE),
    }
    status = subprocess.run(command, cwd=out.scratch, env={**os.environ, **variables}, check=False).returncode
    _check(out.scratch, status)
    graphs: list[Meta] = read_json(listed)
    return graphs


def trial_command(config: TrainConfig, spec: Path) -> list[str]:
    """Return the command line of the trial run. spec: JSON of settings, model and packed rows."""
    module = ["-m", "trnflow.tasks.training.graphs.neuron_precompile", str(spec)]
    if ranks(config) == 1:
        return [sys.executable, *module]
    launcher = ["--standalone", "--local_addr=127.0.0.1", f"--nproc_per_node={ranks(config)}"]  # a free port
    return [sys.executable, "-m", "torch.distributed.run", *launcher, *module]


def cache_variables(cache: Path) -> dict[str, str]:
    """Return the variables that put Neuron's compile cache into a folder."""
    # the flag wins over NEURON_COMPILE_CACHE_URL
    return {"NEURON_CC_FLAGS": f"{os.environ.get('NEURON_CC_FLAGS', '')} --cache_dir={cache}".strip()}


def use_cache(graphs: Input, out: Workdir) -> None:
    """Let Neuron's compiler read from a folder in `out.scratch`, which `copy_cache` fills. Nothing without cache."""
    if (graphs.path / CACHE).is_dir():
        os.environ.update(cache_variables(out.scratch / CACHE))


def copy_cache(graphs: Input, out: Workdir) -> None:
    """Copy the cache to `out.scratch`, since Neuron's runtime writes locks into it. One rank calls this."""
    if (graphs.path / CACHE).is_dir():
        shutil.copytree(graphs.path / CACHE, out.scratch / CACHE)


def _check(folder: Path, status: int) -> None:
    reports = sorted(folder.glob("neuron_parallel_compile_results_*.json"))
    graphs = [graph for report in reports for graph in json.loads(report.read_text())["compilation_report"].items()]
    failed = [name for name, result in graphs if not result["status"]]
    if failed or (status and not graphs):
        raise CompileError(
            f"neuron_parallel_compile failed on {len(failed)} graphs: {', '.join(failed[:3]) or 'the trial run'}",
            "read the stage's log; failed graphs need smaller micro batches, shorter lengths or more tensor parallelism",
        )


def _trial(spec: Path) -> None:
    document = read_json(spec)
    packed = Input(**{**document["packed"], "path": Path(document["packed"]["path"])})
    out = Workdir(spec.parent, spec.parent, lambda event: None)
    config = TrainConfig.model_validate(document["config"])
    with join_ranks(config) as world:
        by_rank = world.gather(inventory(config, Source(**document["model"]), packed, out, world))
    if by_rank is not None:
        write_json(Path(document["graphs"]), check_same_graphs(by_rank))


def check_same_graphs(by_rank: list[list[Meta]]) -> list[Meta]:
    """Return rank 0's graphs. Raises CompileError when ranks differ."""
    for rank, graphs in enumerate(by_rank):
        for graph, first in zip(graphs, by_rank[0], strict=True):
            # ranks with other graphs would wait for each other for ever
            if graph["hash"] != first["hash"]:
                raise CompileError(
                    f"rank {rank} traced another graph {graph['name']} of length {graph['length'] or 'any'} than rank 0",
                    "this is a defect of trnflow: report it with the recipe (train.xla_processes=one has one graph for all)",
                )
    return by_rank[0]


if __name__ == "__main__":
    _trial(Path(sys.argv[1]))
