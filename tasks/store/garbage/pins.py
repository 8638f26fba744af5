"""Pins: files `<root>/roots/pins/<name>.json`, which protect an artifact or a run from garbage collection."""

from __future__ import annotations

import contextlib
import json

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import BlobLost, StoreError
from trnflow.tasks.store.backend import Backend
from trnflow.tasks.store.garbage.trash import absent, bring_back
from trnflow.tasks.store.layout import blob_name, document_name
from trnflow.tasks.system.json_objects import read_object

PINS = "roots/pins"


def add_pin(backend: Backend, name: str, pin: Meta) -> Meta:
    """Create a pin and return its document, or that of an existing pin of this name.

    pin: {"run": id}, or {"artifact": digest, "records": [{"stage", "key"}, ...]}, whose records are protected too. What
    it names comes back from the trash.

    Raises:
        BlobLost: The run or the manifest is gone; no pin is created.
        StoreError: The pin of this name is damaged.
    """
    place = f"{PINS}/{name}.json"
    if not backend.create(place, json.dumps(pin, indent=1, sort_keys=True).encode()):
        try:
            return read_object(backend.read(place))
        except ValueError as error:
            raise StoreError(
                f"the pin {name} is damaged: {error}", f"`trnflow unpin {name}`, then pin again"
            ) from error
    target = f"runs/{pin['run']}.json" if "run" in pin else blob_name(pin["artifact"])
    if absent(backend, [target]) and bring_back(backend, [target]):
        backend.remove(place)
        raise BlobLost(f"{target} was collected meanwhile", "run it again, then pin")
    return pin


def remove_pin(backend: Backend, name: str) -> bool:
    """Remove a pin and return True, or False if there is none. The files stay until the next collection."""
    there = name in pin_names(backend)
    if there:
        with contextlib.suppress(FileNotFoundError):
            backend.remove(f"{PINS}/{name}.json")
    return there


def pin_names(backend: Backend) -> list[str]:
    return [document_name(name) for name in backend.names(PINS)]
