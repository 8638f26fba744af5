"""Check whether a stage's result in the store can be used instead of running the stage (a hit).

A stage's key is the hash of everything that decides its result. The record of a key is the document in the store that
names the artifact which the stage made. The artifact can be used if it is of the kind that the stage makes, and none of
its blobs (the files that the store keeps under the digest of their bytes) is missing or damaged.
"""

from __future__ import annotations

from typing import NamedTuple

from trnflow.flows.runner.call import Outcome
from trnflow.tasks.artifact import Artifact, File, Meta
from trnflow.tasks.errors import BlobLost
from trnflow.tasks.store import Store


class OnRecord(NamedTuple):
    """The answer to the question whether the artifact that a record (the store's document about the result of a key)
    names can be used now.

    Attributes:
        artifact: The recorded artifact, or None if it can't be used.
        why: Why the artifact can't be used; empty if it can.
        changed: Files of the artifact whose blobs (the store's copies of their bytes) changed on disk since this
            machine verified them. A run verifies them again (see `checked`); a plan does not.
    """

    artifact: Artifact | None
    why: str = ""
    changed: tuple[File, ...] = ()


def on_record(store: Store, record: Meta, kind: str, lost: set[str]) -> OnRecord:
    """Look up the artifact that a record (the store's document about the result of a key) names, and check whether the
    artifact can be used.

    Reads no blob (the store's copy of a file's bytes). In a local store, each blob's size is compared with the
    artifact's list of files, and its stamp (inode, size and times) with the stamp recorded when it was last verified.
    Blobs of a remote store are not checked here.

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
    """Hash the blobs (the store's copies) of the files `found.changed` again, which reads them in full.

    Returns:
        `found` with no changed files if all digests are right; else an `OnRecord` without artifact that says why.
        Corrupt blobs are moved to the store's folder `quarantine`.
    """
    corrupt = store.recheck(found.changed)
    if corrupt:
        return OnRecord(None, f"the blob of {corrupt[0].path} ({corrupt[0].digest}) was corrupt: quarantined")
    return found._replace(changed=())


def hit(store: Store, record: Meta, artifact: Artifact) -> Outcome:
    """Return the outcome `hit` of a stage whose artifact is in the store and can be used.

    The outcome's `figures` (samples per second and others) are those of the attempt (try to run the stage) that made
    the artifact. The outcome's `seconds` are 0. Its `why` says when the artifact was made, or when the user accepted an
    artifact of another key for the stage's key ("adopted"). record: the store's document that names the artifact.
    """
    figures = store.attempt(record["key"], record["attempt"]).get("figures", {})
    why = f"adopted {record['created']}" if "adopted" in record else f"made {record['created']}"
    return Outcome(record["stage"], "hit", why, record["key"], artifact, 0.0, figures)
