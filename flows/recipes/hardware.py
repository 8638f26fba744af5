"""Fit a recipe to other hardware (`--on NAME`), or to this machine (`--on auto`, `gpu` or `cpu`)."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from functools import cache
from typing import Any

from trnflow.flows.recipes.schema import Tree
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.system.gpus import Usable, usable_gpus
from trnflow.tasks.system.optional_packages import torch_xla_lacks
from trnflow.tasks.system.redaction import fill_variables

AUTO = "auto"
THIS_MACHINE = (AUTO, "gpu", "cpu")
"""Names that `--on` takes beside those of `conf/base/hardware`."""

FIXING = ("engine", "device", "devices", "tensor_parallel_size")
"""Settings of `train` of which any fixes the hardware of a recipe, as `hardware.device` does."""

LORA_TYPE = ("consolidate.dtype", "base")
CHOSEN = (
    *(f"train.{name}" for name in (*FIXING, "dtype", "micro_batch", "stochastic_rounding", "remat", "fsdp")),
    *(LORA_TYPE[0], "export.target", "evaluate.device"),
)
"""Settings that follow from the machine, unless the recipe has them."""

ANYWHERE = ("onnx", "gguf", "none")
"""Values of `export.target` that any machine can make: what a recipe says of them stays."""

CUDA_VARIABLES = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
"""Environment variables that decide which GPUs a process sees."""

BFLOAT16, FLOAT16 = (8, 0), (7, 5)
"""The capabilities from which GPUs compute in bfloat16, and from which float16 is chosen."""

FASTER = {"compile": True, "deterministic": False}
"""Settings of `train` that are not chosen, but named: compiling pays in a long run only, and when the hardware is chosen, rows
are not counted yet. A later choice would change keys of what is trained already."""

GAIN = "1.5 times as fast for a Llama of 1.1 B on an H100"

ENGINE_SETTINGS = ("xla_processes", "compiler_flags", "compile", "compile_cache", "fsdp", "attention", "deterministic")
"""Settings of `train` that belong to one engine or device."""


def prepare_move(tree: Tree, hardware: Tree) -> None:
    """Remove the old hardware's settings from a recipe's tree, in place, and fit `train.tensor_parallel_size` and
    `train.micro_batch` to the new devices.

    hardware: the settings that the caller merges afterwards.
    """
    tree.pop("hardware", None)
    train, new = tree.get("train"), hardware["train"]
    if not isinstance(train, dict):
        return
    dropped = ["device_memory_gib", "dp_replicate_size"]
    if (train.get("engine"), train.get("device")) != (new["engine"], new["device"]):
        dropped += ENGINE_SETTINGS
    if new["device"] != "cuda" and isinstance(tree.get("evaluate"), dict):
        tree["evaluate"].pop("device", None)
    if new["device"] != "neuron" and _at(tree, "export", "target") == "neuron":
        tree["export"]["target"] = "stablehlo"  # Neuron's compiler is on Trainium machines only
    columns = train.get("tensor_parallel_size")
    # fitted is what changes results by rounding alone; global batch, steps and learning rate are kept
    columns = math.gcd(columns, new["devices"]) if isinstance(columns, int) else 1
    if new["device"] == "neuron" and train.get("xla_processes") != "one":
        columns = 1  # on Neuron this needs SPMD (experimental): only with `xla_processes: one`
    replicas = new["devices"] // columns
    train["tensor_parallel_size"] = columns
    dropped += ["sequence_parallel"] if columns == 1 else []
    dropped += ["zero1", "fsdp"] if replicas == 1 else []
    dropped += ["compile", "compile_cache"] if columns > 1 else []
    batch, rows = train.get("global_batch"), train.get("micro_batch")
    if isinstance(batch, int) and isinstance(rows, int) and batch % replicas == 0:
        train["micro_batch"] = math.gcd(rows, batch // replicas)
    for name in dropped:
        train.pop(name, None)


@cache  # asked once a process: all plans and runs of a command choose alike
def find_gpus(**variables: str) -> Usable:
    """Return the GPUs that a process with these variables, beside this one's, can use for training."""
    return usable_gpus({**os.environ, **variables})


def fixes_hardware(tree: Tree) -> bool:
    """Return whether a recipe's tree says what trains it."""
    settings = (_at(tree, "hardware", "device"), *(_at(tree, "train", name) for name in FIXING))
    return any(value is not None for value in settings)


def choose_for_this_machine(wanted: str, tree: Tree) -> tuple[Tree, str]:
    """Return (settings, why, in a line) for this machine: its GPUs, else its processor.

    wanted: of THIS_MACHINE; tree: the recipe's. Raises ConfigError for `gpu` where none is usable, and where
    `launch.environment` names GPUs by an environment variable that is not set.
    """
    usable = find_gpus(**_cuda_variables(tree)) if wanted != "cpu" else Usable(why="--on cpu asks for it")
    if usable.gpus:
        return _on_gpus(usable, tree)
    if wanted == "gpu":
        raise ConfigError(f"--on gpu: {usable.why}", "use --on cpu, or --on auto, which takes what is there")
    settings = {"hardware": {"name": "this machine"}, "train": {"engine": "native", "device": "cpu", "devices": 1}}
    why = leave_out_export(settings, tree)
    return settings, f"this machine: trains on the processor, because {usable.why}; engine native{why and f', {why}'}"


def leave_out_export(settings: Tree, tree: Tree) -> str:
    """Set `export.target` to none, in place, where StableHLO can't be made; return why, else "". tree: the recipe's."""
    lacks = torch_xla_lacks()
    if not lacks or _at(tree, "export", "target") in ANYWHERE:
        return ""
    settings["export"] = {"target": "none"}
    return f"no export: {lacks}"


def _cuda_variables(tree: Tree) -> dict[str, str]:
    """Return what `launch.environment` says of CUDA_VARIABLES, filled in."""
    values = {name: _at(tree, "launch", "environment", name) for name in CUDA_VARIABLES}
    # what is no text is refused when the recipe is validated
    texts = {name: value for name, value in values.items() if isinstance(value, str)}
    return {name: fill_variables(text, f"launch.environment.{name}") for name, text in texts.items()}


def _on_gpus(usable: Usable, tree: Tree) -> tuple[Tree, str]:
    gpu, batch = usable.gpus[0], _at(tree, "train", "global_batch") or 32
    # the global batch stays, so each GPU takes an equal share of its rows
    count = math.gcd(len(usable.gpus), batch) if isinstance(batch, int) else len(usable.gpus)
    used = usable._replace(gpus=usable.gpus[:count])
    dtype = _dtype(gpu.capability, _at(tree, "train", "dtype"))
    train = {"engine": "native", "device": "cuda", "devices": count, "dtype": dtype}
    train |= {"micro_batch": "auto"} if _at(tree, "train", "micro_batch") is None else {}
    train |= {} if dtype == "bfloat16" else {"stochastic_rounding": False}
    settings: Tree = {
        "hardware": {"name": str(used).partition(" (")[0], "device": "cuda", "memory_gib": gpu.gib},
        "train": train,
    }
    exports = _at(tree, "export", "target") in ANYWHERE
    settings |= {} if exports else {"export": {"target": "none"}}
    if _at(tree, "train", "method") == "lora":
        section, _, name = LORA_TYPE[0].partition(".")
        settings[section] = {name: LORA_TYPE[1]}
    left = (
        "" if count == len(usable.gpus) else f" (of {len(usable.gpus)}: a global batch of {batch} is divided equally)"
    )
    lacks = (
        "" if gpu.capability >= BFLOAT16 else f" (capability {gpu.capability[0]}.{gpu.capability[1]} has no bfloat16)"
    )
    without = "" if exports else ", no export"
    why = f"this machine: trains on {used}{left}; engine native, {dtype}{lacks}{without}{_faster(dtype, tree)}"
    return settings, why


def _faster(dtype: str, tree: Tree) -> str:
    """Name the settings of FASTER for a recipe's tree that has neither; "" where their gain was not measured."""
    splits_layers = _at(tree, "train", "tensor_parallel_size") not in (None, 1)  # which are compiled whole
    if dtype != "bfloat16" or splits_layers or any(_at(tree, "train", name) is not None for name in FASTER):
        return ""
    named = " ".join(f"train.{name}={str(value).lower()}" for name, value in FASTER.items())
    return f"; for a long run set {named} ({GAIN})"


def _dtype(capability: tuple[int, int], wanted: str | None) -> str:
    """Return `train.dtype` for a GPU: what the recipe wants, unless it is bfloat16 and the GPU has none."""
    if capability >= BFLOAT16:
        return wanted or "bfloat16"
    narrow = "float16" if capability >= FLOAT16 else "float32"
    return narrow if wanted in (None, "bfloat16") else wanted


def open_settings(tree: Tree) -> tuple[str, ...]:
    """Return those of CHOSEN that a recipe's tree leaves open."""
    return tuple(name for name in CHOSEN if _at(tree, *name.split(".")) is None)


def difference(before: Tree, after: Tree) -> str:
    """Say how a recipe that was made for an accelerator differs elsewhere; "" if its kind of device stays."""
    made_for, device = _at(before, "hardware", "name"), _at(before, "train", "device")
    if device in (None, "cpu") or device == _at(after, "train", "device"):
        return ""
    changes = "; ".join(_changes(before, after))
    return f"the recipe is made for {made_for or device}, and differs here: {changes}"


def _changes(before: Tree, after: Tree) -> Iterator[str]:
    for part in dict.fromkeys(name.partition(".")[0] for name in CHOSEN):
        was, now_is = before.get(part) or {}, after.get(part) or {}
        for name in dict.fromkeys((*was, *now_is)):
            if was.get(name) != now_is.get(name):
                texts = ("default" if each.get(name) is None else each[name] for each in (was, now_is))
                yield f"{part}.{name} {' -> '.join(map(str, texts))}"


def _at(tree: Tree, *path: str) -> Any:
    value: Any = tree
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value
