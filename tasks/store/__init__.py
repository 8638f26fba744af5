"""The content store: blobs under their digest, artifacts as trees of blobs, create-only records that make results visible.

<root>/FORMAT.json                       create-only: format version, hash name
<root>/blobs/sha256/ab/<64 hex>          immutable bytes under their digest; manifests are blobs too
<root>/records/<stage>/<key>.json        create-only; the only thing that makes a result visible
<root>/attempts/<key>/<attempt>.json     journal: host, pid, start, end, outcome, figures, error
<root>/partial/<key>/step-N/{...,COMMIT} resumable training state of that key; never an output
<root>/leases/<key>/<fence>.json         create-only: who makes the key now; its heartbeat beside it
<root>/runs/<run id>.json                recipe, stages, keys, attempts, outcome
<root>/roots/<kind>/<name>.json          pins and whatever else garbage collection must keep
<root>/quarantine/...  <root>/trash/...  what was corrupt; what was replaced or collected
"""

from tasks.store.content import Store
from tasks.store.partial import partial_state

__all__ = ["Store", "partial_state"]
