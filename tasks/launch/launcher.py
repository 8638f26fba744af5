"""The ways to run a stage's process. Each has a `kind`, a value of `launch.kind`."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from trnflow.tasks.artifact import Meta
from trnflow.tasks.launch.job import JobSpec
from trnflow.tasks.launch.local import run_job


class Launcher:
    """Base class. kinds: all subclasses, by kind."""

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type[Launcher]]] = {}

    def __init_subclass__(cls) -> None:
        Launcher.kinds[cls.kind] = cls

    def run(self, spec: JobSpec, emit: Callable[[Meta], None], grace_seconds: float) -> Meta:
        """Run a stage in a process, wait for its end, and return its metadata, as `run_job` does. Raises
        TrnflowError."""
        raise NotImplementedError


class Local(Launcher):
    """Runs the stage's process on this machine, under a guard."""

    kind = "local"

    def run(self, spec: JobSpec, emit: Callable[[Meta], None], grace_seconds: float) -> Meta:
        return run_job(spec, emit, grace_seconds=grace_seconds)
