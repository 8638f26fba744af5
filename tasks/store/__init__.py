"""The store's files. `<key>` is a stage's key.

<root>/FORMAT.json                       create-only: format version, hash name
<root>/blobs/sha256/ab/<64 hex>          immutable bytes, manifests too
<root>/records/<stage>/<key>.json        create-only
<root>/attempts/<key>/<attempt>.json     journal
<root>/partial/<key>/step-N/{...,COMMIT} partial state
<root>/leases/<key>/<fence>.json         create-only; heartbeat beside it
<root>/runs/<run id>.json                run record
<root>/roots/pins/<name>.json            pins
<root>/roots/ledger/<recipe>/<n>.json    create-only; ledgers
<root>/quarantine/...                    damaged files
<root>/trash/...                         replaced or collected files
"""

from trnflow.tasks.store.partial import partial_state
from trnflow.tasks.store.store import Store, made_store

__all__ = ["Store", "made_store", "partial_state"]
