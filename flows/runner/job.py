"""Run a stage or a part of one in a process, and write the record of its artifact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from trnflow.flows.runner.work_folders import data_folders
from trnflow.tasks.artifact import Artifact, Input, Json, Meta, Source
from trnflow.tasks.config import StageConfig
from trnflow.tasks.keys.allowed_files import permit_for
from trnflow.tasks.keys.key_document import key_of
from trnflow.tasks.launch.job import JobSpec, Step
from trnflow.tasks.launch.launcher import Launcher
from trnflow.tasks.launch.warm_parents import PARTIAL_ROOT, modules_for
from trnflow.tasks.stage import Stage
from trnflow.tasks.store import Store
from trnflow.tasks.system.process import ATTEMPT
from trnflow.tasks.system.redaction import scrub


@dataclass(frozen=True)
class Job:
    """A stage or a part of one, with all that is needed to run it.

    Attributes:
        document: The key document.
        inputs: By parameter name; their files are on this machine.
        log: Takes what the processes print.
        environment: Further variables of the process; their values are secret.
        grace_seconds: Between SIGTERM and SIGKILL.
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
        """Run the stage in a process, its files into `out`, and return its metadata. Raises the stage's error.

        step: of a stage that works in parts; None runs the whole stage."""
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
        """Return where in the store the stage keeps its state. The job is a file: secrets of the root are hidden."""
        return {"root": scrub(store.root), "home": str(store.home), "key": key_of(self.document)}


def record_of(document: Meta, artifact: Artifact, attempt: str, created: str, **more: Json) -> Meta:
    """Return the record of an artifact; writes nothing. created: UTC, ISO 8601; more: further fields."""
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
    """Write a record, unless another run published another artifact first, and return the record that counts.

    Args:
        holds: {"stage", "key"} of records that the artifact depends on; they are brought back from the trash.
        unusable: Whether to replace the other run's record.

    Raises:
        BlobLost: A record or file that the artifact depends on is gone.
    """
    store.restore([*holds], artifact)
    published = store.publish(record)
    if published["artifact"] != artifact.digest and unusable(published):
        published = store.publish(record, replace=True)
    return published
