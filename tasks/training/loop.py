"""The loop: schedule, step, log, evaluate, checkpoint; the same for every engine and layout.

Host and device meet only at log points: until then losses stay on the device, and a thread reads the next batch. What is
reported does not depend on how often it is: the mean training loss sums every step's in order. A loss or gradient that is
not finite has changed nothing (the update is gated on the device); it is found at the next log, and always before anything
is written.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from types import FrameType
from typing import Any

from tasks.artifact import Meta
from tasks.errors import Interrupted, NonFiniteLoss
from tasks.stage import Workdir
from tasks.training.adapters import passes
from tasks.training.ahead import ahead
from tasks.training.batches import Batch, Schedule, Split
from tasks.training.config import TrainConfig
from tasks.training.devices import device_name
from tasks.training.engine import Engine, Handle
from tasks.training.flops import flops_per_row, mfu
from tasks.training.inventory import Ledger
from tasks.training.meter import Meter, Meters, host_memory
from tasks.training.model import Built
from tasks.training.objective import target_weight
from tasks.training.optim import scalars
from tasks.training.ranks import World
from tasks.training.saving import Saver
from tasks.training.selection import Best

SEED_STRIDE = 1_000_003  # a step's dropout seed is seed * SEED_STRIDE + step


@dataclass
class Progress:
    """What a checkpoint holds beside tensors. step: updates done, and the whole state of the data; loss: summed over
    them; before, after: evaluation before the first step and the newest, made at step `evaluated`; best: of the evaluations
    since the first step."""

    step: int = 0
    loss: float = 0.0
    before: dict[str, float] = field(default_factory=dict)
    after: dict[str, float] = field(default_factory=dict)
    evaluated: int = -1
    best: Best = field(default_factory=Best)

    @classmethod
    def of(cls, state: Meta) -> Progress:
        return cls(**{**state, "best": Best(**state["best"])})


class Run:
    """From where the engine stands to the last step."""

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
        saver: Saver,
    ) -> None:
        self.config, self.built, self.engine, self.ledger = config, built, engine, ledger
        self.schedule, self.train, self.validation = schedule, train, validation
        self.progress, self.out, self.world, self.saver, self.meters = progress, out, world, saver, Meters()
        self.total = config.max_steps or config.epochs * schedule.steps_per_epoch
        self.pending: list[tuple[int, Handle]] = []
        self.shown: dict[str, float] = {}
        self.row_flops = cache(partial(flops_per_row, built))
        self.passes = passes(built)

    def loop(self, stopped: list[int]) -> None:
        at = self.progress
        if at.evaluated < 0:
            at.before = self.evaluate()
        self.meters = Meters()
        addresses = map(self.schedule.address, range(at.step, self.total))
        with closing(ahead(self.train.read, addresses)) as batches:
            self.steps(batches, stopped)
        with self.meters.pausing():
            self.saver.wait()
        if at.step < self.total:
            self.out.info(
                f"stopped early at step {at.step} of {self.total}: {self.config.best_metric} was best at step {at.best.step}"
            )
        self.report()

    def steps(self, batches: Iterator[Batch], stopped: list[int]) -> None:
        at, config = self.progress, self.config
        while at.step < self.total and not at.best.exhausted(config):
            self.step(batches)
            last = at.step == self.total
            if at.step % config.log_every == 0 or last:
                self.log()
            best = self.due() and self.assess()
            stopping = not last and self.world.agree(bool(stopped))
            if not last and (best or stopping or at.step % config.checkpoint_every == 0):
                self.save()
            if stopping:
                raise self.stopped()

    def due(self) -> bool:
        """Whether to evaluate after this step."""
        at, config = self.progress, self.config
        epoch = at.step % self.schedule.steps_per_epoch == 0 and config.eval_every_epoch
        often = config.eval_every is not None and at.step % config.eval_every == 0
        return epoch or often or at.step == self.total

    def assess(self) -> bool:
        """Evaluate; whether it was the best so far, on every rank alike."""
        at = self.progress
        at.after = self.evaluate()
        if not self.config.keeps_best:
            return False
        at.best = self.world.share(at.best.after(self.config, at.step, at.after))
        return at.best.step == at.step

    def step(self, batches: Iterator[Batch]) -> None:
        """Enqueue one update."""
        at, compiled = self.progress, self.ledger.compile_seconds
        with self.meters.waiting():
            batch = next(batches)
        targets = target_weight(batch, self.built.class_weights)
        handle = self.engine.train(
            batch, scalars(self.config, at.step, self.total, targets), self.config.seed * SEED_STRIDE + at.step
        )
        compiling = self.ledger.compile_seconds - compiled
        if compiling:  # a step of another kind: neither its tokens nor its time count
            self.meters.add_elsewhere(compiling)
        else:
            rows, positions = batch.input_ids.shape
            self.meters.count(batch, int(self.passes * rows * self.row_flops(positions)))
        self.pending.append((at.step, handle))
        at.step += 1
        self.out.progress(at.step, self.total, "steps", **self.shown)

    def log(self) -> None:
        """Wait for the device, and say how the steps since the last log went."""
        self.settle()
        self.saver.check()
        lr = scalars(self.config, self.progress.step - 1, self.total, 1).lr
        self.out.metrics(self.progress.step, **self.shown, learning_rate=lr, **self.measured(self.meters.lap))
        self.meters.lap = Meter()

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
        handles, targets = [], 0
        with self.meters.pausing():
            for batch in ahead(self.validation.read, self.validation.in_order(self.config.micro_rows)):
                targets += batch.supervised
                handles.append(self.engine.evaluate(batch))
            numbers = self.engine.fetch(handles)
        self.progress.evaluated = self.progress.step
        if not targets:
            return {}
        found = {"eval_loss": math.fsum(loss for loss, _ in numbers) / targets}
        if self.built.task == "classification":
            found["eval_accuracy"] = sum(hits for _, hits in numbers) / targets
        self.out.metrics(self.progress.step, **found)
        return found

    def save(self) -> None:
        """Copy the state; it is written while training goes on."""
        self.settle()
        with self.meters.pausing():
            at = self.progress
            self.saver.save(at.step, self.engine.boxes(state=True), asdict(at), protect=[at.best.step])

    def stopped(self) -> Interrupted:
        """Once all is saved that can be."""
        self.saver.wait()
        at, kept = self.progress.step, self.saver.kept
        saved = kept == at or self.out.partial is None or self.world.rank  # rank 0 alone knows, and is heard
        lost = "" if saved else f", and its state is that of step {kept or 0}"
        return Interrupted(
            f"training was stopped at step {at} of {self.total}{lost}", "run the same command again to go on"
        )

    def broken(self, step: int, loss: float, norm: float) -> NonFiniteLoss:
        rows = self.schedule.address(step).held()
        named = "; ".join(
            f"train/{length}: {', '.join(map(str, some[:8]))}{', ...' * (len(some) > 8)}"
            for length, some in rows.items()
        )
        what = f"loss {loss}" if not math.isfinite(loss) else f"loss {loss:.4g} and gradient norm {norm}"
        return NonFiniteLoss(
            f"step {step + 1} has {what}; the weights are as they were before it. Its rows of {named} "
            f"({sum(map(len, rows.values()))} in all)",
            "lower train.learning_rate, raise train.warmup_ratio, or try train.dtype=float32",
        )

    def measured(self, meter: Meter) -> dict[str, float]:
        """What the steps of `meter` cost; memory and compiling are the whole process's. No figure stands in for an unknown one:
        there is no `mfu` where the device's peak is not known, nor memory of a device that does not tell."""
        device = self.engine.peak_memory()
        flops = (meter.flops / meter.seconds, device_name(self.config), self.config.devices)
        return {
            **({**meter.rates(), **mfu(*flops)} if meter.steps else {}),
            "data_wait_seconds": meter.waited,
            "host_memory_bytes": host_memory(),
            **({} if device is None else {"device_memory_bytes": device}),
            "compiled_graphs": self.ledger.compiled,
            "compile_seconds": self.ledger.compile_seconds,
        }

    def summary(self) -> Meta:
        """The metrics of the artifact: no time, nothing that depends on how often was logged."""
        at = self.progress
        before = {f"{name}_before": value for name, value in at.before.items()}
        found = at.best.metrics if self.config.keeps_best and at.best.metrics else at.after
        return {"train_loss": at.loss / max(at.step, 1), **before, **found}

    def report(self) -> None:
        for text in self.ledger.unlisted:
            self.out.warn(text)
        meter = self.meters.whole
        seconds = meter.seconds
        said = {**self.measured(meter), **self.saver.figures}
        self.out.figures(seconds=seconds, seconds_per_step=seconds / max(meter.steps, 1), **said)


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
