"""Compare what the ranks are about to train, before the first step: unlike ranks would wait for each other, or train
another model.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trnflow.tasks.errors import MachineError
from trnflow.tasks.training.config import TrainConfig

MESSAGE = 1 << 14  # bytes: gloo gathers messages of one size
TEXT = 40  # characters of a value


def check_alike(config: TrainConfig, rows: str, group: Any = None) -> None:
    """Raise MachineError on every rank when one has other versions, settings, `rows` or code of the training than rank 0.

    group: of messages on the host; None: torch's default.
    """
    ranks = _gather(_facts(config, rows), group)
    for rank, theirs in enumerate(ranks):
        for name in {**ranks[0], **theirs}:
            first, other = ranks[0].get(name, "missing"), theirs.get(name, "missing")
            if first != other:
                raise MachineError(
                    f"the ranks differ: {name} is {first} on rank 0 and {other} on rank {rank}",
                    "start all ranks from one recipe, in one environment, on the same packed rows",
                )


def _facts(config: TrainConfig, rows: str) -> dict[str, str]:
    import transformers

    settings = {f"train.{name}": value for name, value in config.model_dump(mode="json").items()}
    facts = {
        "Python": platform.python_version(),
        "PyTorch": torch.__version__,
        "transformers": transformers.__version__,
        "trnflow's code": _code(),
        **settings,
        "packed": rows,
    }
    return {name: _short(value) for name, value in facts.items()}


def _short(value: Any) -> str:
    """Return a value's text; a long one is cut, and ends in its digest."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return text if len(text) <= TEXT else f"{text[: TEXT - 12]} ({hashlib.sha256(text.encode()).hexdigest()[:8]})"


def _code() -> str:
    """Return a digest of the files of the training's modules."""
    # the modules that are there when ranks join: each rank has imported the same
    loaded = {name: module.__file__ for name, module in [*sys.modules.items()] if name.startswith(__package__)}
    digest = hashlib.sha256()
    for name in sorted(loaded):
        digest.update(name.encode() + Path(loaded[name] or "").read_bytes())
    return digest.hexdigest()[:12]


def _gather(facts: Mapping[str, str], group: Any) -> list[dict[str, str]]:
    """Return the facts of all ranks, in order."""
    text = json.dumps(facts).encode().ljust(MESSAGE)
    mine = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    messages = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(messages, mine, group=group)
    return [json.loads(bytes(message.tolist())) for message in messages]
