"""The ways to run a stage's process. Each is a class, and its `kind` is a value of the setting `launch.kind`."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from tasks.artifact import Meta
from tasks.launch.job import JobSpec
from tasks.launch.local import run_job


class Launcher:
    """Base class of the ways to run a stage's process. A subclass has a `kind` and overrides `run`; nothing else is needed.

    Attributes:
        kind: The name of the subclass in the setting `launch.kind`.
        kinds: All subclasses, by kind.
    """

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type[Launcher]]] = {}

    def __init_subclass__(cls) -> None:
        Launcher.kinds[cls.kind] = cls

    def run(self, spec: JobSpec, emit: Callable[[Meta], None], grace_seconds: float) -> Meta:
        """Run the job until its process has ended, and return the stage's metadata. Its files are then in `spec.out`.

        Args:
            emit: Called with each event of the stage, in this thread. What it raises must stop the stage.
            grace_seconds: How long a stage that is stopped may save its state.

        Raises:
            TrnflowError: The stage's own error, ProcessFailed if its process died, or Interrupted if it was stopped.
        """
        raise NotImplementedError


class Local(Launcher):
    """Runs the process on this machine, under a guard (see `tasks.launch.local`)."""

    kind = "local"

    def run(self, spec: JobSpec, emit: Callable[[Meta], None], grace_seconds: float) -> Meta:
        return run_job(spec, emit, grace_seconds=grace_seconds)
