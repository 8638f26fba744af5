"""Results that the store has: whether one can be used instead of running its stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from trnflow.flows.runner.metadata_check import metadata_fault
from trnflow.tasks.artifact import Artifact, File, Meta
from trnflow.tasks.documents import KeyDocument, Record, RecordName
from trnflow.tasks.errors import BlobLost
from trnflow.tasks.keys.key_document import counted, key_of
from trnflow.tasks.store import Store
from trnflow.tasks.system.clock import now


@dataclass(frozen=True)
class Stored:
    """A stage's result in the store.

    Attributes:
        action: `hit` (the store had it, or another run made it meanwhile) or `ran`.
        why: When a hit was made, or by which other run; may be empty.
        seconds: How long the stage took in this run; 0 for a hit.
        figures: What the attempt that made the artifact measured, such as samples_per_second.
    """

    artifact: Artifact
    action: str
    why: str = ""
    seconds: float = 0.0
    figures: Meta = field(default_factory=dict)

    @classmethod
    def of_record(cls, store: Store, record: Record, artifact: Artifact) -> Stored:
        """Return the hit of a record whose artifact can be used."""
        figures = store.attempt(record["key"], record["attempt"]).get("figures", {})
        why = f"adopted {record['created']}" if "adopted" in record else f"made {record['created']}"
        return cls(artifact, "hit", why, 0.0, figures)


class Recorded(NamedTuple):
    """Whether the artifact of a record can be used.

    Attributes:
        artifact: None if it can't be used, because of `why`.
        changed: Its files that changed on disk since this machine verified them. A run hashes them again.
    """

    artifact: Artifact | None
    why: str = ""
    changed: tuple[File, ...] = ()


def check_record(store: Store, record: Record, kind: str, lost: set[str]) -> Recorded:
    """Check by sizes and stamps whether the artifact of a record can be used; reads no blob, and of a remote store looks
    at none.

    kind: of the artifacts that the stage makes; lost: digests of blobs that are known to be missing or corrupt.
    """
    try:
        artifact = store.artifact(record["artifact"])
    except BlobLost as error:
        return Recorded(None, error.message)
    if artifact.kind != kind:
        return Recorded(None, f"its artifact {artifact.digest[:19]} is of kind {artifact.kind}, and it makes {kind}")
    # a miss, and not quarantined: an earlier version may have written them
    if wrong := metadata_fault(record["stage"], artifact.meta):
        return Recorded(None, f"its artifact {artifact.digest[:19]} is forged, or of another version: {wrong}")
    seen = store.blob_stats(artifact)
    missing = seen.missing or next((file for file in artifact.files if file.digest in lost), None)
    if missing is not None:
        return Recorded(None, f"the blob of {missing.path} ({missing.digest}) is missing or damaged")
    return Recorded(artifact, "", tuple(seen.changed))


def rehash_changed(store: Store, recorded: Recorded) -> Recorded:
    """Hash the changed files, which reads them in full, and return what can be used then. Corrupt blobs are
    quarantined."""
    corrupt = store.recheck(recorded.changed)
    if corrupt:
        return Recorded(None, f"the blob of {corrupt[0].path} ({corrupt[0].digest}) was corrupt: quarantined")
    return recorded._replace(changed=())


def publish(
    store: Store,
    document: KeyDocument,
    artifact: Artifact,
    attempt: str,
    *,
    holds: Sequence[RecordName] = (),
    unusable: Callable[[Record], bool],
    shards: Sequence[RecordName] = (),
) -> str:
    """Put an artifact on record, unless another run published another one first. Return the digest on record.

    Args:
        holds: Records that the artifact depends on; they are brought back from the trash.
        unusable: Whether to replace the other run's record.
        shards: What the record lists as its parts.

    Raises:
        BlobLost: A record or file that the artifact depends on is gone.
    """
    record: Record = {
        "schema": 1,
        "stage": document["stage"],
        "key": key_of(document),
        "document": document,
        "artifact": artifact.digest,
        "attempt": attempt,
        "created": now(),
    }
    if shards:
        record["shards"] = [*shards]
    if (seen := counted(artifact)) is not artifact:
        record["counted"] = seen.digest
    store.restore([*holds], artifact)
    published = store.publish(record)
    if published["artifact"] != artifact.digest and unusable(published):
        published = store.publish(record, replace=True)
    return published["artifact"]
