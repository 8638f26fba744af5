"""The memory estimate of a training run: of the model as it is (precompile), or of its config's numbers (plan)."""

from __future__ import annotations

from functools import cache
from typing import Any

from tasks.artifact import Input, Meta, Source
from tasks.stage import Workdir
from tasks.training.config import TrainConfig
from tasks.training.devices import device_memory
from tasks.training.families import family_of
from tasks.training.fitting import fitting
from tasks.training.layout import check_length, lay_out
from tasks.training.memory import Memory, activations, check_memory, estimate
from tasks.training.plan import Mesh, check_heads
from tasks.training.probe import can_probe, fits
from tasks.training.rules import tp_rules


def settle(config: TrainConfig, model: Source, packed: Input, out: Workdir) -> tuple[TrainConfig, Memory | None]:
    """The config with its micro batch found, and what training holds then. ModelError when a device has less."""
    limit = device_memory(config)
    _begin(config)
    estimated = cache(lambda size: of_model(config.settled(size), model, packed, out))

    def tried(candidate: TrainConfig) -> bool:
        return not can_probe(candidate) or fits(candidate, model, packed, limit, out)

    found = fitting(config, lambda candidate: estimated(candidate.replica_batch), limit, tried)
    if config.micro_batch == "auto":
        out.info(f"micro_batch auto is {found.replica_batch}, accumulated {found.accumulation} times")
    memory: Memory | None = estimated(found.replica_batch)
    if memory is not None:
        check_memory(found, memory, limit)
    return found, memory


def _begin(config: TrainConfig) -> None:
    """XLA's devices have to be there before a pass is traced; not Neuron's, whose graphs another process traces."""
    if config.engine == "xla" and config.device == "cpu":
        from tasks.training.xla import start

        start(Mesh(config.data_parallel, config.tensor_parallel_size), config)


def of_model(config: TrainConfig, model: Source, packed: Input, out: Workdir) -> Memory | None:
    """Of any model: it is built on "meta", and a pass over the longest rows is traced. None, and a warning, for one whose code
    needs numbers. ModelError where the layout does not fit it."""
    from tasks.training.adapters import prepared
    from tasks.training.model import build
    from tasks.training.tracing import traced

    built = prepared(config, build(model, packed, seed=0, weights=False), packed.meta)
    length = max(packed.meta["lengths"])
    check_heads(built.model.config.get_text_config().to_dict(), config.tensor_parallel_size)
    check_length(config, length)
    shapes = {name: tuple(parameter.shape) for name, parameter in built.parameters().items()}
    split = config.tensor_parallel_size > 1
    plan = tp_rules(built.model, shapes, config.tensor_parallel_rules) if split else {}
    layout = lay_out(config, type(built.model).__name__, shapes, plan, built.trained())
    try:
        passing = traced(config, built, layout, length)
    except (NotImplementedError, RuntimeError) as error:
        out.warn(f"{layout.model} can't be traced, so its memory is not known: {str(error).splitlines()[0]}")
        return None
    return estimate(config, layout, passing)


def of_numbers(config: TrainConfig, model: Source, packed: Meta) -> Memory | None:
    """Of a known family that is trained whole, else None: without torch. packed: `task`, `lengths`, `labels`, `vocab_size`, as
    `pack_chunks` says."""
    family = family_of(fields_of(model, packed), packed["task"], len(packed["labels"] or ()))
    if family is None or config.method != "full":
        return None
    kind = str(fields_of(model, packed)["model_type"])
    layout = lay_out(config, kind, family.shapes, family.plan, family.shapes)
    passing = activations(family.anatomy, config, config.replica_batch, max(packed["lengths"]))
    return estimate(config, layout, passing)


def fields_of(model: Source, packed: Meta) -> dict[str, Any]:
    """The model's config as `model.configured` makes it: from scratch, the rows decide the vocabulary."""
    known = model.identity["config"]
    fields = {**(known["pretrained"] or {}), **known["overrides"]}
    return (
        fields
        if known["pretrained"] or packed["vocab_size"] is None
        else {**fields, "vocab_size": packed["vocab_size"]}
    )
