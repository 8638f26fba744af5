"""Whether a micro batch really fits: two updates on blank rows of the longest length, in a process of their own.

`python -m tasks.training.probe SPEC`, which writes what it found beside the spec: on cuda whether memory ran out, on the CPU
how much was resident at most. Engine native on one device; elsewhere the estimate is all there is. The weights are random
ones: their values take no memory.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

from tasks.artifact import Input, Meta, Source
from tasks.stage import Workdir, read_json, write_json
from tasks.training.config import TrainConfig

UPDATES = 2
NO_MEMORY = "can't allocate memory"  # as torch's allocator of the CPU says it


def can_probe(config: TrainConfig) -> bool:
    return config.engine == "native" and config.devices == 1


def fits(config: TrainConfig, model: Source, packed: Input, limit: int | None, out: Workdir) -> bool:
    """limit: bytes; of the CPU the process must stay within it. A process that is killed did not fit."""
    folder = out.scratch / f"probe-{config.replica_batch}"
    source = {**asdict(packed), "path": str(packed.path)}
    write_json(
        folder / "spec.json", {"config": config.model_dump(mode="json"), "model": asdict(model), "packed": source}
    )
    done = subprocess.run([sys.executable, "-m", __name__, str(folder / "spec.json")], check=False)
    found: Meta = read_json(folder / "found.json") if done.returncode == 0 else {"fits": False}
    return bool(found["fits"]) and (limit is None or found["resident"] <= limit)


def _probe(spec: Path) -> None:
    document = read_json(spec)
    packed = Input(**{**document["packed"], "path": Path(document["packed"]["path"])})
    model = Source(**document["model"])
    config = TrainConfig.model_validate(document["config"])
    blank = replace(model, identity={**model.identity, "weights": None})
    write_json(spec.with_name("found.json"), {"fits": _runs(config, blank, packed), "resident": _resident(config)})


def _runs(config: TrainConfig, model: Source, packed: Input) -> bool:
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


def _update(config: TrainConfig, model: Source, packed: Input) -> None:
    from tasks.training.adapters import prepared
    from tasks.training.engine import make_engine
    from tasks.training.inventory import Ledger, blank
    from tasks.training.model import build
    from tasks.training.optim import scalars

    # as many passes as show what accumulating holds; the others take the same
    short = config.model_copy(update={"global_batch": min(config.accumulation, 2) * config.micro_rows})
    built = prepared(short, build(model, packed, seed=0, weights=True), packed.meta)
    engine = make_engine(short, built, Ledger())
    batch = blank(short.global_batch, max(packed.meta["lengths"]), packed.meta["task"])
    for step in range(UPDATES):
        engine.fetch([engine.train(batch, scalars(short, step, UPDATES, batch.supervised), seed=step)])


def _resident(config: TrainConfig) -> int:
    """Bytes of this process at most, where its memory is the device's."""
    from tasks.training.meter import host_memory

    return host_memory() if config.device == "cpu" else 0


if __name__ == "__main__":
    _probe(Path(sys.argv[1]))
