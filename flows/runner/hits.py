"""Check whether the artifact of a recorded stage can still be used: no blob is missing or damaged."""

from __future__ import annotations

from typing import NamedTuple

from flows.runner.call import Outcome
from tasks.artifact import Artifact, File, Meta
from tasks.errors import BlobLost
from tasks.store import Store


class OnRecord(NamedTuple):
    """What a record of a stage is worth now.

    Attributes:
        artifact: The recorded artifact, or None if it can't be used.
        why: Why the artifact can't be used; empty if it can.
        changed: Files of the artifact whose blobs changed on disk since this machine verified them. A run verifies them
            again (see `checked`); a plan does not.
    """

    artifact: Artifact | None
    why: str = ""
    changed: tuple[File, ...] = ()


def on_record(store: Store, record: Meta, kind: str, lost: set[str]) -> OnRecord:
    """Look up the artifact of a record and check whether it can be used. Reads no blob.

    Args:
        record: A record of a stage.
        kind: The kind of the artifacts that this stage makes; an artifact of another kind can't be used.
        lost: Digests of blobs that are known to be missing or corrupt.
    """
    try:
        artifact = store.artifact(record["artifact"])
    except BlobLost as error:
        return OnRecord(None, error.message)
    if artifact.kind != kind:
        return OnRecord(None, f"its artifact {artifact.digest[:19]} is of kind {artifact.kind}, and it makes {kind}")
    seen = store.seen(artifact)
    missing = seen.missing or next((file for file in artifact.files if file.digest in lost), None)
    if missing is not None:
        return OnRecord(None, f"the blob of {missing.path} ({missing.digest}) is missing or damaged")
    return OnRecord(artifact, "", tuple(seen.changed))


def checked(store: Store, found: OnRecord) -> OnRecord:
    """Hash the blobs of `found.changed` again, and return `found` without changed files, or why it can't be used.

    Reads these blobs in full. Corrupt ones are moved to quarantine.
    """
    corrupt = store.recheck(found.changed)
    if corrupt:
        return OnRecord(None, f"the blob of {corrupt[0].path} ({corrupt[0].digest}) was corrupt: quarantined")
    return found._replace(changed=())


def hit(store: Store, record: Meta, artifact: Artifact) -> Outcome:
    """Return the outcome `hit` of a stage whose recorded artifact can be used.

    Its figures are those of the attempt that made the artifact.
    """
    figures = store.attempt(record["key"], record["attempt"]).get("figures", {})
    why = f"adopted {record['created']}" if "adopted" in record else f"made {record['created']}"
    return Outcome(record["stage"], "hit", why, record["key"], artifact, 0.0, figures)
