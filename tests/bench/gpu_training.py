"""Engine native on a GPU beside what people use there: tokens per second, MFU, and peak memory against the estimate.

    python -m tests.bench.gpu_training [--cases llama,lora] [--ways NAME,...] [--steps 12] [--results FILE] [--toy]

The cases are described in `gpu_cases`, and their ways are in `gpu_items`; bf16, AdamW, clipping. Each way has a process of its
own; the first third of its steps, which compile, does not count. --toy runs every line on the CPU. A program that is not
installed says so.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

from tests.bench import gpu_peers
from tests.bench.gpu_cases import CASES, PAIRS, Case, flops, make_model, make_pairs, packed_rows, pairs_in, tweets
from tests.bench.gpu_items import COMPILED, DEFAULT, FASTEST, ITEMS, TRAINING
from tests.bench.gpu_results import QUIET, Results, add_options, device_name, results_of
from tests.conftest import PROJECT
from tests.training.toys import pretrained
from trnflow.tasks.artifact import Input, Meta
from trnflow.tasks.stage import Workdir
from trnflow.tasks.train import TrainConfig, environ

LORA = {"rank": 16, "alpha": 32, "dropout": 0.0, "targets": gpu_peers.TARGETS}
OURS: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    COMPILED: {"compile": True},
    FASTEST: {"compile": True, "deterministic": False},
    "trnflow by-length": {"group_by_length": True},
    "trnflow compile by-length": {"group_by_length": True, "compile": True},
}
MAKE, ESTIMATE = "make", "estimate"
LISTED = {case: ways for item in ITEMS if item.program == TRAINING for case, ways in item.cases.items()}


def config_of(case: Case, way: str, arguments: argparse.Namespace) -> TrainConfig:
    fields = OURS.get(way, {})
    if case.method == "dpo":
        fields = {**fields, "objective": "dpo"}
    elif case.method != "full":
        base = {"base_dtype": "nf4"} if case.method == "qlora" else {}
        fields = {**fields, "method": "lora", "lora": {**LORA, **base}}
    return TrainConfig(
        engine="native",
        device=arguments.device,
        global_batch=case.rows,
        max_steps=arguments.steps,
        learning_rate=gpu_peers.LEARNING_RATE,
        dtype="bfloat16",
        log_every=arguments.steps // 3,
        checkpoint_every=10**6,
        eval_every_epoch=False,
        allow_overcommit=True,
        **fields,
    )


def rows_of(case: Case, folder: Path, arguments: argparse.Namespace) -> Input:
    return pairs_in(arguments.work).packed if case.method == "dpo" else packed_rows(case, arguments.data, folder)


def ours(case: Case, way: str, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train in this process, which has the environment of the stage's."""
    from tests.training.run_stage import traced_and_trained
    from trnflow.tasks.training import fit

    fit._write_weights = lambda run: None  # written for as long as the steps take
    config, model = config_of(case, way, arguments), pretrained(arguments.work / case.model)
    packed, events = rows_of(case, folder / "packed", arguments), list[Meta]()
    inputs: dict[str, Any] = {"model": model, "packed": packed}
    reference = {} if case.method != "dpo" else _reference(config, inputs, folder)
    meta = traced_and_trained(
        config, **inputs, **reference.pop("inputs", {}), out=_workdir(folder / "train", events.append)
    )
    points = [event["metrics"] for event in events if "loss" in event.get("metrics", {}).get("values", {})]
    figures = {name: value for event in events for name, value in event.get("figures", {}).items()}
    first, last = points[0], points[-1]
    return {
        "seconds": (last["time"] - first["time"]) / (last["step"] - first["step"]),
        "memory": figures.get("device_memory_bytes", 0),
        "loss": meta["metrics"]["train_loss"],
        **reference,
    }


def _reference(config: TrainConfig, inputs: dict[str, Any], folder: Path) -> Meta:
    """Return the input that training compares with, and the seconds that an update's chunks took of it."""
    from trnflow.tasks.compute_reference import compute_reference

    times: list[tuple[float, int]] = []

    def note(event: Meta) -> None:
        if "progress" in event:
            times.append((time.perf_counter(), event["progress"]["done"]))

    meta = compute_reference(config, **inputs, out=_workdir(folder / "reference", note))
    # the first forward pass, which is not counted, waits for kernels
    (began, first), *_, (ended, last) = times
    seconds = (ended - began) / (last - first) * config.global_batch
    return {"inputs": {"reference": Input(folder / "reference", "reference", meta, "")}, "reference_seconds": seconds}


def _workdir(path: Path, emit: Callable[[Meta], None]) -> Workdir:
    scratch = path.with_name(f"{path.name}-scratch")
    path.mkdir()
    scratch.mkdir()
    return Workdir(path, scratch, emit)


def estimate(case: Case, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the bytes that the plan says that training without compiling takes."""
    from trnflow.tasks.training.memory.traced_memory import trace_memory

    packed = rows_of(case, folder / "packed", arguments)
    config = config_of(case, DEFAULT, arguments)
    return {"memory": trace_memory(config, pretrained(arguments.work / case.model), packed.meta).total}


def inner(arguments: argparse.Namespace) -> NoReturn:
    """Run one way in this process; print what it measured, as JSON."""
    case, way = case_of(arguments.cases[0], arguments), arguments.way
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if way == MAKE:
            figures = make(case, arguments)
        elif way == ESTIMATE:
            figures = estimate(case, folder, arguments)
        elif way in OURS:
            figures = ours(case, way, folder, arguments)
        else:
            peer = gpu_peers.WAYS[way]
            given = (case, arguments.work, folder, arguments.data, arguments.device, arguments.steps, peer.settings)
            figures = peer.run(gpu_peers.Work(*given))
    print(json.dumps(figures), flush=True)
    os._exit(0)  # at once: some libraries hang when they unload


def is_made(case: Case, arguments: argparse.Namespace) -> bool:
    """Return whether the model, and the pairs of dpo, are there."""
    return (arguments.work / case.model).exists() and (case.method != "dpo" or (arguments.work / PAIRS).exists())


def make(case: Case, arguments: argparse.Namespace) -> dict[str, Any]:
    """Write the model, and the pairs of dpo, unless they are there; return the FLOPs of an update."""
    if not (arguments.work / case.model).exists():
        make_model(case.config, arguments.work / case.model, arguments.device)
    if not is_made(case, arguments):
        make_pairs(case, arguments.work)
    rows = {} if case.causal else {"rows": tweets(case, arguments.data)[1]}
    return {"flops": flops(case, arguments.data), **rows}


def case_of(name: str, arguments: argparse.Namespace) -> Case:
    return CASES[name].as_toy() if arguments.toy else CASES[name]


def call(arguments: argparse.Namespace, name: str, way: str) -> dict[str, Any]:
    """Run one way in a process of its own; return what it measured, or {"failed": why}."""
    command = [sys.executable, "-m", "tests.bench.gpu_training", "--cases", name, "--way", way]
    command += ["--steps", str(arguments.steps), "--work", str(arguments.work), "--data", str(arguments.data)]
    environment = dict(os.environ)
    environment |= environ(config_of(case_of(name, arguments), way, arguments)) if way in OURS else {}
    command += ["--toy"] if arguments.toy else []
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=PROJECT, check=False)
    if done.returncode:
        print(done.stderr[-4000:], file=sys.stderr, flush=True)
        return {"failed": " | ".join(done.stderr.strip().splitlines()[-2:])[-300:]}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def compare(arguments: argparse.Namespace, name: str, results: Results) -> None:
    """Measure a case's ways in turn, and write each as it ends; the estimate is made beside the first."""
    case = case_of(name, arguments)
    with ThreadPoolExecutor(2) as beside:
        making = beside.submit(call, arguments, name, MAKE)
        if not is_made(case, arguments) and "failed" in making.result():
            return results.add(name, MAKE, **making.result())
        planned = beside.submit(call, arguments, name, ESTIMATE)
        planned.add_done_callback(lambda made: results.add(name, ESTIMATE, **made.result()))
        for way in arguments.ways or LISTED[name]:
            begun = time.monotonic()
            found, made = call(arguments, name, way), making.result()
            if "failed" not in found:
                found |= rates(case, found, made.get("flops"), arguments)
            rows = {"rows": made["rows"]} if "rows" in made else {}
            results.add(name, way, **found, **rows, wall=round(time.monotonic() - begun, 1))
    return None


def rates(case: Case, found: Meta, needed: float | None, arguments: argparse.Namespace) -> Meta:
    """Return {"rate": a second, "unit", perhaps "mfu"}. needed: the FLOPs of an update."""
    from trnflow.tasks.training.device_kinds import KINDS

    counted, unit = case.rows * case.length, "tokens/s"
    if not case.causal:
        counted, unit = case.rows, "rows/s"
    elif case.method == "dpo":
        counted, unit = pairs_in(arguments.work).an_update, "pairs/s"
    peak = KINDS["cuda"].peak_flops(device_name(arguments.device))
    share = {"mfu": needed / found["seconds"] / peak} if peak and needed else {}
    return {"rate": counted / found["seconds"], "unit": unit, **share}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, cases=[*LISTED], ways=None)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.device = "cpu" if arguments.toy else "cuda"
    if arguments.way:
        inner(arguments)
    os.environ.update(QUIET)
    with results_of(arguments) as results:
        for name in arguments.cases:
            compare(arguments, name, results)


if __name__ == "__main__":
    main()
