"""Compiling for Trainium, through `neuron_parallel_compile`. Written from AWS's documentation and never run here.

Its trial run is this module started again: it executes every graph on zeros, which extracts them; then the utility compiles
them in parallel into the artifact's own cache, `neuron-cache/`. Folders are private, because the default ones are shared.
Success is read from its JSON: the exit code is the number of failed graphs modulo 256.
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
from tasks.training.config import TrainConfig
from tasks.training.devices import check_device
from tasks.training.inventory import inventory

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
        sys.executable,
        "-m",
        __name__,
        str(spec),
    ]
    variables = {"NEURON_PARALLEL_COMPILE_DUMP_RESULTS": "1", **cache_variables(out.path / CACHE)}
    status = subprocess.run(command, cwd=out.scratch, env={**os.environ, **variables}, check=False).returncode
    _check(out.scratch, status)
    graphs: list[Meta] = read_json(found)
    return graphs


def cache_variables(cache: Path) -> dict[str, str]:
    """Flags win over NEURON_COMPILE_CACHE_URL, so the cache is named there."""
    return {"NEURON_CC_FLAGS": f"{os.environ.get('NEURON_CC_FLAGS', '')} --cache_dir={cache}".strip()}


def use_cache(graphs: Input, out: Workdir) -> None:
    """Let this process find what precompile compiled. A copy, since the runtime writes locks into its cache."""
    cache = out.scratch / CACHE
    if (graphs.path / CACHE).is_dir():
        shutil.copytree(graphs.path / CACHE, cache)
        os.environ.update(cache_variables(cache))


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
    write_json(Path(document["graphs"]), inventory(config, Source(**document["model"]), packed, out))


if __name__ == "__main__":
    _trial(Path(sys.argv[1]))
