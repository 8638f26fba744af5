"""What this machine's GPUs are given for memory, by measurements that are given; `test_machine_fit.py` measures."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.flows.runner.test_machine_fit import RECIPE
from tests.helpers.stores import new_store
from trnflow.flows.recipes import hardware
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.runner import memory_check
from trnflow.flows.runner.memory_check import fit_to_machine
from trnflow.tasks.system.gpus import Gpu, Usable
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.memory.estimate import Memory
from trnflow.tasks.training.memory.trace_process import Traced

GIB = 2**30


@pytest.mark.parametrize(
    ("gib", "count", "chosen"),
    [
        (24.0, 1, {}), (3.0, 1, {"remat": True}), (1.0, 1, {}),
        (24.0, 8, {}), (3.0, 8, {"remat": True}), (2.5, 8, {"fsdp": True}), (1.5, 8, {"fsdp": True, "remat": True}),
        (0.5, 8, {}),
    ],
)  # fmt: skip
def test_the_cheapest_that_fits_is_chosen_and_nothing_where_nothing_does(
    gib: float, count: int, chosen: dict[str, bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights and their state take 2 GiB, an eighth with FSDP on 8 GPUs; a row's activations 2, half with checkpointing."""
    (tmp_path / "own.yaml").write_text(RECIPE)
    card = Gpu("NVIDIA A10G", "GPU-1", int(gib * GIB), (8, 6))
    monkeypatch.setattr(hardware, "find_gpus", lambda **variables: Usable((card,) * count, driver="570"))
    recipe = settings.load(str(tmp_path / "own.yaml"))

    def traced(config: TrainConfig, *_: Any) -> Traced:
        state = 2 * GIB // (config.devices if config.fsdp else 1)
        activations = 2 * GIB // (2 if config.remat else 1)
        return Traced(1, Memory(state, 0, 0, activations, 0, "the backward pass"))

    monkeypatch.setattr(memory_check, "_traced", traced)
    model: Any = SimpleNamespace(identity={"config": {"pretrained": None}})
    found = fit_to_machine(recipe, model, new_store(tmp_path).memo, None)
    assert {name: True for name in ("remat", "fsdp") if getattr(found.train, name)} == chosen
    assert found.machine == recipe.machine + "".join(f"; train.{name}=true, for memory" for name in chosen)
