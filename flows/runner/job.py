"""Run a job, which is a stage or a part of a stage, and write the record of its artifact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from flows.runner.work_folders import data_folders
from tasks.artifact import Artifact, Input, Json, Meta, Source
from tasks.config import StageConfig
from tasks.keys.allowed_files import permit_for
from tasks.keys.key_document import key_of
from tasks.launch.job import JobSpec, Step
from tasks.launch.launcher import Launcher
from tasks.launch.warm_start import PARTIAL_ROOT, modules_for
from tasks.stage import Stage
from tasks.store import Store
from tasks.system.process import ATTEMPT
from tasks.system.redaction import scrub


@dataclass(frozen=True)
class Job:
    """A stage, with its inputs and its place to write, ready to run in a process.

    Attributes:
        document: The stage's key document, or that of the part.
        inputs: The inputs by parameter name; the files of artifacts are on this machine.
        attempt: The name of the attempt.
        log: The file that takes stdout and stderr of the stage's processes.
        environment: Further environment variables for the process; their values are secret.
        grace_seconds: How long the stage may save its state when it is stopped.
        launcher: Runs the process.
    """

    stage: Stage
    config: StageConfig
    document: Meta
    inputs: dict[str, Input | Source]
    attempt: str
    log: Path
    environment: dict[str, str]
    grace_seconds: float
    launcher: Launcher

    def run(self, store: Store, out: Path, emit: Callable[[Meta], None], step: Step | None = None) -> Meta:
        """Run the stage in a process and return its metadata.

        Args:
            out: The folder that the stage writes its files to.
            emit: Called with each event of the stage, in this thread.
            step: The step to run of a stage that works in parts; None runs the whole stage.

        Raises:
            TrnflowError: The error of the stage.
        """
        variables = self.stage.environ(self.config) | self.environment
        spec = JobSpec.of(
            self.stage.function,
            self.config,
            self.inputs,
            out=out,
            scratch=out.with_name(f"{out.name}.scratch"),
            log=self.log,
            partial=self._partial(store) if self.stage.resumable else None,
            environ=variables | {ATTEMPT: self.attempt, PARTIAL_ROOT: store.root},
            secret=tuple(self.environment),
            permit=permit_for(self.stage, self.document["code"], self.inputs.values(), data_folders(store), store.memo),
            ranks=self.stage.ranks(self.config),
            preload=modules_for(self.document["env"], variables),
            step=step or Step(),
        )
        return self.launcher.run(spec, emit, self.grace_seconds)

    def _partial(self, store: Store) -> dict[str, str]:
        """Return {root, home, key}: where in the store the stage keeps its resumable state. Secrets in the root are
        replaced, because the job is written to a file."""
        return {"root": scrub(store.root), "home": str(store.home), "key": key_of(self.document)}


def record_of(document: Meta, artifact: Artifact, attempt: str, created: str, **more: Json) -> Meta:
    """Build the record that lets later runs find an artifact by the key of `document`.

    Args:
        document: The key document.
        attempt: The name of the attempt that made the artifact.
        created: When it was made, UTC, ISO 8601.
        more: Further fields of the record.
    """
    return {
        "schema": 1,
        "stage": document["stage"],
        "key": key_of(document),
        "document": document,
        "artifact": artifact.digest,
        "attempt": attempt,
        "created": created,
        **more,
    }


def publish(
    store: Store, record: Meta, artifact: Artifact, *, holds: Sequence[Meta] = (), unusable: Callable[[Meta], bool]
) -> Meta:
    """Write the record of an artifact. Returns the record that the key has afterwards: this one, or the record of
    another run that published first.

    Args:
        record: Made by `record_of`.
        holds: {"stage", "key"} of records that the artifact depends on. If garbage collection has moved them to the trash
            meanwhile, they are brought back.
        unusable: Whether the record of another run has to be replaced.
    """
    store.secure([*holds], artifact)
    published = store.publish(record)
    if published["artifact"] != artifact.digest and unusable(published):
        published = store.publish(record, replace=True)
    return published
