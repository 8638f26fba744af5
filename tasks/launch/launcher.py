"""The ways to run a stage's process, such as on this machine. Each way is a subclass of `Launcher`, and its `kind` is a
value of the setting `launch.kind`."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from trnflow.tasks.artifact import Meta
from trnflow.tasks.launch.job import JobSpec
from trnflow.tasks.launch.local import run_job


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
        """Run a stage in a process, wait until the process has ended, and return the stage's metadata. The stage's
        files are then in `spec.out`.

        Args:
            spec: Describes the call of the stage function.
            emit: Called with each event of the stage (progress, metrics, messages), in this thread. If it raises an
                error, an implementation must stop the stage.
            grace_seconds: Seconds between SIGTERM and SIGKILL in which a stage that is stopped may save its state.

        Raises:
            TrnflowError: The stage's own error, ProcessFailed if its process died, or Interrupted if it was stopped.
        """
        raise NotImplementedError


class Local(Launcher):
    """Runs the stage's process on this machine, under a guard, which ends all processes of the stage (see
    `trnflow.tasks.launch.local`)."""

    kind = "local"

    def run(self, spec: JobSpec, emit: Callable[[Meta], None], grace_seconds: float) -> Meta:
        return run_job(spec, emit, grace_seconds=grace_seconds)
