"""Run the stage `train`: build, resume, train, write the result."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Input, Source
from trnflow.tasks.errors import StoreError
from trnflow.tasks.stage import Workdir
from trnflow.tasks.training.batches.sampler import Schedule, Split
from trnflow.tasks.training.checkpoint import shards
from trnflow.tasks.training.checkpoint.adapter_slices import beside_initial
from trnflow.tasks.training.checkpoint.result import published_settings, write_documents, write_weights
from trnflow.tasks.training.checkpoint.saving import Saver
from trnflow.tasks.training.checkpoint.started_model import build_started
from trnflow.tasks.training.choose_engine import join_ranks, make_engine
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.devices import cautions, check_device
from trnflow.tasks.training.graph_registry import GraphRegistry
from trnflow.tasks.training.graphs import compile_cache
from trnflow.tasks.training.graphs import neuron_precompile as neuron
from trnflow.tasks.training.loop import Run, TrainingState, stop_signals
from trnflow.tasks.training.model.adapters import loaded_dtype, prepared, reads_parts, remarks_of_method
from trnflow.tasks.training.model.heads import too_coarse
from trnflow.tasks.training.objective import learnt
from trnflow.tasks.training.optim.learning_rate import check_learning_rates
from trnflow.tasks.training.selection import Chosen, check_selection, without_effect
from trnflow.tasks.training.shared_types import AVERAGE, PARAMETER, TensorSlice
from trnflow.tasks.training.unread_settings import unread_settings
from trnflow.tasks.training.world import World

if TYPE_CHECKING:
    from trnflow.tasks.metadata import CheckpointMeta, GraphsMeta, PackedMeta


def fit(
    config: TrainConfig,
    model: Source,
    packed: Input[PackedMeta],
    graphs: Input[GraphsMeta],
    out: Workdir,
    chosen: Chosen,
    reference: Input | None = None,
) -> CheckpointMeta:
    """Train from the newest checkpoint or the start, write the result to `out.path`, and return the metadata.

    model: of a warm start as `starting_from` returned it. Raises Interrupted.
    """
    check_device(config)
    for text in cautions(config):
        out.warn(text)
    if config.by_neuronx_cc:
        neuron.use_cache(graphs, out)
    compile_cache.use_cache(config, graphs, out)
    splits = [Split(packed, name, config.shape_unit, reference) for name in ("train", "validation")]
    counts = [sum(split.rows.values()) for split in splits]
    with join_ranks(config, rows=f"{counts} of {packed.digest[:19]}") as world:
        if config.by_neuronx_cc:
            world.on_first(lambda: neuron.copy_cache(graphs, out))
        # splits are read by the task of their rows
        trained = learnt(config, packed)
        meta = _fit(_prepare(config, model, trained, graphs, out, world, chosen, *splits), trained)
        compile_cache.warn_of_misses(config, world, out)
        return meta


def _fit(run: Run, packed: Input[PackedMeta]) -> CheckpointMeta:
    config, out, world = run.config, run.out, run.world
    with stop_signals() as stopped, run.saver:
        run.loop(stopped)
    _write_weights(run)
    if world.rank == 0:
        write_documents(out.path, config, run.built)
        shutil.copytree(packed.path / "tokenizer", out.path / "tokenizer", copy_function=shutil.copyfile)
    meta: CheckpointMeta = {
        "task": run.built.task,
        "labels": packed.meta["labels"],
        "lengths": packed.meta["lengths"],
        "method": config.method,
        "steps": run.progress.step,
        "metrics": run.summary(),
        "data": packed.digest,
        "settings": published_settings(config),
        "curves": run.progress.curves,
    }
    if config.keeps_best:
        meta["best_step"] = run.progress.best.step
    return meta


def _prepare(
    config: TrainConfig,
    model: Source,
    packed: Input[PackedMeta],
    graphs: Input[GraphsMeta],
    out: Workdir,
    world: World,
    chosen: Chosen,
    train: Split,
    validation: Split,
) -> Run:
    """Build the model, read the newest checkpoint, and place both on the engine's devices."""
    check_selection(config, packed.meta)
    schedule = make_schedule(config, packed.meta, train)
    check_learning_rates(config, config.updates(schedule.steps_per_epoch))
    for text in (*unread_settings(config, packed.meta), *without_effect(config, schedule.steps_per_epoch)):
        out.warn(text)
    dtype = loaded_dtype(config, packed.meta["task"])
    built = build_started(model, packed, seed=config.seed, dtype=dtype, parts=reads_parts(config))
    built = prepared(config, built, packed.meta, train)
    for text in (*too_coarse(built.kind, train, config.dtype), *remarks_of_method(config, built)):
        out.warn(text)
    registry = GraphRegistry.from_artifact(graphs, allow_unlisted=config.allow_recompile)
    newest = world.on_first(lambda: state_to_resume(out))
    stored = shards.Reader(Path(newest[1])) if newest else None
    if stored:
        stored.check_model(PARAMETER, {name: tuple(p.shape) for name, p in built.trained().items()})
    engine = make_engine(config, built, registry, stored, world)
    progress = TrainingState.of(stored.state) if stored else TrainingState()
    if stored:
        out.info(f"resumes at step {progress.step}")
    if built.frozen:
        trained = sum(parameter.numel() for parameter in built.trained().values())
        out.info(f"trains {trained:,} of {built.numbers:,} parameters")
    kept, timeout = newest[0] if newest else None, config.collective_timeout_seconds
    saver = Saver(out, world, keep=config.keep_checkpoints, timeout_seconds=timeout, kept=kept)
    return Run(config, built, engine, registry, schedule, train, validation, progress, out, world, saver, chosen)


def make_schedule(config: TrainConfig, packed: PackedMeta, train: Split) -> Schedule:
    """Return on which rows each update trains: the seed's order, for every engine and mesh. With
    `train.group_by_length` batches have rows of like length, unless documents were packed."""
    sizes = train.sizes() if config.group_by_length and packed.get("strategy") not in ("bfd", "concat") else None
    return Schedule(train.rows, config.global_batch, seed=config.seed, last_batch=config.last_batch, sizes=sizes)


def state_to_resume(out: Workdir) -> tuple[int, str] | None:
    """Return (step, folder) of the checkpoint to resume from, or None."""
    if out.partial is None:
        return None
    newest = out.partial.newest(out.warn)
    while newest is not None:
        best = shards.Reader(newest[1]).state["best"]["step"]
        # the best evaluation's weights may become the result: without them training goes back to before it
        if best in (0, newest[0]) or out.partial.sound(best, out.warn) is not None:
            return newest[0], str(newest[1])
        newest = out.partial.newest(out.warn, upto=best)
        on = f"goes on from step {newest[0]}" if newest else "begins anew"
        out.warn(f"the state of step {best}, whose evaluation was the best, is gone: training {on}")
    return None


def _write_weights(run: Run) -> None:
    """Write the last step's weights, or with keep_best the best evaluation's."""
    best, states, out = run.progress.best.step, run.out.partial, run.out
    if not run.config.keeps_best or best in (0, run.progress.step) or states is None:
        write_weights(out.path, run.config, run.built, run.engine, run.world)
    elif run.world.rank == 0:
        folder = states.sound(best, out.warn)
        if folder is None:
            raise StoreError(
                f"the checkpoint of step {best}, whose evaluation was the best, could not be kept",
                "free some disk space, and run again: training resumes from the newest checkpoint before that",
            )
        kept = PARAMETER if run.config.ema_decay is None else AVERAGE
        kept_slices = _parameters(shards.Reader(folder, kept))
        shards.write(out.path, beside_initial(kept_slices, run.built.initial, run.config.devices), {})


def _parameters(stored: shards.Reader) -> Iterator[TensorSlice]:
    for name in stored.names:
        value = stored.tensor(name)
        yield TensorSlice(PARAMETER + name, 0, (0,) * value.dim(), tuple(value.shape), value)
