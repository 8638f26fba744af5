"""What is on record and can't be used: which bytes are gone, and how a run makes them anew."""

from __future__ import annotations

from tasks.artifact import Artifact, Meta
from tasks.errors import BlobLost
from tasks.store import Store


def usable(store: Store, record: Meta, lost: set[str]) -> Artifact | str:
    """The artifact of a record, or why it can't be used. lost: digests of blobs known to be missing or corrupt."""
    try:
        artifact = store.artifact(record["artifact"])
    except BlobLost as error:
        return error.message
    missing = store.missing(artifact) or next((file for file in artifact.files if file.digest in lost), None)
    return f"the blob of {missing.path} ({missing.digest}) is missing or damaged" if missing else artifact
