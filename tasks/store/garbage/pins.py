"""Pins: files `<root>/roots/pins/<name>.json`, by which a user protects an artifact or a run from garbage collection."""

from __future__ import annotations

import contextlib
import json

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import BlobLost
from trnflow.tasks.store.backend import Backend
from trnflow.tasks.store.garbage.trash import absent, bring_back
from trnflow.tasks.store.layout import blob_name, document_name

PINS = "roots/pins"


def add_pin(backend: Backend, name: str, pin: Meta) -> Meta:
    """Create the pin `roots/pins/<name>.json`, which protects an artifact or a run from garbage collection, and return
    its document. If a pin of this name exists, leave it unchanged and return its document.

    pin: {"run": id}, or {"artifact": digest, "records": [{"stage", "key"}, ...]}: the records whose result is the
    artifact. The records are protected too, so that later runs find the stages' results. If the run's document or the
    artifact's manifest (its list of files) is in the trash, it is moved back.

    Raises:
        BlobLost: the run's document or the artifact's manifest is neither in place nor in the trash, because garbage
            collection deleted it; no pin is created.
    """
    place = f"{PINS}/{name}.json"
    if not backend.create(place, json.dumps(pin, indent=1, sort_keys=True).encode()):
        return dict(json.loads(backend.read(place)))
    target = f"runs/{pin['run']}.json" if "run" in pin else blob_name(pin["artifact"])
    if absent(backend, [target]) and bring_back(backend, [target]):
        backend.remove(place)
        raise BlobLost(f"{target} was collected meanwhile", "run it again, then pin")
    return pin


def remove_pin(backend: Backend, name: str) -> bool:
    """Remove a pin (a file that protects an artifact or a run from garbage collection) and return True; return False
    when there is no pin of this name. The pinned files stay until the next garbage collection that finds them no longer
    needed."""
    there = name in pin_names(backend)
    if there:
        with contextlib.suppress(FileNotFoundError):
            backend.remove(f"{PINS}/{name}.json")
    return there


def pin_names(backend: Backend) -> list[str]:
    """Return the names of all pins of a store (files that protect artifacts and runs from garbage collection),
    sorted."""
    return [document_name(name) for name in backend.names(PINS)]
