"""Fit a recipe to other hardware (`--on NAME`)."""

from __future__ import annotations

import math
from typing import Any

ENGINE_SETTINGS = ("xla_processes", "compiler_flags", "compile", "compile_cache", "fsdp", "attention", "deterministic")
"""Settings of `train` that belong to one engine or device."""


def prepare_move(tree: dict[str, Any], hardware: dict[str, Any]) -> None:
    """Remove the old hardware's settings from a recipe's tree, in place, and fit `train.tensor_parallel_size` and
    `train.micro_batch` to the new devices.

    hardware: the settings that the caller merges afterwards.
    """
    tree.pop("hardware", None)
    train, new = tree.get("train"), hardware["train"]
    if not isinstance(train, dict):
        return
    dropped = ["device_memory_gib"]
    if (train.get("engine"), train.get("device")) != (new["engine"], new["device"]):
        dropped += ENGINE_SETTINGS
    if new["device"] != "cuda" and isinstance(tree.get("evaluate"), dict):
        tree["evaluate"].pop("device", None)
    columns = train.get("tensor_parallel_size")
    # fitted is what changes results by rounding alone; global batch, steps and learning rate are kept
    columns = math.gcd(columns, new["devices"]) if isinstance(columns, int) else 1
    if new["device"] == "neuron" and train.get("xla_processes") != "one":
        columns = 1  # on Neuron this needs SPMD (experimental): only with `xla_processes: one`
    replicas = new["devices"] // columns
    train["tensor_parallel_size"] = columns
    dropped += ["sequence_parallel"] if columns == 1 else []
    dropped += ["zero1", "fsdp"] if replicas == 1 else []
    dropped += ["compile", "compile_cache"] if new["devices"] > 1 else []
    batch, rows = train.get("global_batch"), train.get("micro_batch")
    if isinstance(batch, int) and isinstance(rows, int) and batch % replicas == 0:
        train["micro_batch"] = math.gcd(rows, batch // replicas)
    for name in dropped:
        train.pop(name, None)
