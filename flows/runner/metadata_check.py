"""Check an artifact's metadata by what its stage writes: a forged manifest may have its right digest."""

from __future__ import annotations

from trnflow.tasks.artifact import Artifact, Meta
from trnflow.tasks.errors import StoreError
from trnflow.tasks.kinds.registry import KINDS
from trnflow.tasks.metadata import BY_STAGE
from trnflow.tasks.store import Store
from trnflow.tasks.system.json_objects import misfit


def metadata_fault(stage: str, meta: Meta) -> str:
    """Return what is wrong with the metadata of a stage's artifact, such as "its metadata has no task"; "" if nothing is."""
    if stage not in BY_STAGE:  # of the user's own, of which nothing is known, or of a rehearsal
        return ""
    wrong = misfit(meta, BY_STAGE[stage], "its metadata")
    task = meta.get("task")
    if not wrong and task is not None and task not in KINDS:
        wrong = f"its metadata.task is {task!r:.40}, which is no task"
    return wrong


def checked_artifact(store: Store, stage: str, digest: str) -> Artifact:
    """Return a stage's artifact. Raises BlobLost without a sound manifest, StoreError for metadata that the stage can't have
    written."""
    artifact = store.artifact(digest)
    if wrong := metadata_fault(stage, artifact.meta):
        raise StoreError(
            f"the artifact {digest[:19]} of {stage} in {store.root} is forged, or of another version: {wrong}",
            f"`trnflow run RECIPE --force {stage}` makes it anew",
        )
    return artifact
