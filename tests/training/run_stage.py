"""Run one training stage in a process of its own, or one for each rank: `run_stage` as a flow does, `Stage` to be killed.

python -m tests.training.run_stage SPEC.json PID RANK    a rank of a `Stage`
"""

from __future__ import annotations

import json
import math
import os
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.config import StageConfig
from trnflow.tasks.errors import ProcessFailed, TrnflowError, from_json
from trnflow.tasks.launch.call import Call, resolve
from trnflow.tasks.launch.local import run_call
from trnflow.tasks.launch.ranks import enter, leave, run_ranks
from trnflow.tasks.launch.warm_parents import modules_for, process_environ, start_guard
from trnflow.tasks.precompile import precompile
from trnflow.tasks.stage import Workdir, stage, stage_of, write_json
from trnflow.tasks.train import TrainConfig, ranks, train
from trnflow.tasks.train import environ as train_environ

PROJECT = Path(__file__).resolve().parents[2]
LIBRARIES = ("numpy", "tokenizers", "torch", "torch-xla", "transformers")
QUICKLY_COMPILED = "--xla_backend_optimization_level=0"  # such small graphs take longer to compile than to run


class FolderPartial:
    """The simplest `trnflow.tasks.stage.Partial`: folders beside each other, each with a COMMIT file written last."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def steps(self) -> list[int]:
        return sorted(int(file.parent.name) for file in self.root.glob("*/COMMIT"))

    def newest(self, warn: Callable[[str], None], upto: int | None = None) -> tuple[int, Path] | None:
        for step in self.steps():
            if upto is not None and step > upto:
                shutil.rmtree(self.root / str(step))
        steps = self.steps()
        return (steps[-1], self.root / str(steps[-1])) if steps else None

    def commit(self, step: int, folder: Path, digests: Mapping[str, str] | None = None) -> None:
        target = self.root / str(step)
        shutil.rmtree(target, ignore_errors=True)
        self.root.mkdir(parents=True, exist_ok=True)
        shutil.move(folder, target)
        (target / "COMMIT").write_bytes(b"")

    def sound(self, step: int, warn: Callable[[str], None]) -> Path | None:
        return self.root / str(step) if step in self.steps() else None

    def prune(self, keep: int, protect: Collection[int] = ()) -> None:
        for step in set(self.steps()[:-keep]) - set(protect):
            shutil.rmtree(self.root / str(step))


@dataclass
class Result:
    """artifact: the stage's output as the next stage's input; events: all it said."""

    artifact: Input
    events: list[dict[str, Any]]

    def said(self, kind: str) -> list[Any]:
        return [event[kind] for event in self.events if kind in event]

    @property
    def figures(self) -> dict[str, Any]:
        return {name: value for figures in self.said("figures") for name, value in figures.items()}

    def curve(self, name: str) -> dict[int, float]:
        return {m["step"]: m["values"][name] for m in self.said("metrics") if name in m["values"]}


class Forked:
    """A process that a warm parent forked under a guard, with what the tests need of `Popen`; it leads its group."""

    def __init__(self, spec: Path, environ: dict[str, str], log: IO[bytes]) -> None:
        lifeline, self._lifeline = os.pipe()
        events, said = os.pipe()
        guard = start_guard(
            "tests.training.run_stage:forked", [str(spec)], process_environ(environ), modules_for(LIBRARIES, environ),
            600.0, sys.maxsize, [lifeline, said, log.fileno()],
        )  # fmt: skip
        assert guard is not None
        os.write(self._lifeline, b"[]\n")
        for descriptor in (lifeline, said):
            os.close(descriptor)
        self._guard, self._events, self._status = guard, os.fdopen(events, "rb", buffering=0), None
        self.pid: int = self._told()["worker"]

    def _told(self) -> Meta:
        self._events.readline()  # the guard begins with a line break
        return dict(json.loads(self._events.readline())["guard"])

    def poll(self) -> int | None:
        return self.wait(0)

    def wait(self, timeout: float = math.inf) -> int | None:
        """Return the exit code, or minus the signal; None if it still runs."""
        if self._status is None and select.select([self._events], [], [], min(timeout, 600))[0]:
            self._status = self._told()["exit"]
            self._guard.wait()
            os.close(self._lifeline)
        return self._status


class Stage:
    """A started stage: `process` may be killed; `result` waits, and raises the stage's own error."""

    def __init__(
        self,
        function: Callable[..., Any],
        config: StageConfig,
        folder: Path,
        partial: Path | None = None,
        **inputs: Any,
    ) -> None:
        self.folder, self.kind = folder, stage_of(function).kind
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        spec = {
            "function": f"{function.__module__}:{function.__qualname__}",
            "config_type": f"{type(config).__module__}:{type(config).__qualname__}",
            "config": config.model_dump(mode="json"),
            "inputs": {name: [type(item).__name__, _plain(item)] for name, item in inputs.items()},
            "partial": str(partial) if partial else None,
            "ranks": stage_of(function).ranks(config),
        }
        (folder / "spec.json").write_text(json.dumps(spec))
        self._log = (folder / "log").open("wb")
        self.process = Forked(folder / "spec.json", environ_of(function, config), self._log)

    def events(self) -> list[dict[str, Any]]:
        file = self.folder / "events"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def result(self) -> Result:
        status = self.process.wait()
        self._log.close()
        if status != 0:
            error = self.folder / "error.json"
            if error.exists():
                raise from_json(json.loads(error.read_text()))
            raise RuntimeError(f"exit {status}: {(self.folder / 'log').read_text()[-4000:]}")
        meta = json.loads((self.folder / "meta.json").read_text())
        return Result(Input(self.folder / "out", self.kind, meta, "sha256:test"), self.events())


def run_stage(function: Callable[..., Any], config: StageConfig, folder: Path, **inputs: Any) -> Result:
    """Run a stage as a flow does: in a process under a guard, forked from a warm parent that has imported torch.

    A warm parent serves all stages with the same environment variables, so torch is not imported anew for each. `folder/log`
    takes what the process prints."""
    shutil.rmtree(folder, ignore_errors=True)
    definition, events = stage_of(function), list[dict[str, Any]]()
    environ = environ_of(function, config)
    call = Call.of(
        function,
        config,
        inputs,
        folder / "out",
        log=folder / "log",
        environ=environ,
        ranks=definition.ranks(config),
        preload=modules_for((*LIBRARIES, *(["peft"] if getattr(config, "lora", None) else [])), environ),
    )
    meta = run_call(call, events.append)
    return Result(Input(folder / "out", definition.kind, meta, "sha256:test"), events)


def environ_of(function: Callable[..., Any], config: StageConfig) -> dict[str, str]:
    """The variables of a stage's process; XLA compiles quickly, unless XLA_FLAGS are set."""
    environ = stage_of(function).environ(config)
    quick = {"XLA_FLAGS": QUICKLY_COMPILED} if "CPU_NUM_DEVICES" in environ and "XLA_FLAGS" not in os.environ else {}
    return {**quick, **environ}


def kill_after(stage: Stage, step: int, number: int = signal.SIGKILL) -> None:
    """Send `number` to all its processes, as the guard does, once the stage has reported more than `step` steps."""
    while stage.process.poll() is None:
        if any(event.get("progress", {}).get("done", 0) > step for event in stage.events()):
            os.killpg(stage.process.pid, number)
            return
        time.sleep(0.01)


@stage(kind="checkpoint", environ=train_environ, ranks=ranks)
def traced_and_trained(
    config: TrainConfig,
    model: Source,
    packed: Input,
    out: Workdir,
    warm_start: Input | None = None,
    metric: Source | None = None,
    reference: Input | None = None,
) -> Meta:
    """What of precompile training needs, and train, in one process, which saves a start; the graphs are listed all the same."""
    from trnflow.tasks.training.graphs.inventory import inventory
    from trnflow.tasks.training.objective import learnt

    graphs = Workdir(out.scratch / f"graphs-{os.environ.get('RANK', 0)}", out.scratch, lambda event: None)
    graphs.path.mkdir()
    if config.micro_batch == "auto":
        listed = precompile(config, model, packed, out=graphs)
    else:
        listed = {}
        write_json(graphs.path / "graphs.json", {"graphs": inventory(config, model, learnt(config, packed), graphs)})
    made = Input(graphs.path, "graphs", listed, "")
    return train(config, model, packed, warm_start, metric, reference=reference, out=out, graphs=made)


@stage(kind="checkpoint", environ=train_environ)
def counted(config: TrainConfig, model: Source, packed: Input, out: Workdir, reference: Input | None = None) -> Meta:
    """`traced_and_trained` on XLA, and how many graphs XLA itself says that the whole process compiled."""
    meta = traced_and_trained(config, model, packed, out, reference=reference)
    import torch_xla.debug.metrics as metrics

    out.figures(all_compiled=metrics.counter_value("UncachedCompile"))
    return meta


@stage(
    kind="checkpoint",
    environ=lambda config: {**train_environ(config), "TORCHINDUCTOR_COMPILE_THREADS": "1"},
    ranks=ranks,
)
def trained_with(config: TrainConfig, model: Source, packed: Input, graphs: Input, out: Workdir) -> Meta:
    """train alone, with the graphs of another process; what torch.compile found in its cache, and how often g++ ran."""
    from torch._dynamo.utils import counters
    from torch._inductor.cpp_builder import CppBuilder

    build, built = CppBuilder.build, []
    CppBuilder.build = lambda *given: built.append(1) or build(*given)  # type: ignore[method-assign]
    meta = train(config, model, packed, out=out, graphs=graphs)
    found = {name: counters["inductor"][name] for name in ("fxgraph_cache_hit", "fxgraph_cache_miss")}
    out.figures(**found, built=len(built))
    return meta


class ManyConfig(StageConfig):
    configs: tuple[TrainConfig, ...]


@stage(kind="graphs", environ=lambda config: train_environ(config.configs[0]))
def inventories(config: ManyConfig, model: Source, packed: Input, out: Workdir) -> Meta:
    """The graphs of several configs on the same devices: [{name/length: hash}]."""
    from trnflow.tasks.training.graphs.inventory import inventory

    found = [inventory(one, model, packed, out) for one in config.configs]
    return {"graphs": [{f"{graph['name']}/{graph['length']}": graph["hash"] for graph in graphs} for graphs in found]}


@stage(
    kind="checkpoint",
    environ=lambda config: train_environ(config.configs[0]),
    ranks=lambda config: ranks(config.configs[0]),
)
def trained_in_turn(
    config: ManyConfig, model: Source, packed: Input, out: Workdir, reference: Input | None = None
) -> Meta:
    """Several configs on the same devices, one after the other: see `run_in_turn`."""
    metas, meeting = [], os.environ.get("TRNFLOW_RENDEZVOUS", "")
    for number, one in enumerate(config.configs):
        os.environ["TRNFLOW_RENDEZVOUS"] = f"{meeting}-{number}"
        path, scratch = out.path / str(number), out.scratch / str(number)
        path.mkdir(exist_ok=True)
        scratch.mkdir(exist_ok=True)
        mine = Workdir(path, scratch, lambda event, number=number: out.emit({**event, "run": number}))  # type: ignore
        metas.append(traced_and_trained(one, model, packed, mine, reference=reference))
    return {"runs": metas}


def run_in_turn(configs: Sequence[TrainConfig], folder: Path, **inputs: Any) -> list[Result]:
    """What each config's training made and said. One process for all: starting XLA takes as long as a small run."""
    whole = run_stage(trained_in_turn, ManyConfig(configs=tuple(configs)), folder, **inputs)
    return [
        Result(
            Input(whole.artifact.path / str(number), "checkpoint", meta, f"sha256:{number}"),
            [event for event in whole.events if event["run"] == number],
        )
        for number, meta in enumerate(whole.artifact.meta["runs"])
    ]


def files_of(artifact: Input) -> dict[str, bytes]:
    return {
        str(file.relative_to(artifact.path)): file.read_bytes() for file in artifact.path.rglob("*") if file.is_file()
    }


def _plain(item: Input | Source) -> dict[str, Any]:
    fields = asdict(item)
    return {**fields, "path": str(fields["path"])} if "path" in fields else fields


def _input(kind: str, fields: dict[str, Any]) -> Input | Source:
    return Source(**fields) if kind == "Source" else Input(**{**fields, "path": Path(fields["path"])})


def forked(file: str) -> None:
    """Run a stage in a process that a warm parent forked."""
    os.chdir(PROJECT)
    status = main(file)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main(file: str) -> int:
    """Run a stage; return the exit code."""
    spec, folder = json.loads(Path(file).read_text()), Path(file).parent
    (folder / "out").mkdir()
    (folder / "scratch").mkdir()
    if spec["ranks"] == 1:
        result = call(spec, folder, rank=0)
    else:
        leader = os.getpid()
        result = run_ranks(lambda rank: one_rank(spec, folder, leader, rank), spec["ranks"], folder / "ranks")
    if "error" in result:
        (folder / "error.json").write_text(json.dumps(result["error"]))
        print(result["details"], file=sys.stderr)
        return 1
    (folder / "meta.json").write_text(json.dumps(result["meta"], allow_nan=False))
    return 0


def call(spec: Meta, folder: Path, rank: int) -> Meta:
    """{"meta": ...}, or {"error": ..., "details": traceback}."""
    events = (folder / "events").open("a", buffering=1)
    partial = FolderPartial(Path(spec["partial"])) if spec["partial"] else None

    def emit(event: Meta) -> None:
        if rank == 0:
            print(json.dumps(event), file=events)

    out = Workdir(folder / "out", folder / "scratch", emit, partial)
    config = resolve(spec["config_type"]).model_validate(spec["config"])
    inputs = {name: _input(*item) for name, item in spec["inputs"].items()}
    try:
        return {"meta": resolve(spec["function"])(config, **inputs, out=out)}
    except Exception as error:
        told = error if isinstance(error, TrnflowError) else ProcessFailed(f"{type(error).__name__}: {error}")
        return {"error": told.to_json(), "details": traceback.format_exc()}


def one_rank(spec: Meta, folder: Path, leader: int, rank: int) -> None:
    enter(rank, leader, folder / "ranks", signal.default_int_handler)
    result = call(spec, folder, rank)
    leave(rank, folder / "ranks", result)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int("error" in result))


def check_resumes_after_a_kill(config: TrainConfig, folder: Path, inputs: Mapping[str, Any]) -> None:
    """Train in one go, and again in a run that is killed and resumed: to the same files and metadata."""
    whole = run_stage(traced_and_trained, config, folder / "whole", **inputs)
    killed = Stage(traced_and_trained, config, folder / "killed", folder / "partial", **inputs)
    kill_after(killed, step=20)
    assert killed.process.wait() == -signal.SIGKILL
    step = FolderPartial(folder / "partial").steps()[-1]
    resumed = Stage(traced_and_trained, config, folder / "resumed", folder / "partial", **inputs).result()
    assert f"resumes at step {step}" in resumed.said("info")
    assert files_of(resumed.artifact) == files_of(whole.artifact) and resumed.artifact.meta == whole.artifact.meta
