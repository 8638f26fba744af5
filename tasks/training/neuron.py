"""Compiling for Trainium, through `neuron_parallel_compile`. Written from AWS's documentation and never run here.

Its trial run is this module started again, with a process a device by torchrun, as AWS does it. It executes every graph on
zeros, which extracts them; then the utility compiles them in parallel into the artifact's own cache, `neuron-cache/`.
Folders are private, because the default ones are shared. Success is read from its JSON: the exit code is the number of
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

from tasks.artifact import Input, Meta, Source
from tasks.errors import CompileError, MissingDependency
from tasks.stage import Workdir, read_json, write_json
from tasks.training.config import TrainConfig, ranks
from tasks.training.devices import check_device
from tasks.training.inventory import inventory
from tasks.training.ranks import joined

CACHE = "neuron-cache"


def compile_graphs(config: TrainConfig, model: Source, packed: Input, out: Workdir) -> list[Meta]:
    """The inventory, with every graph compiled into `neuron-cache/`. CompileError names the graphs that failed."""
    check_device(config)
    utility = shutil.which("neuron_parallel_compile")
    if utility is None:
        raise MissingDependency(
            "neuron_parallel_compile is not on the PATH", "install torch-neuronx from AWS's Neuron package index"
        )
    spec = out.scratch / "trial.json"
    found = out.scratch / "graphs.json"
    source = {**asdict(packed), "path": str(packed.path)}
    write_json(
        spec, {"config": config.model_dump(mode="json"), "model": asdict(model), "packed": source, "graphs": str(found)}
    )
    command = [
        utility,
        "--parallel_compile_workdir",
        str(out.scratch / "compile"),
        *trial_command(config, spec),
    ]
    variables = {"NEURON_PARALLEL_COMPILE_DUMP_RESULTS": "1", **cache_variables(out.path / CACHE)}
    status = subprocess.run(command, cwd=out.scratch, env={**os.environ, **variables}, check=False).returncode
    _check(out.scratch, status)
    graphs: list[Meta] = read_json(found)
    return graphs


def trial_command(config: TrainConfig, spec: Path) -> list[str]:
    """Of the trial run, in a process for each rank."""
    module = ["-m", "tasks.training.neuron", str(spec)]
    if ranks(config) == 1:
        return [sys.executable, *module]
    launcher = ["--standalone", "--local_addr=127.0.0.1", f"--nproc_per_node={ranks(config)}"]  # on a port that is free
    return [sys.executable, "-m", "torch.distributed.run", *launcher, *module]


def cache_variables(cache: Path) -> dict[str, str]:
    """Flags win over NEURON_COMPILE_CACHE_URL, so the cache is named there."""
    return {"NEURON_CC_FLAGS": f"{os.environ.get('NEURON_CC_FLAGS', '')} --cache_dir={cache}".strip()}


def use_cache(graphs: Input, out: Workdir) -> None:
    """Let this process find what precompile compiled, once `copy_cache` has been called by one of all ranks."""
    if (graphs.path / CACHE).is_dir():
        os.environ.update(cache_variables(out.scratch / CACHE))


def copy_cache(graphs: Input, out: Workdir) -> None:
    """Since the runtime writes locks into its cache."""
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
    with joined(config) as world:
        found = world.gather(inventory(config, Source(**document["model"]), packed, out, world))
    if found is not None:
        write_json(Path(document["graphs"]), agreed(found))


def agreed(found: list[list[Meta]]) -> list[Meta]:
    """found: the graphs of each rank. CompileError unless all are the same: replicas that ran other graphs would wait for each
    other."""
    for rank, graphs in enumerate(found):
        for graph, first in zip(graphs, found[0], strict=True):
            if graph["hash"] != first["hash"]:
                raise CompileError(
                    f"rank {rank} traced another graph {graph['name']} of length {graph['length'] or 'any'} than rank 0",
                    "this is a defect of trnflow: report it with the recipe (train.xla_processes=one has one graph for all)",
                )
    return found[0]


if __name__ == "__main__":
    _trial(Path(sys.argv[1]))
