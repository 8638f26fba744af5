"""The content store: blobs (files named by the digest of their bytes), artifacts (lists of blobs), and records (JSON
documents that name the artifact that a stage made).

A store has the following files below its root folder or URL. A `<key>` is the hash of everything that decides a stage's
result. A file marked create-only is created by one writer; a later attempt to create the file is refused.

<root>/FORMAT.json                       create-only: format version, hash name
<root>/blobs/sha256/ab/<64 hex>          immutable bytes named by their digest; also manifests (an artifact's list of files)
<root>/records/<stage>/<key>.json        create-only: the result of a stage; without a record no result is visible
<root>/attempts/<key>/<attempt>.json     journal of one try: host, pid, start, end, outcome, figures, error
<root>/partial/<key>/step-N/{...,COMMIT} training state saved at a step, to resume from; never an output
<root>/leases/<key>/<fence>.json         create-only: which run is making the key's result; its heartbeat is beside it
<root>/runs/<run id>.json                recipe, stages, keys, attempts, outcome
<root>/roots/pins/<name>.json            pins: documents whose artifacts garbage collection must keep
<root>/roots/champions/<name>/<n>.json   create-only: the nth champion of a recipe; the highest n is the champion
<root>/roots/judged/<name>.json          the newest judgement of a recipe's model: names its run
<root>/roots/retrained/<name>.json       how the newest retrain of a recipe ended; it protects no other file
<root>/roots/frozen/<name>/<n>.json      create-only: the nth frozen rows of a recipe: test rows to compare models on
<root>/quarantine/...                    damaged files
<root>/trash/...                         replaced or collected files, deleted after the grace period
"""

from trnflow.tasks.store.content import Store
from trnflow.tasks.store.partial import partial_state

__all__ = ["Store", "partial_state"]
