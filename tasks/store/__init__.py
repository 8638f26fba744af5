"""The content store: blobs, artifacts, and records. `<key>` is a stage's key; a create-only file has one writer.

<root>/FORMAT.json                       create-only: format version, hash name
<root>/blobs/sha256/ab/<64 hex>          immutable bytes, manifests too
<root>/records/<stage>/<key>.json        create-only: without it no result is visible
<root>/attempts/<key>/<attempt>.json     journal: host, pid, start, end, outcome, figures, error
<root>/partial/<key>/step-N/{...,COMMIT} training state to resume from; never an output
<root>/leases/<key>/<fence>.json         create-only; its heartbeat is beside it
<root>/runs/<run id>.json                recipe, stages, keys, attempts, outcome
<root>/roots/pins/<name>.json            what garbage collection must keep
<root>/roots/champions/<name>/<n>.json   create-only: the highest n is the champion
<root>/roots/judged/<name>.json          names the run of the newest judged model
<root>/roots/retrained/<name>.json       how the newest retrain ended; protects nothing
<root>/roots/frozen/<name>/<n>.json      create-only: the nth frozen rows
<root>/quarantine/...                    damaged files
<root>/trash/...                         replaced or collected files
"""

from trnflow.tasks.store.content import Store
from trnflow.tasks.store.partial import partial_state

__all__ = ["Store", "partial_state"]
