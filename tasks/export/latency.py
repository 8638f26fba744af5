"""Time the calls of a StableHLO export. Needs jax: torch_xla compiles a graph at every call."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trnflow.tasks.artifact import Input
from trnflow.tasks.export.agreement import ExampleCall
from trnflow.tasks.export.stablehlo import load_stablehlo

if TYPE_CHECKING:
    from trnflow.tasks.metadata import ExportedMeta

TIMED = 50
"""Most calls of each length that are timed."""


def call_seconds(exported: Input[ExportedMeta], calls: Sequence[ExampleCall]) -> list[float]:
    """Return the wall-clock seconds of each timed call, the shortest length first; [] without jax."""
    # with XLA's optimisation, as on a server, though stages turn it off elsewhere
    program = load_stablehlo(exported.path, optimised=True)
    if not program.compiles_once:
        return []
    seconds = []
    for length in sorted({call.input_ids.shape[1] for call in calls}):
        chosen = [call for call in calls if call.input_ids.shape[1] == length][:TIMED]
        # the first call compiles, so it is made twice and timed once
        for call in [chosen[0], *chosen]:
            begun = time.perf_counter()
            program(call.input_ids, call.attention_mask).sum().item()  # waits for the result
            seconds.append(time.perf_counter() - begun)
        del seconds[-len(chosen) - 1]
    return seconds
