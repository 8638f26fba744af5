"""The training loop: step, log, evaluate, save; the same for every engine and mesh.

The host waits for the device only to log, evaluate or save; meanwhile a thread reads the next batch.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from types import FrameType
from typing import Any

from trnflow.tasks.artifact import Input, Meta
from trnflow.tasks.errors import Interrupted, NonFiniteLoss
from trnflow.tasks.stage import Workdir
from trnflow.tasks.training.batches.prefetch import prefetch
from trnflow.tasks.training.batches.sampler import Batch, Schedule, Split
from trnflow.tasks.training.checkpoint.result import published_settings, write_documents, write_weights
from trnflow.tasks.training.checkpoint.saving import Saver
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.device_kinds import KINDS
from trnflow.tasks.training.engine import Engine, Handle
from trnflow.tasks.training.graph_registry import GraphRegistry
from trnflow.tasks.training.graphs.flops import costs, flops_per_batch, mfu
from trnflow.tasks.training.losses import reads_rows
from trnflow.tasks.training.meter import Meter, Meters, host_memory
from trnflow.tasks.training.model.adapters import forward_passes
from trnflow.tasks.training.objective import target_weight
from trnflow.tasks.training.optim.optimizer import scalars
from trnflow.tasks.training.preference_losses import metrics_of
from trnflow.tasks.training.selection import Best, Chosen, validated
from trnflow.tasks.training.shared_types import Built
from trnflow.tasks.training.world import World

SEED_STRIDE = 1_000_003  # a step's dropout seed is seed * SEED_STRIDE + step

POINTS = 200
"""About how many losses the curves have at most."""


@dataclass
class TrainingState:
    """What a checkpoint holds besides tensors.

    Attributes:
        step: Updates, which also give the position in the data.
        loss: Sum of all updates' losses.
        recent: Sum of the losses since the last one in `curves`.
        curves: Rows by step, the same however often training logs, saves or is resumed: `loss`, the mean since the row before,
        with `learning_rate`; what an evaluation gave.
        before, after: Metrics before the first step, and of the newest evaluation.
        evaluated: Step of the newest evaluation (0: before the first), -1 if none.
    """

    step: int = 0
    loss: float = 0.0
    recent: float = 0.0
    curves: list[dict[str, float]] = field(default_factory=list)
    before: dict[str, float] = field(default_factory=dict)
    after: dict[str, float] = field(default_factory=dict)
    evaluated: int = -1
    best: Best = field(default_factory=Best)

    @classmethod
    def of(cls, state: Meta) -> TrainingState:
        """Return the progress in a checkpoint's index (`Reader.state`)."""
        return cls(**{**state, "best": Best(**state["best"])})

    def note(self, step: int, **values: float) -> None:
        """Add what is finite of a step to `curves`."""
        if not self.curves or self.curves[-1]["step"] != step:
            self.curves.append({"step": step})
        self.curves[-1] |= {name: value for name, value in values.items() if math.isfinite(value)}


@dataclass
class Run:
    """The training of one rank, from the step of `progress` on. All ranks make the same calls in the same order."""

    config: TrainConfig
    built: Built
    engine: Engine
    registry: GraphRegistry
    schedule: Schedule
    train: Split
    validation: Split
    progress: TrainingState
    out: Workdir
    world: World
    saver: Saver
    chosen: Chosen

    def __post_init__(self) -> None:
        self.meters = Meters()
        self.reads_rows = reads_rows(self.config, self.built.kind)
        self.total = self.config.updates(self.schedule.steps_per_epoch)
        self.pending: list[tuple[int, Handle]] = []  # steps whose loss is still on the device
        self.shown: dict[str, float] = {}  # the newest loss and gradient norm
        self.saving = False  # set after the first step: before it, there is nothing to save
        self.cost = costs(self.built)
        self.passes = forward_passes(self.built)
        self.of_pairs = metrics_of(self.config.objective)
        self.named = (*self.of_pairs, *(["loss_scale"] if self.config.dtype == "float16" else []))

    def loop(self, stopped: list[int]) -> None:
        """Train to the last step or early stopping. Raises Interrupted.

        stopped: signals caught so far (`stop_signals`).
        """
        at = self.progress
        if at.evaluated < 0:
            at.before = self.evaluate()
        self.meters = Meters()
        addresses = map(self.schedule.address, range(at.step, self.total))
        with closing(prefetch(self.train.read, addresses)) as batches:
            self.steps(batches, stopped)
        with self.meters.pause():
            self.saver.finish(at.best.step if at.best.step != at.step else 0)
        if at.step < self.total:
            self.out.info(
                f"stopped early at step {at.step} of {self.total}: {self.chosen.name} was best at step {at.best.step}"
            )
        self.report()

    def steps(self, batches: Iterator[Batch], stopped: list[int]) -> None:
        """Run the steps; log, evaluate and save where due. Raises Interrupted, after saving, when a signal was caught."""
        at, config = self.progress, self.config
        while at.step < self.total and not at.best.exhausted(config):
            self.step(batches)
            if not self.saving:
                self.saving = True
                self.out.saves()
            last = at.step == self.total
            if at.step % config.log_every == 0 or last:
                self.log()
            best = self.must_evaluate() and self.is_new_best()
            # all ranks must stop after the same step
            stopping = not last and self.world.broadcast_flag(bool(stopped))
            if not last and (best or stopping or at.step % config.checkpoint_every == 0):
                self.save()
            if stopping:
                raise self.stopped()

    def must_evaluate(self) -> bool:
        """Return whether an evaluation is due after this step."""
        at, config = self.progress, self.config
        epoch = at.step % self.schedule.steps_per_epoch == 0 and config.eval_every_epoch
        often = config.eval_every is not None and at.step % config.eval_every == 0
        return epoch or often or at.step == self.total

    def is_new_best(self) -> bool:
        """Evaluate; return, on every rank alike, whether this is the best so far (False if the recipe keeps no best)."""
        at = self.progress
        at.after = self.evaluate()
        if not self.config.keeps_best:
            return False
        at.best = Best(**self.world.broadcast(asdict(at.best.after(self.config, self.chosen, at.step, at.after))))
        return at.best.step == at.step

    def step(self, batches: Iterator[Batch]) -> None:
        """Read the next batch and start one update, without waiting for its end."""
        at, compiled = self.progress, self.registry.compile_seconds
        with self.meters.wait_for_data():
            batch = next(batches)
        targets = target_weight(batch, self.built.class_weights)
        handle = self.engine.train(
            batch, scalars(self.config, at.step, self.total, targets), self.config.seed * SEED_STRIDE + at.step
        )
        compiling = self.registry.compile_seconds - compiled
        if compiling:  # steps that compile are not counted in the rates
            self.meters.add_elsewhere(compiling)
        else:
            self.meters.count(batch, int(self.passes * flops_per_batch(self.cost, batch, causal=self.built.causal)))
        self.pending.append((at.step, handle))
        at.step += 1
        self.out.progress(at.step, self.total, "steps", **self.shown)

    def log(self) -> None:
        """Wait for the device and report loss, norm, rate and speed. Raises the checkpoint thread's error."""
        self.read_losses()
        self.saver.check()
        lr = scalars(self.config, self.progress.step - 1, self.total, 1).lr
        self.out.metrics(self.progress.step, **self.shown, learning_rate=lr, **self.measured(self.meters.lap))
        self.meters.lap = Meter()

    def read_losses(self) -> None:
        """Wait for the losses and add them up. Raises NonFiniteLoss at the first step that is not finite."""
        pending, self.pending = self.pending, []
        numbers = self.engine.fetch([handle for _, handle in pending])
        for (step, _), (loss, norm, good, *others) in zip(pending, numbers, strict=True):
            # the device skipped this update; the host finds out here, before anything is written
            if not good:
                raise self.non_finite_error(step, loss, norm)
            # all losses are summed in order, so that the mean does not depend on `log_every`
            self.progress.loss += loss
            self.note_loss(step + 1, loss)
            # of an update that fp16 skipped the norm is not finite
            finite = {"grad_norm": norm} if math.isfinite(norm) else {}
            self.shown = {"loss": loss, **finite, **dict(zip(self.named, others, strict=False))}

    def note_loss(self, step: int, loss: float) -> None:
        """Add the mean loss to the curves where a row is due. step: updates, this one included."""
        at, every = self.progress, -(-self.total // POINTS)
        at.recent += loss
        if step % every == 0 or step == self.total:
            lr = scalars(self.config, step - 1, self.total, 1).lr
            at.note(step, loss=at.recent / ((step - 1) % every + 1), learning_rate=lr)
            at.recent = 0.0

    def evaluate(self) -> dict[str, float]:
        """Return and report {"eval_loss", with classes "eval_accuracy", what `best_metric` names}; {} without validation
        targets."""
        self.read_losses()
        handles, targets, rows = [], 0, []
        with self.meters.pause():
            kl = self.mismatched_gain() if self.built.kind.marked else 0.0
            for batch in self.validation_batches():
                targets += batch.supervised
                rows += [batch] if self.reads_rows else []
                if self.built.kind.pairs:
                    batch = replace(self.validation.of_whole(batch), kl=kl)
                if self.built.kind.marked:
                    batch = batch.documents(0, self.config.shape_unit)
                handles.append(self.engine.evaluate(batch))
            numbers = self.engine.fetch(handles)
        self.progress.evaluated = self.progress.step
        seen = validated(numbers, targets, rows)
        if not seen.targets:
            return {}
        if self.chosen.reads_weights:
            seen = seen._replace(weights=self.weights_now())
        metrics = {"eval_loss": seen.loss / seen.targets}
        if self.built.kind.one_class:
            metrics["eval_accuracy"] = sum(found[1] for found in numbers) / seen.targets
        if self.built.kind.pairs:
            totals = map(math.fsum, zip(*(found[1:] for found in numbers), strict=True))
            metrics |= {f"eval_{name}": total / seen.targets for name, total in zip(self.of_pairs, totals, strict=True)}
        metrics |= self.world.on_first(lambda: self.chosen.value(seen))
        self.out.metrics(self.progress.step, **metrics)
        self.progress.note(self.progress.step, **metrics)
        return metrics

    def weights_now(self) -> Input[Any]:
        """Write the trained parameters to the scratch folder, as the result of training is."""
        folder = self.out.scratch / "validated"
        with self.meters.pause():
            write_weights(folder, self.config, self.built, self.engine, self.world)
        if self.world.rank == 0:
            write_documents(folder, self.config, self.built)
        meta = {"task": self.built.task, "settings": published_settings(self.config)}
        return Input(folder, "checkpoint", meta, "")

    def validation_batches(self) -> Iterator[Batch]:
        # where the loss is of the whole batch, the negatives are those of training
        size = self.config.global_batch if self.built.kind.apart else self.config.micro_rows
        return prefetch(self.validation.read, self.validation.in_order(size))

    def mismatched_gain(self) -> float:
        """Return `Batch.kl` of the validation split."""
        handles, rows = [], 0
        for batch in self.validation_batches():
            rows += batch.supervised
            handles.append(self.engine.evaluate(batch.documents(1, self.config.shape_unit)))
        return max(math.fsum(numbers[-1] for numbers in self.engine.fetch(handles)) / max(rows, 1), 0.0)

    def save(self) -> None:
        """Copy the state to the host; a thread writes it while training goes on."""
        self.read_losses()
        with self.meters.pause():
            at = self.progress
            self.saver.save(at.step, self.engine.slices(state=True), asdict(at), best=at.best.step)

    def stopped(self) -> Interrupted:
        """Wait for the checkpoint, and return the Interrupted that ends the stage."""
        self.saver.wait()
        at, kept = self.progress.step, self.saver.kept
        saved = (
            kept == at or self.out.partial is None or self.world.rank
        )  # only rank 0 knows the step, and only its error is reported
        lost = "" if saved else f", and its state is that of step {kept or 0}"
        return Interrupted(
            f"training was stopped at step {at} of {self.total}{lost}", "run the same command again to go on"
        )

    def non_finite_error(self, step: int, loss: float, norm: float) -> NonFiniteLoss:
        """Return the error for a step that is not finite; it names the step's rows."""
        rows = self.schedule.address(step).unmasked_rows()
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
        """Return the figures of the steps that `meter` counted; unknown ones are left out."""
        device = self.engine.peak_memory()
        kind = KINDS[self.config.device]
        flops = (meter.flops / meter.seconds, kind.peak_flops(kind.label()), self.config.devices)
        return {
            **({**meter.rates(), **mfu(*flops)} if meter.steps else {}),
            "data_wait_seconds": meter.waited,
            "host_memory_bytes": host_memory(),
            **({} if device is None else {"device_memory_bytes": device}),
            "compiled_graphs": self.registry.compiled,
            "compile_seconds": self.registry.compile_seconds,
        }

    def summary(self) -> Meta:
        """Return the artifact's metrics: `train_loss` of all updates, `..._before` and `eval_...` of the weights that
        are the result."""
        at = self.progress
        before = {f"{name}_before": value for name, value in at.before.items()}
        newest = at.best.metrics if self.config.keeps_best and at.best.metrics else at.after
        return {"train_loss": at.loss / max(at.step, 1), **before, **newest}

    def report(self) -> None:
        """Report the figures of the whole training, and warn of unlisted graphs."""
        for text in self.registry.unlisted:
            self.out.warn(text)
        meter = self.meters.whole
        seconds = meter.seconds
        figures = {**self.measured(meter), **self.saver.figures}
        self.out.figures(seconds=seconds, seconds_per_step=seconds / max(meter.steps, 1), **figures)


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collect SIGTERM and SIGINT in the yielded list, so that training can save. A second SIGINT raises Interrupted."""
    caught: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        # a platform that signals every process sends SIGTERM, and so does the guard that got it, too
        if caught.count(signal.SIGINT) > 1:
            raise Interrupted("training was stopped twice, and did not save", "run the same command again")

    old: dict[int, Any] = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield caught
    finally:
        # a repeated signal does not hide what the first one led to
        for number, handler in ({} if caught else old).items():
            signal.signal(number, handler)
