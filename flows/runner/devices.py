"""The devices of a recipe's stages. A stage uses them alone, by leases that all runs on this machine and store take."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.recipes.sections import LaunchConfig
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.keys.canonical_json import digest_of
from trnflow.tasks.stage import Stage
from trnflow.tasks.system.process import this_process
from trnflow.tasks.system.redaction import add_secret, fill_variables

VISIBLE = "CUDA_VISIBLE_DEVICES"


def device_names(recipe: Recipe, environment: Mapping[str, str], trainings: int = 1) -> tuple[str, ...]:
    """Return the names of the devices for which training needs leases, sorted: those of `launch.device_names`, else a name
    for each GPU, `neuron` for all NeuronCores, none on the CPU.

    environment: `launch.environment`, filled in; trainings: how many run at a time, each on GPUs of its own.
    """
    named, device = recipe.launch.device_names, recipe.train.device
    if named is not None:
        return tuple(sorted({*named}))
    if device == "cuda":
        count = recipe.train.devices * trainings
        return tuple(sorted(f"cuda {name}" for name in visible_gpus(environment, count)))
    # one training cannot tell which cores another one uses
    return ("neuron",) if device == "neuron" else ()


def devices_of(stage: Stage, config: Any, recipe: Recipe, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the devices for which a stage of a recipe needs leases. environment: as for `device_names`."""
    # precompile measures memory on the device if it is to find the micro batch, and compiles there for its cache
    measures = stage.role == "graphs" and (config.micro_batch == "auto" or config.compile_cache)
    if stage.role == "training" or measures:
        return device_names(recipe, environment)
    if stage.role == "graphs" or getattr(config, "device", None) != "cuda":
        return ()
    # one that evaluates runs on the first GPU
    if recipe.launch.device_names is not None:
        return device_names(recipe, environment)
    return tuple(f"cuda {name}" for name in visible_gpus(environment, 1))


def visible_gpus(environment: Mapping[str, str], count: int) -> list[str]:
    """Return the names of the first `count` GPUs that CUDA_VISIBLE_DEVICES allows, in `environment` or in this process;
    without it "0", "1", ..."""
    found = gpu_names(environment) or gpu_names(os.environ)
    return found[:count] or [str(number) for number in range(count)]


def gpu_names(environment: Mapping[str, str]) -> list[str]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names in an environment, in its order."""
    return [name.strip() for name in environment.get(VISIBLE, "").split(",") if name.strip()]


def device_key(name: str) -> str:
    """Return the key, 64 hexadecimal digits, of the lease of a device of this machine."""
    here = this_process()
    document = {"device": name, "machine": here.boot or here.host}
    # these may mean other devices in another container of the machine; any other name is the same in all of them
    if name == "neuron" or name.removeprefix("cuda ").isdigit():
        document["host"] = here.host
    return digest_of(document).removeprefix("sha256:")


def filled_environment(launch: LaunchConfig) -> dict[str, str]:
    """Return `launch.environment` with each `${NAME}` filled in; the values are secrets from now on. Raises ConfigError."""
    filled = {name: fill_variables(value, f"launch.environment.{name}") for name, value in launch.environment.items()}
    for value in filled.values():
        add_secret(value)
    return filled


def refuse_torchrun() -> None:
    """Raise ConfigError in a process that torchrun started as one of several: one would train, and the others wait for it."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    processes, nodes = (int(os.environ.get(name) or 1) for name in ("WORLD_SIZE", "GROUP_WORLD_SIZE"))
    if max(processes, nodes) == 1:
        return
    if nodes > 1:
        raise ConfigError(
            f"torchrun started this command on {nodes} nodes, and a run uses one machine: the others would wait for it",
            "start it once without torchrun, on the machine with the most devices; trials of a sweep can share several machines",
        )
    raise ConfigError(
        f"torchrun started this command {processes} times, and training starts its own processes",
        f"start it once without torchrun, with train.devices={processes}",
    )
