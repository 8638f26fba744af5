"""The ways to run a stage's process; a subclass of `Launcher` each, whose `kind` is a value of `launch.kind`."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from trnflow.tasks.artifact import Meta
from trnflow.tasks.launch.job import JobSpec
from trnflow.tasks.launch.local import run_job


class Launcher:
    """Base class of the ways to run a stage's process. kinds: all subclasses, by kind."""

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type[Launcher]]] = {}

    def __init_subclass__(cls) -> None:
        Launcher.kinds[cls.kind] = cls

    def run(self, spec: JobSpec, emit: Callable[[Meta], None], grace_seconds: float) -> Meta:
        """Run a stage in a process, wait for its end, and return its metadata; its files are in `spec.out`.

        Args:
            emit: Called with each event, in this thread. If it raises, the stage must be stopped.
            grace_seconds: Seconds between SIGTERM and SIGKILL.

        Raises:
            TrnflowError: The stage's own error, ProcessFailed if its process died, Interrupted if it was stopped.
        """
        raise NotImplementedError


class Local(Launcher):
    """Runs the stage's process on this machine, under a guard."""

    kind = "local"

    def run(self, spec: JobSpec, emit: Callable[[Meta], None], grace_seconds: float) -> Meta:
        return run_job(spec, emit, grace_seconds=grace_seconds)
