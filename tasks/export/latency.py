"""Time the calls of a StableHLO export where jax is installed, because jax compiles a graph once. torch_xla compiles
at every call, so its seconds say nothing about the model."""

from __future__ import annotations

import time
from collections.abc import Sequence

from tasks.artifact import Input
from tasks.export.agreement import Call
from tasks.export.stablehlo import load_stablehlo

TIMED = 50
"""The most calls of each length that are timed."""


def call_seconds(exported: Input, calls: Sequence[Call]) -> list[float]:
    """Call an exported model (StableHLO) and return the wall-clock seconds of each timed call, ordered by length; []
    where jax is not installed.

    calls: the inputs. Of each length at most the first 50 calls are timed. The first of them is also called once
    before, untimed, which compiles the graph with XLA's optimisation, as a server would. (Stages turn the optimisation
    off, because they compile more than they run.)"""
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
