"""Pins: roots that a person made, `<root>/roots/pins/<name>.json`, each naming an artifact or a run to keep."""

from __future__ import annotations

import contextlib
import json

from tasks.artifact import Meta
from tasks.errors import BlobLost
from tasks.store.backend import Backend
from tasks.store.names import blob_name
from tasks.store.trash import absent, bring_back

PINS = "roots/pins"


def hold(backend: Backend, name: str, pin: Meta) -> Meta:
    """Create a pin; returns the one that stands under the name, maybe an earlier one.

    pin: {"run": id}, or {"artifact": digest, "records": [{"stage", "key"} ...] that made it, so that it stays a hit}.

    BlobLost when what it names was collected meanwhile: the pin is not made.
    """
    place = f"{PINS}/{name}.json"
    if not backend.create(place, json.dumps(pin, indent=1, sort_keys=True).encode()):
        return dict(json.loads(backend.read(place)))
    target = f"runs/{pin['run']}.json" if "run" in pin else blob_name(pin["artifact"])
    if absent(backend, [target]) and bring_back(backend, [target]):
        backend.remove(place)
        raise BlobLost(f"{target} was collected meanwhile", "run it again, then pin")
    return pin


def release(backend: Backend, name: str) -> bool:
    """Whether there was such a pin; now there is none."""
    there = name in held(backend)
    if there:
        with contextlib.suppress(FileNotFoundError):
            backend.remove(f"{PINS}/{name}.json")
    return there


def held(backend: Backend) -> list[str]:
    """Names of all pins."""
    return [name.rsplit("/", 1)[1].removesuffix(".json") for name in backend.names(PINS)]
