"""Time the calls of a StableHLO export. This needs jax, which compiles a graph once. torch_xla compiles a graph at
every call, so the seconds of its calls say nothing about the model."""

from __future__ import annotations

import time
from collections.abc import Sequence

from trnflow.tasks.artifact import Input
from trnflow.tasks.export.agreement import ExampleCall
from trnflow.tasks.export.stablehlo import load_stablehlo

TIMED = 50
"""The most calls of each length that are timed."""


def call_seconds(exported: Input, calls: Sequence[ExampleCall]) -> list[float]:
    """Call an exported model (StableHLO) and return the wall-clock seconds of each timed call, the shortest row length
    first; [] where jax is not installed.

    exported: the artifact of the stage export_neuron; calls: the inputs. For each row length at most the first 50 calls
    are timed. Before that the first call of the length runs once without timing, because its graph is compiled then.
    The graph is compiled with XLA's optimisation, as on a server, although stages turn this
    optimisation off elsewhere."""
    program = load_stablehlo(exported.path, optimised=True)
    if not program.compiles_once:
        return []
    seconds = []
    for length in sorted({call.input_ids.shape[1] for call in calls}):
        chosen = [call for call in calls if call.input_ids.shape[1] == length][:TIMED]
        for call in [chosen[0], *chosen]:
            begun = time.perf_counter()
            program(call.input_ids, call.attention_mask).sum().item()  # waits for the result
            seconds.append(time.perf_counter() - begun)
        del seconds[-len(chosen) - 1]
    return seconds
