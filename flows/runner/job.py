"""Run a job, which is a stage or a part of a stage, in a process, and write the record of its artifact.

A record is the JSON document in the store by which later runs find an artifact under a stage's key, the hash of the key
document: the JSON of everything that decides the result.
"""

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
    """A stage, or one part (piece of the work) of a stage, with all that is needed to run it in a process by `run`.

    Attributes:
        stage: The description of the stage function.
        config: The stage's config.
        document: The key document of the stage or part: the JSON of everything that decides the result.
        inputs: The inputs by parameter name; the files of artifacts are on this machine.
        attempt: The id of the attempt, this one try to run the stage.
        log: The file to which stdout and stderr of the stage's processes are written.
        environment: Further environment variables for the process; their values are secret.
        grace_seconds: Seconds between SIGTERM and SIGKILL in which a stage that is stopped may save its state.
        launcher: Runs the process, such as `trnflow.tasks.launch.launcher.Local` on this machine.
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
            store: The store in which a resumable stage keeps its state. The artifact is not written there: see
                `publish`.
            emit: Called with each event of the stage (progress, metrics, messages), in this thread.
            step: Which step of a stage that works in parts to run (list the parts, make a part, put them together);
                None runs the whole stage.

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
    """Return the record of an artifact, the JSON document by which later runs find the artifact under its key (the hash
    of `document`). Writes nothing (see `publish`).

    Args:
        document: The key document: the JSON of everything that decided the result.
        attempt: The id of the attempt (try to run the stage) that made the artifact.
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
    """Write the record of an artifact to the store. From then on the artifact is the result of its key (the hash of
    everything that decided it), and later runs use it, unless another run has published a different artifact first.

    Args:
        record: Made by `record_of`.
        artifact: The artifact, whose files are in the store already.
        holds: {"stage", "key"} of records that the artifact depends on. If garbage collection has moved these records,
            or files of `artifact`, to the trash meanwhile, they are moved back.
        unusable: Called with the record of another run that published a different artifact first. Returns whether to
            replace that record, for example because files of its artifact are missing.

    Returns:
        The record that the key has afterwards: `record`, or that of the other run.

    Raises:
        BlobLost: A record or file that the artifact depends on is gone.
    """
    store.restore([*holds], artifact)
    published = store.publish(record)
    if published["artifact"] != artifact.digest and unusable(published):
        published = store.publish(record, replace=True)
    return published
