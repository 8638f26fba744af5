"""The devices on which a training runs, and the leases by which only one training at a time uses each device.

The lease of a device is a file in the store that says which process uses the device. A training on GPUs or Neuron holds
the leases of its devices while it runs, and another training waits: two trainings would share the device's memory, and
one of them would fail. Leases are held, too, by precompile where it measures memory on the device, and on a GPU by
evaluation and by the scoring of champions. Trainings on the CPU hold none, since processes can share cores, unless
`launch.device_names` is set. Only trainings that share a store wait for each other. A lease ends with its process, also
if the process is killed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from trnflow.flows.recipes.recipe import LaunchConfig, Recipe
from trnflow.tasks.keys.canonical_json import digest_of
from trnflow.tasks.system.process import this_process
from trnflow.tasks.system.redaction import add_secret, fill_variables

VISIBLE = "CUDA_VISIBLE_DEVICES"


def device_names(recipe: Recipe, environment: Mapping[str, str], trainings: int = 1) -> tuple[str, ...]:
    """Return the names of the devices for which a recipe's training needs leases, sorted; none on the CPU. The lease of
    a device is a file in the store by which only one training at a time uses the device.

    The names are those in `launch.device_names` if that is set. Otherwise they are, with `train.device: cuda`, `cuda N`
    for each GPU that training uses, with N as in CUDA_VISIBLE_DEVICES; with `train.device: neuron`, the one name
    `neuron` for all NeuronCores of the machine, since one training can't tell which cores another training uses.

    Args:
        environment: The setting `launch.environment`, with the variables in its values filled in.
        trainings: How many trainings run at a time, each on GPUs of its own.
    """
    named, device = recipe.launch.device_names, recipe.train.device
    if named is not None:
        return tuple(sorted({*named}))
    if device == "cuda":
        count = recipe.train.devices * trainings
        return tuple(sorted(f"cuda {name}" for name in visible_gpus(environment, count)))
    return ("neuron",) if device == "neuron" else ()


def devices_of_stages(recipe: Recipe, environment: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return {stage name: names of the devices for which the stage needs leases}. Other stages need no leases. The
    lease of a device is a file in the store by which only one process at a time uses the device.

    - train is always in the result, with the names from `device_names` (none on the CPU by default).
    - precompile is in the result, with the same names, if `train.micro_batch` is `auto`: precompile then measures
      memory on the device.
    - evaluate_model and score_rows (the stage that scores champions) are in the result if they run on a GPU. They need
      the first GPU only, or all names of `launch.device_names` if that is set.

    environment: the setting `launch.environment`, with the variables in its values filled in."""
    training = device_names(recipe, environment)
    found = {"train": training}
    if recipe.train.micro_batch == "auto":
        found["precompile"] = training
    if recipe.evaluate.on_device_of(recipe.train.device).device == "cuda":
        first = tuple(f"cuda {name}" for name in visible_gpus(environment, 1))
        found["evaluate_model"] = found["score_rows"] = first if recipe.launch.device_names is None else training
    return found


def visible_gpus(environment: Mapping[str, str], count: int) -> list[str]:
    """Return the names of the GPUs that a training may use: the first `count` entries of the environment variable
    CUDA_VISIBLE_DEVICES, or all of them if it has fewer.

    The variable is looked up in `environment` (the setting `launch.environment`, filled in), then in the environment of
    this process. If it is set in neither, the names are "0", "1", ..., up to count - 1."""
    found = gpu_names(environment) or gpu_names(os.environ)
    return found[:count] or [str(number) for number in range(count)]


def gpu_names(environment: Mapping[str, str]) -> list[str]:
    """Return the GPUs that the variable CUDA_VISIBLE_DEVICES names in an environment, such as ["0", "3"], in that
    order; an empty list if the variable is not set."""
    return [name.strip() for name in environment.get(VISIBLE, "").split(",") if name.strip()]


def device_key(name: str) -> str:
    """Return the key, 64 hexadecimal digits, under which the store keeps the lease of a device of this machine, the
    file by which only one process at a time uses the device.

    The key is the hash of the device's name and of the machine's boot id (its host name, if the id is unknown). The
    number of a GPU, and the name `neuron`, may mean other devices in another container of the machine: for these, the
    host name is hashed too. Any other name means the same device in all containers.
    """
    here = this_process()
    document = {"device": name, "machine": here.boot or here.host}
    if name == "neuron" or name.removeprefix("cuda ").isdigit():
        document["host"] = here.host
    return digest_of(document).removeprefix("sha256:")


def filled_environment(launch: LaunchConfig) -> dict[str, str]:
    """Return the variables of `launch.environment`, each `${NAME}` in a value replaced by the environment variable NAME.
    The values are secrets from now on.

    Raises:
        ConfigError: An environment variable is not set.
    """
    filled = {name: fill_variables(value, f"launch.environment.{name}") for name, value in launch.environment.items()}
    for value in filled.values():
        add_secret(value)
    return filled
