"""Estimate training's memory in a child process, for programs that must not import torch, and the key of that estimate.

A new child imports torch and transformers (3 s on two quiet cores); one forked from a warm parent need not.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.config import graph_params
from trnflow.tasks.keys.canonical_json import digest_of
from trnflow.tasks.keys.code_closure import closure
from trnflow.tasks.keys.hash_cache import Memo
from trnflow.tasks.stage import Workdir
from trnflow.tasks.system.home import temporary_folder
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.memory import traced_memory
from trnflow.tasks.training.memory.estimate import Memory
from trnflow.tasks.training.memory.micro_batch import largest_fitting
from trnflow.tasks.training.memory.traced_memory import Untraceable, trace_memory

PLAIN = {"USE_TORCH_XLA": "0", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}
"""Variables of a child for the trace alone: transformers then imports no torch_xla."""

SECONDS = 600.0
"""The most that a trace may take. With 126 layers, as many as Llama 405B has, one takes 24 s beside four other programs."""

SCHEMA = 1


class Traced(NamedTuple):
    """An estimate by tracing.

    Attributes:
        micro_batch: With `auto` replaced; 0 if the model can't be traced.
        memory: Of a device, or None.
        why: Why it can't be traced, else "".
    """

    micro_batch: int
    memory: Memory | None
    why: str = ""

    def to_json(self) -> Meta:
        return {**self._asdict(), "memory": self.memory.to_json() if self.memory else None}

    @classmethod
    def from_json(cls, document: Meta) -> Traced:
        memory = document["memory"]
        return cls(document["micro_batch"], Memory.from_json(memory) if memory else None, document["why"])


def trace_key(config: TrainConfig, model: Source, rows: Meta, limit: int | None, memo: Memo) -> str:
    """Return the key of a `Traced`: code, versions, architecture, the rows' metadata, settings; for `micro_batch: auto`
    also `limit`."""
    code, versions = closure(traced_memory.__name__, memo)
    memo.save()  # keeps the hashes of modules for the next plan
    return digest_of(
        {
            "schema": SCHEMA,
            "code": code,
            "versions": versions,
            "settings": {**graph_params(config), "keeps_best": config.keeps_best},
            "architecture": model.identity["config"],
            "rows": {**rows, "labels": len(rows["labels"] or ())},
            "limit": limit if config.micro_batch == "auto" else None,
        }
    )


def trace_in_process(
    config: TrainConfig,
    model: Source,
    rows: Meta,
    limit: int | None,
    environ: Mapping[str, str] = PLAIN,
    preload: tuple[str, ...] = (),
    memory_gib: float | None = None,
    seconds: float = SECONDS,
) -> Traced:
    """Run `traced` in a guarded child, forked from the warm parent of `environ` and `preload`.

    memory_gib: `launch.memory_gib`. Raises its ModelError, and MachineError beyond that memory or `seconds`.
    """
    import tempfile

    from trnflow.tasks.launch.call import Call
    from trnflow.tasks.launch.local import run_call

    with tempfile.TemporaryDirectory(dir=temporary_folder()) as name:
        folder = Path(name)
        packed = Input(folder, "packed", {**rows, "limit": limit}, "")
        inputs: dict[str, Input | Source] = {"model": model, "rows": packed}
        call = Call.of(
            traced,
            config,
            inputs,
            folder / "out",
            environ=environ,
            preload=preload,
            memory_gib=memory_gib,
            seconds=seconds,
        )
        return Traced.from_json(run_call(call, lambda event: None))


def traced(config: TrainConfig, model: Source, rows: Input, out: Workdir) -> Meta:
    """Estimate the memory in this process; return a `Traced` as JSON. rows.meta: of the packed rows, and "limit"."""
    return _trace(config, model, rows.meta, rows.meta["limit"]).to_json()


def _trace(config: TrainConfig, model: Source, rows: Meta, limit: int | None) -> Traced:
    @cache
    def memory_of(micro_batch: int) -> Memory:
        return trace_memory(config.with_micro_batch(micro_batch), model, rows)

    try:
        config = largest_fitting(config, lambda candidate: memory_of(candidate.replica_batch), limit)
        memory = memory_of(config.replica_batch)
    except Untraceable as error:
        return Traced(0, None, error.message)
    return Traced(config.replica_batch, memory)
