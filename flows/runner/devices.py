"""The devices on which a training runs, and the leases in the store that let one training at a time use each of them.

A training on GPUs or Neuron holds the leases of its devices while it runs, and another one waits: two trainings would share
the device's memory, and one of them would fail. So do precompile, where it measures memory on the device, and on a GPU an
evaluation and the scoring of champions. Trainings on the CPU hold none: processes share cores, and both end, later.
Trainings see each other if they share a store. A lease ends with its process, also if that is killed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial

from flows.recipes.recipe import Recipe
from flows.runner.call import Outcome
from flows.runner.single_flight import WAITS, await_turn
from tasks.keys.canonical_json import digest_of
from tasks.store import Store
from tasks.store.lease import Holder, newest_holder
from tasks.system.process import this_process

VISIBLE = "CUDA_VISIBLE_DEVICES"


def device_names(recipe: Recipe, environment: Mapping[str, str], trainings: int = 1) -> tuple[str, ...]:
    """Return the names of the devices for which a recipe's training needs leases, sorted; none on the CPU.

    They are `launch.device_names` if that is set, else each GPU as CUDA_VISIBLE_DEVICES names it, else `neuron` for all
    NeuronCores of the machine, since one training can't tell which cores another one uses.

    Args:
        environment: `launch.environment`, filled in.
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
    """Return {stage: names of the devices for which it needs leases} of the stages that use devices. precompile is among
    them if it finds out `train.micro_batch`, and evaluate_model and score_rows if they run on a GPU, of which they use the
    first.

    environment: `launch.environment`, filled in."""
    training = device_names(recipe, environment)
    found = {"train": training}
    if recipe.train.micro_batch == "auto":
        found["precompile"] = training
    if recipe.evaluate.on_device_of(recipe.train.device).device == "cuda":
        first = tuple(f"cuda {name}" for name in visible_gpus(environment, 1))
        found["evaluate_model"] = found["score_rows"] = first if recipe.launch.device_names is None else training
    return found


def visible_gpus(environment: Mapping[str, str], count: int) -> list[str]:
    """Return the first `count` GPUs that a training may use: those of `launch.environment`, else those of this process, else
    0, 1, ... environment: `launch.environment`, filled in."""
    found = gpu_names(environment) or gpu_names(os.environ)
    return found[:count] or [str(number) for number in range(count)]


def gpu_names(environment: Mapping[str, str]) -> list[str]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names in an environment, in its order; none if it is not set."""
    return [name.strip() for name in environment.get(VISIBLE, "").split(",") if name.strip()]


def device_key(name: str) -> str:
    """Return the key of the lease of a device of this machine, which is known by the id of its kernel's boot.

    The number of a GPU, and `neuron`, may mean other devices in another container: their key has the host name, too. Any
    other name means the same device in all containers of the machine.
    """
    here = this_process()
    document = {"device": name, "machine": here.boot or here.host}
    if name == "neuron" or name.removeprefix("cuda ").isdigit():
        document["host"] = here.host
    return digest_of(document).removeprefix("sha256:")


def take_devices(
    held: ExitStack,
    store: Store,
    names: Iterable[str],
    *,
    run: str,
    attempt: str,
    ttl: float,
    made: Callable[[], Outcome | None],
    say: Callable[[str], None],
    heed: Callable[[], None],
) -> Outcome | None:
    """Take the leases of devices, and wait while other processes hold them. Devices that this process holds already, such
    as those of a sweep for its trials, are not waited for.

    Args:
        held: Gets the leases, and releases them when it ends.
        names: The names of the devices. Every process takes them in the order of their names, so that no two of them wait
            for each other.
        run: What the leases say of their holder: the id of the run, and its recipe.
        attempt: The id of the attempt that trains. A lease lasts as long as a process of it lives, which may still save its
            state when the run was killed.
        ttl: The leases' time to live in seconds.
        made: Looks up what another run has published.
        say: Gets text for the user: once for each training that is waited for.
        heed: Called again and again while this run waits; raises to end the waiting.

    Returns:
        What another run has published meanwhile; None if the devices were taken.
    """
    for name in names:
        if (holder := newest_holder(store.backend, device_key(name))) and holder.process == this_process():
            continue
        waiter = store.waiter(device_key(name), run=run, attempt=attempt, ttl=ttl, patient=True)
        turn = await_turn(waiter, made, partial(_tell, say, name), heed)
        if isinstance(turn, Outcome):
            return turn
        held.enter_context(turn)
    return None


def _tell(say: Callable[[str], None], name: str, holder: Holder) -> None:
    say(f"{WAITS} the devices ({name}): {holder} uses them")
