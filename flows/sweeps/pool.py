"""The devices of a sweep: how many trials fit at a time, and the leases that keep other sweeps away."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.runner.context import new_run_id
from trnflow.flows.runner.devices import VISIBLE, device_key, device_names, filled_environment, gpu_names, visible_gpus
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.keys.canonical_json import digest_of
from trnflow.tasks.store import Store
from trnflow.tasks.system.process import this_process


def check_fit(recipe: Recipe) -> None:
    """Raise ConfigError if this machine has too few devices for `sweep.parallel` trials."""
    wanted, each = recipe.sweep.parallel, recipe.train.devices
    # jobs have machines of their own
    if wanted == 1 or recipe.launch.kind != "local":
        return
    kind = recipe.train.device
    if kind == "neuron":
        raise ConfigError("sweep.parallel is 1 on Neuron: one process drives the cores", "leave out --parallel")
    there = len(_gpus(recipe)) if kind == "cuda" else _count(kind)
    if wanted * each > there:
        word = "cores" if kind == "cpu" else "GPUs"
        raise ConfigError(
            f"{wanted} trials at a time with train.devices={each} need {wanted * each} {word}, and this machine has {there}",
            f"--parallel {there // each}" if there >= each else "lower train.devices",
        )


def on_slot(recipe: Recipe, slot: int) -> Recipe:
    """Return the recipe with a slot's GPUs in CUDA_VISIBLE_DEVICES; off GPUs, with one slot or of jobs, unchanged. slot: from 0
    below `sweep.parallel`."""
    if recipe.train.device != "cuda" or recipe.sweep.parallel == 1 or recipe.launch.kind != "local":
        return recipe
    each = recipe.train.devices
    mine = _gpus(recipe)[slot * each : (slot + 1) * each]
    environment = {**recipe.launch.environment, VISIBLE: ",".join(mine)}
    return recipe.model_copy(update={"launch": recipe.launch.model_copy(update={"environment": environment})})


@dataclass(frozen=True)
class Leases:
    """The leases of a sweep: of its study, and of each device.

    say: called with the holder of a lease before this process waits; wait: wait for a held lease, else ConfigError.
    """

    recipe: Recipe
    store: Store
    study: str
    say: Callable[[str], None]
    wait: bool = False

    @contextmanager
    def hold_study(self) -> Iterator[None]:
        """Hold the study's lease: no other process runs its trials."""
        key = digest_of({"sweep": f"the study {self.study}"}).removeprefix("sha256:")
        with self._held(key, f"another sweep has the study {self.study}", new_run_id()):
            yield

    @contextmanager
    def hold_devices(self) -> Iterator[None]:
        """Hold the leases of the sweep's devices; on the CPU one for the whole machine; of jobs none."""
        if self.recipe.launch.kind != "local":
            yield
            return
        names = device_names(self.recipe, filled_environment(self.recipe.launch), self.recipe.sweep.parallel) or (
            "cpu",
        )
        with ExitStack() as held:
            for name in names:
                where = f"the {name} devices of {socket.gethostname()}"
                error = f"another sweep or training has {where}"
                held.enter_context(self._held(device_key(name), error, this_process().tag, patient=True))
            yield

    @contextmanager
    def _held(self, key: str, error: str, attempt: str, *, patient: bool = False) -> Iterator[None]:
        """Hold a lease. error: what to say if another process has it."""
        run, ttl = f"{new_run_id()} of {self.recipe.name}, a sweep", self.recipe.store.lease_ttl_seconds
        waiter = self.store.waiter(key, run=run, attempt=attempt, ttl=ttl, patient=patient)
        lease = waiter.acquire_watching(wait=self.wait, tell=lambda holder: self.say(f"waits: {error}: {holder}"))
        if lease is None:
            raise ConfigError(f"{error}: {waiter.holder or 'another process'}", "wait until that one ends, or stop it")
        with lease:
            yield


def _gpus(recipe: Recipe) -> list[str]:
    """Return the usable GPUs as CUDA_VISIBLE_DEVICES names them."""
    return gpu_names(filled_environment(recipe.launch)) or visible_gpus({}, _count("cuda"))


def _count(device: str) -> int:
    """Return the number of this machine's GPUs, or of usable cores."""
    if device == "cpu":
        return len(os.sched_getaffinity(0))
    import torch

    return int(torch.cuda.device_count())
