"""Test a micro-batch: two updates on blank rows of the longest length, in a child process.

The child, `python -m trnflow.tasks.training.memory.probe SPEC`, writes `found.json` beside SPEC: {"fits", "resident":
on the CPU its peak in bytes, else 0}. For engine native on one device alone. The weights are random.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.stage import Workdir, read_json, write_json
from trnflow.tasks.training.config import TrainConfig

if TYPE_CHECKING:
    from trnflow.tasks.metadata import PackedMeta

UPDATES = 2
NO_MEMORY = "can't allocate memory"  # part of the message of torch's CPU allocator


def can_probe(config: TrainConfig) -> bool:
    """Return whether real updates can test `config`: engine native on one device."""
    return config.engine == "native" and config.devices == 1


def fits(config: TrainConfig, model: Source, packed: Input[PackedMeta], limit: int | None, out: Workdir) -> bool:
    """Return whether memory sufficed for two updates in a child. limit: bytes of its peak on the CPU, or None."""
    folder = out.scratch / f"probe-{config.replica_batch}"
    source = {**asdict(packed), "path": str(packed.path)}
    write_json(
        folder / "spec.json", {"config": config.model_dump(mode="json"), "model": asdict(model), "packed": source}
    )
    child = subprocess.run([sys.executable, "-P", "-m", __name__, str(folder / "spec.json")], check=False)
    result: Meta = read_json(folder / "found.json") if child.returncode == 0 else {"fits": False}
    return bool(result["fits"]) and (limit is None or result["resident"] <= limit)


def _probe(spec: Path) -> None:
    from trnflow.tasks.training.meter import host_memory

    document = read_json(spec)
    packed = Input(**{**document["packed"], "path": Path(document["packed"]["path"])})
    model = Source(**document["model"])
    config = TrainConfig.model_validate({**document["config"], "loss": None})  # takes the memory of any
    sufficed = _runs(config, replace(model, identity={**model.identity, "weights": None}), packed)
    # where the device has memory of its own, this process's is none of it
    resident = host_memory() if config.device == "cpu" else 0
    write_json(spec.with_name("found.json"), {"fits": sufficed, "resident": resident})


def _runs(config: TrainConfig, model: Source, packed: Input[PackedMeta]) -> bool:
    import torch

    try:
        _update(config, model, packed)
    except torch.cuda.OutOfMemoryError:
        return False
    except RuntimeError as error:
        if NO_MEMORY not in str(error):
            raise
        return False
    return True


def _update(config: TrainConfig, model: Source, packed: Input[PackedMeta]) -> None:
    from trnflow.tasks.training.graphs.inventory import blank, random_engine
    from trnflow.tasks.training.optim.optimizer import scalars

    # more than two passes do not allocate more
    short = config.model_copy(update={"global_batch": min(config.accumulation, 2) * config.micro_rows})
    engine = random_engine(short, model, packed)
    batch = blank(short.global_batch, max(packed.meta["lengths"]), packed.meta)
    for step in range(UPDATES):
        engine.fetch([engine.train(batch, scalars(short, step, UPDATES, batch.supervised), seed=step)])


if __name__ == "__main__":
    _probe(Path(sys.argv[1]))
