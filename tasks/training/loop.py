"""The loop: schedule, step, log, evaluate, checkpoint; the same for every engine and layout.

Host and device meet only at log points: until then losses stay on the device. What is reported does not depend on how
often it is: the mean training loss sums every step's in order. A loss or gradient that is not finite has changed nothing
(the update is gated on the device); it is found at the next log, and always before anything is written.
"""

from __future__ import annotations

import math
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from tasks.artifact import Input, Meta, Source
from tasks.errors import Interrupted, NonFiniteLoss
from tasks.stage import Partial, Workdir, write_json
from tasks.training import checkpoint
from tasks.training.batches import Schedule, Split
from tasks.training.config import TrainConfig
from tasks.training.devices import check_device, device_name
from tasks.training.engine import Engine, Handle, make_engine
from tasks.training.flops import flops_per_row, mfu
from tasks.training.inventory import Ledger
from tasks.training.model import Built, build
from tasks.training.neuron import use_cache
from tasks.training.optim import scalars
from tasks.training.ranks import World, joined

SEED_STRIDE = 1_000_003  # a step's dropout seed is seed * SEED_STRIDE + step


@dataclass
class Progress:
    """What a checkpoint holds beside tensors. step: updates done, and the whole state of the data; loss: summed over
    them; before, after: evaluation before the first step and the newest, made at step `evaluated`."""

    step: int = 0
    loss: float = 0.0
    before: dict[str, float] = field(default_factory=dict)
    after: dict[str, float] = field(default_factory=dict)
    evaluated: int = -1


@dataclass
class Meter:
    """Time and tokens of this process's steps."""

    start: float = field(default_factory=time.perf_counter)
    steps: int = 0
    waited: float = 0.0
    samples: int = 0
    supervised: int = 0
    real: int = 0
    padded: int = 0
    flops: int = 0
    evaluating: float = 0.0


def fit(config: TrainConfig, model: Source, packed: Input, graphs: Input, out: Workdir) -> Meta:
    """Train from the newest state in `out.partial`, or the start; write the artifact; return its metadata."""
    check_device(config)
    if config.device == "neuron":
        use_cache(graphs, out)
    with joined(config) as world:
        return _fit(config, model, packed, graphs, out, world)


def _fit(config: TrainConfig, model: Source, packed: Input, graphs: Input, out: Workdir, world: World) -> Meta:
    train, validation = Split(packed, "train"), Split(packed, "validation")
    schedule = Schedule(train.rows, config.global_batch, seed=config.seed, last_batch=config.last_batch)
    built = build(model, packed, seed=config.seed, weights=True)
    ledger = Ledger.of(graphs, allow=config.allow_recompile)
    newest = world.first(lambda: out.partial.newest(out.warn) if out.partial else None)
    stored = checkpoint.Reader(newest[1]) if newest else None
    engine = make_engine(config, built, ledger, stored, world)
    progress = Progress(**stored.state) if stored else Progress()
    if stored:
        out.info(f"resumes at step {progress.step}")
    run = Run(config, built, engine, ledger, schedule, train, validation, progress, out, world)
    with stop_signals() as stopped:
        run.loop(stopped)
    checkpoint.write(out.path, engine.boxes(state=False), {}, world.gather)
    if world.rank == 0:
        write_json(out.path / "config.json", built.config)
        _copy_tokenizer(packed, out)
    return {
        "task": built.task,
        "labels": packed.meta["labels"],
        "lengths": packed.meta["lengths"],
        "steps": progress.step,
        "metrics": run.summary(),
    }


class Run:
    """One call of `fit`."""

    def __init__(
        self,
        config: TrainConfig,
        built: Built,
        engine: Engine,
        ledger: Ledger,
        schedule: Schedule,
        train: Split,
        validation: Split,
        progress: Progress,
        out: Workdir,
        world: World,
    ) -> None:
        self.config, self.built, self.engine, self.ledger = config, built, engine, ledger
        self.schedule, self.train, self.validation = schedule, train, validation
        self.progress, self.out, self.world, self.meter = progress, out, world, Meter()
        self.total = config.max_steps or config.epochs * schedule.steps_per_epoch
        self.pending: list[tuple[int, Handle]] = []
        self.shown: dict[str, float] = {}
        self.row_flops = {length: flops_per_row(built, length) for length in train.rows}

    def loop(self, stopped: list[int]) -> None:
        at, config = self.progress, self.config
        if at.evaluated < 0:
            at.before = self.evaluate()
        self.meter = Meter()
        while at.step < self.total:
            self.step()
            last, epoch = at.step == self.total, at.step % self.schedule.steps_per_epoch == 0
            if at.step % config.log_every == 0 or last:
                self.log()
            if last or (epoch and config.eval_every_epoch):
                at.after = self.evaluate()
            stopping = not last and self.world.agree(bool(stopped))
            if not last and (stopping or at.step % config.checkpoint_every == 0):
                self.save()
            if stopping:
                raise Interrupted(
                    f"training was stopped at step {at.step} of {self.total}", "run the same command again to go on"
                )
        self.report()

    def step(self) -> None:
        """Enqueue one update."""
        at, meter = self.progress, self.meter
        asked = time.perf_counter()
        batch = self.train.read(self.schedule.address(at.step))
        supervised = batch.supervised
        meter.waited += time.perf_counter() - asked
        handle = self.engine.train(
            batch, scalars(self.config, at.step, self.total, supervised), self.config.seed * SEED_STRIDE + at.step
        )
        self.pending.append((at.step, handle))
        at.step += 1
        meter.steps += 1
        meter.samples += batch.samples
        meter.supervised += supervised
        meter.real += batch.real
        meter.padded += batch.input_ids.size
        meter.flops += 3 * self.config.global_batch * self.row_flops[batch.length]
        self.out.progress(at.step, self.total, "steps", **self.shown)

    def log(self) -> None:
        """Wait for the device, and say how the steps since the last log went."""
        self.settle()
        rate = self.meter.supervised / max(self.seconds(), 1e-9)
        lr = scalars(self.config, self.progress.step - 1, self.total, 1).lr
        self.out.metrics(self.progress.step, **self.shown, learning_rate=lr, tokens_per_second=rate)

    def settle(self) -> None:
        """Read the pending losses. NonFiniteLoss at the first that is not a number, before anything is written."""
        pending, self.pending = self.pending, []
        numbers = self.engine.fetch([handle for _, handle in pending])
        for (step, _), (loss, norm, good) in zip(pending, numbers, strict=True):
            if not good:
                raise self.broken(step, loss, norm)
            self.progress.loss += loss
            self.shown = {"loss": loss, "grad_norm": norm}

    def evaluate(self) -> dict[str, float]:
        """Loss and, for classification, accuracy on the validation split; {} without one."""
        self.settle()
        began = time.perf_counter()
        handles, targets = [], 0
        for address in self.validation.in_order(self.config.micro_rows):
            batch = self.validation.read(address)
            targets += batch.supervised
            handles.append(self.engine.evaluate(batch))
        numbers = self.engine.fetch(handles)
        self.progress.evaluated = self.progress.step
        self.meter.evaluating += time.perf_counter() - began
        if not targets:
            return {}
        found = {"eval_loss": math.fsum(loss for loss, _ in numbers) / targets}
        if self.built.task == "classification":
            found["eval_accuracy"] = sum(hits for _, hits in numbers) / targets
        self.out.metrics(self.progress.step, **found)
        return found

    def save(self) -> None:
        if self.out.partial is None:
            return
        self.settle()
        folder = self.out.scratch / f"step-{self.progress.step}"
        checkpoint.write(folder, self.engine.boxes(state=True), asdict(self.progress), self.world.gather)
        self.world.first(partial(self.publish, self.out.partial, folder))

    def publish(self, states: Partial, folder: Path) -> None:
        states.commit(self.progress.step, folder)
        states.prune(self.config.keep_checkpoints)

    def broken(self, step: int, loss: float, norm: float) -> NonFiniteLoss:
        address = self.schedule.address(step)
        rows = [int(row) for row in address.rows if row >= 0]
        what = f"loss {loss}" if not math.isfinite(loss) else f"loss {loss:.4g} and gradient norm {norm}"
        return NonFiniteLoss(
            f"step {step + 1} has {what}; the weights are as they were before it. Its rows of train/{address.length}: "
            f"{', '.join(map(str, rows[:8]))}{', ...' if len(rows) > 8 else ''} ({len(rows)} in all)",
            "lower train.learning_rate, raise train.warmup_ratio, or try train.dtype=float32",
        )

    def seconds(self) -> float:
        """Of training, without evaluation and compiling."""
        return time.perf_counter() - self.meter.start - self.meter.evaluating

    def summary(self) -> Meta:
        """The metrics of the artifact: no time, nothing that depends on how often was logged."""
        before = {f"{name}_before": value for name, value in self.progress.before.items()}
        return {"train_loss": self.progress.loss / max(self.progress.step, 1), **before, **self.progress.after}

    def report(self) -> None:
        meter, seconds = self.meter, max(self.seconds(), 1e-9)
        for text in self.ledger.unlisted:
            self.out.warn(text)
        peak = self.engine.peak_memory()
        self.out.figures(
            seconds=seconds,
            seconds_per_step=seconds / max(meter.steps, 1),
            samples_per_second=meter.samples / seconds,
            tokens_per_second=meter.supervised / seconds,
            real_tokens_per_second=meter.real / seconds,
            padded_tokens_per_second=meter.padded / seconds,
            compile_seconds=self.ledger.compile_seconds,
            compiled_graphs=self.ledger.compiled,
            data_wait_seconds=meter.waited,
            peak_memory_bytes=peak if peak is not None else _resident(),
            **mfu(meter.flops / seconds, device_name(self.config), self.config.devices),
        )


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collects SIGTERM and SIGINT instead of dying of them; a second one is fatal. The old handlers come back."""
    caught: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        if len(caught) > 1:
            raise Interrupted("training was stopped twice, and did not save", "run the same command again")

    old: dict[int, Any] = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield caught
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _copy_tokenizer(packed: Input, out: Workdir) -> None:
    import shutil

    for file in sorted((packed.path / "tokenizer").rglob("*")):
        if file.is_file():
            target = out.path / file.relative_to(packed.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)


def _resident() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
