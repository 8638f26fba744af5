"""Training as a stage: what the loop needs is set up, or taken from the newest checkpoint, and the result is written."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.artifact import Input, Meta, Source
from tasks.errors import StoreError
from tasks.stage import Workdir, write_json
from tasks.training import checkpoint, compile_cache, neuron
from tasks.training.adapters import adapter_document, prepared
from tasks.training.batches import Schedule, Split
from tasks.training.config import TrainConfig
from tasks.training.devices import check_device
from tasks.training.engine import Box, make_engine
from tasks.training.inventory import Ledger
from tasks.training.loop import Progress, Run, stop_signals
from tasks.training.lora import CONFIG
from tasks.training.model import Built, build
from tasks.training.names import PARAMETER
from tasks.training.ranks import World, joined
from tasks.training.saving import Saver
from tasks.training.selection import check_selection
from tasks.training.warm_start import load_start


def fit(config: TrainConfig, model: Source, packed: Input, graphs: Input, out: Workdir) -> Meta:
    """Train from the newest state in `out.partial`, or the start; write the artifact; return its metadata."""
    check_device(config)
    if config.device == "neuron":
        neuron.use_cache(graphs, out)
    compile_cache.use_cache(config, graphs, out)
    with joined(config) as world:
        if config.device == "neuron":
            world.first(lambda: neuron.copy_cache(graphs, out))
        return _fit(config, model, packed, graphs, out, world)


def _fit(config: TrainConfig, model: Source, packed: Input, graphs: Input, out: Workdir, world: World) -> Meta:
    check_selection(config, packed.meta)
    train, validation = (Split(packed, name, config.shape_unit) for name in ("train", "validation"))
    schedule = make_schedule(config, packed.meta, train)
    built = _built(config, model, packed, train)
    ledger = Ledger.of(graphs, allow=config.allow_recompile)
    newest = world.first(lambda: newest_state(out))
    stored = checkpoint.Reader(newest[1]) if newest else None
    if stored:
        stored.check_model(PARAMETER, {name: tuple(p.shape) for name, p in built.trained().items()})
    engine = make_engine(config, built, ledger, stored, world)
    progress = Progress.of(stored.state) if stored else Progress()
    if stored:
        out.info(f"resumes at step {progress.step}")
    document = adapter_document(built) if config.method == "lora" else None
    if built.frozen:
        out.info(f"trains {_count(built.trained()):,} of {_count(built.parameters()):,} parameters")
    saver = Saver(
        out,
        world,
        keep=config.keep_checkpoints,
        timeout_seconds=config.collective_timeout_seconds,
        kept=newest[0] if newest else None,
    )
    run = Run(config, built, engine, ledger, schedule, train, validation, progress, out, world, saver)
    with stop_signals() as stopped, saver:
        run.loop(stopped)
    _write_weights(run)
    if world.rank == 0:
        write_json(out.path / "config.json", built.config)
        if document:
            write_json(out.path / CONFIG, document)
        _copy_tokenizer(packed, out)
    return {
        "task": built.task,
        "labels": packed.meta["labels"],
        "lengths": packed.meta["lengths"],
        "method": config.method,
        "steps": progress.step,
        "metrics": run.summary(),
        **({"best_step": progress.best.step} if config.keeps_best else {}),
    }


def make_schedule(config: TrainConfig, packed: Meta, train: Split) -> Schedule:
    """The same for every engine and layout. packed: the rows' metadata."""
    sizes = train.sizes() if config.group_by_length and packed.get("strategy") not in ("bfd", "concat") else None
    return Schedule(train.rows, config.global_batch, seed=config.seed, last_batch=config.last_batch, sizes=sizes)


def newest_state(out: Workdir) -> tuple[int, Path] | None:
    """(step, folder) of the state to go on from; None to begin."""
    found = out.partial.newest(out.warn) if out.partial else None
    if found is None or out.partial is None:
        return None
    best = checkpoint.Reader(found[1]).state["best"]["step"]
    if best not in (0, found[0]) and out.partial.sound(best, out.warn) is None:
        out.warn(f"the state of step {best}, whose evaluation was the best, is gone: training begins anew")
        return None
    return found


def _built(config: TrainConfig, model: Source, packed: Input, train: Split) -> Built:
    built = build(model, packed, seed=config.seed, weights=True)
    load_start(model, built.model)
    return prepared(config, built, packed.meta, train)


def _write_weights(run: Run) -> None:
    """As they are, or those of the best evaluation, which its checkpoint holds."""
    best, states, out = run.progress.best.step, run.out.partial, run.out
    if not run.config.keeps_best or best in (0, run.progress.step) or states is None:
        checkpoint.write(out.path, run.engine.boxes(state=False), {}, run.world.gather)
    elif run.world.rank == 0:
        found = states.sound(best, out.warn)
        if found is None:
            raise StoreError(
                f"the checkpoint of step {best}, whose evaluation was the best, could not be kept",
                "make room, and run the same command again: it trains from the start",
            )
        checkpoint.write(out.path, _parameters(checkpoint.Reader(found)), {})


def _parameters(stored: checkpoint.Reader) -> Iterator[Box]:
    for name in stored.names:
        if name.startswith(PARAMETER):
            value = stored.tensor(name)
            yield Box(name, 0, (0,) * value.dim(), tuple(value.shape), value)


def _count(parameters: dict[str, Any]) -> int:
    return sum(parameter.numel() for parameter in parameters.values())


def _copy_tokenizer(packed: Input, out: Workdir) -> None:
    for file in sorted((packed.path / "tokenizer").rglob("*")):
        if file.is_file():
            target = out.path / file.relative_to(packed.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
