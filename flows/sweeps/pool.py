"""The devices of a sweep: how many trials fit on them at a time, and the leases that keep other sweeps away.

A lease is a file in the store that one process at a time holds; others wait, or end with an error.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.runner.devices import VISIBLE, device_key, device_names, gpu_names, visible_gpus
from trnflow.flows.runner.executor import filled_environment
from trnflow.flows.runner.run import new_run_id
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.keys.canonical_json import digest_of
from trnflow.tasks.store import Store
from trnflow.tasks.system.process import this_process


def check_fit(recipe: Recipe) -> None:
    """Raise ConfigError if this machine has too few GPUs or CPU cores for `sweep.parallel` trials at a time, each on
    `train.devices` of them, or if trials on Neuron are to run in parallel."""
    wanted, each = recipe.sweep.parallel, recipe.train.devices
    if wanted == 1:
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
    """Return the recipe of a trial that runs beside other trials: on GPUs, its CUDA_VISIBLE_DEVICES names the
    `train.devices` GPUs of its slot only. On other devices, and without parallel trials, the recipe is returned
    unchanged.

    slot: the number of the worker that runs the trial, from 0 to `sweep.parallel` - 1."""
    if recipe.train.device != "cuda" or recipe.sweep.parallel == 1:
        return recipe
    each = recipe.train.devices
    mine = _gpus(recipe)[slot * each : (slot + 1) * each]
    environment = {**recipe.launch.environment, VISIBLE: ",".join(mine)}
    moved = recipe.model_copy(update={"launch": recipe.launch.model_copy(update={"environment": environment})})
    moved._folders = recipe._folders
    return moved


@dataclass(frozen=True)
class Leases:
    """The leases of a sweep. A lease is a file in the store by which one process at a time may use something. A sweep
    has one lease for its study (Optuna's record of its trials) and one for each device that it uses.

    If the sweep's process dies, its leases end. The lease of a device ends only after the processes of the trials,
    which may need a while to save their state.

    Attributes:
        recipe: The sweep's recipe.
        store: The store that has the leases.
        study: The name of the study.
        say: Called with a line of text that names the holder of a lease before this process waits for that holder.
        wait: Whether to wait while another sweep or a training has a lease; otherwise that is an error.
    """

    recipe: Recipe
    store: Store
    study: str
    say: Callable[[str], None]
    wait: bool = False

    @contextmanager
    def hold_study(self) -> Iterator[None]:
        """Context that holds the lease of the study, so that no other process runs the study's trials. ConfigError if
        another sweep holds the lease and `wait` is false."""
        key = digest_of({"sweep": f"the study {self.study}"}).removeprefix("sha256:")
        with self._held(key, f"another sweep has the study {self.study}", new_run_id()):
            yield

    @contextmanager
    def hold_devices(self) -> Iterator[None]:
        """Context that holds the leases of the sweep's devices, so that no other sweep and no training uses them. On
        the CPU there is one lease for the whole machine, which keeps other sweeps away. ConfigError if another sweep
        or a training holds one of the leases and `wait` is false."""
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
        """Hold a lease. attempt, patient: see `Waiter`; error: what to say if another process has it."""
        run, ttl = f"{new_run_id()} of {self.recipe.name}, a sweep", self.recipe.store.lease_ttl_seconds
        waiter = self.store.waiter(key, run=run, attempt=attempt, ttl=ttl, patient=patient)
        lease = waiter.take()
        if lease is None:
            holder = waiter.holder
            if self.wait or (holder and holder.seems_silent):
                self.say(f"waits: {error}: {holder or 'another process'}")
            lease = waiter.take_watching(wait=self.wait)
        if lease is None:
            raise ConfigError(f"{error}: {waiter.holder or 'another process'}", "wait until that one ends, or stop it")
        with lease:
            yield


def _gpus(recipe: Recipe) -> list[str]:
    """Return the GPUs that a recipe may use, as CUDA_VISIBLE_DEVICES names them: those of `launch.environment`, else those
    of this process, of which there may be fewer."""
    return gpu_names(filled_environment(recipe.launch)) or visible_gpus({}, _count("cuda"))


def _count(device: str) -> int:
    """Return the devices of this machine: CPU cores that this process may use, or GPUs."""
    if device == "cpu":
        return len(os.sched_getaffinity(0))
    import torch

    return int(torch.cuda.device_count())
