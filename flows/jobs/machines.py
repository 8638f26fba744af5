"""What keys of a platform's machine have other than keys of this one: libraries, device, threads, and what a recipe leaves to
the machine. `<root>/machines/<digest>.json`"""

from __future__ import annotations

import json
from typing import Any, cast

from trnflow.flows.jobs.listing import read_document
from trnflow.flows.recipes.recipe import Recipe
from trnflow.tasks.artifact import Meta
from trnflow.tasks.documents import KeyDocument, KeyTables, MachineFacts, StageMachine
from trnflow.tasks.keys.canonical_json import digest_of
from trnflow.tasks.store import Store


class Machines:
    """The machines on which jobs of a recipe's `launch` section run, by the newest result."""

    def __init__(self, recipe: Recipe, store: Store) -> None:
        self._store, self._file = store, f"machines/{machine_of(recipe)}.json"
        self._here: dict[str, KeyDocument] = {}
        self._known = cast(MachineFacts, read_document(store, self._file) or {})

    def document(self, stage: str, here: KeyDocument) -> KeyDocument | None:
        """Return a stage's key document as it would be there; None if that is not known."""
        self._here[stage] = here
        known = self._known.get(stage)
        # what is other here than it was then may be other there, too
        if known is None or here["env"] != known["here"]["env"] or here["accel"] != known["here"]["accel"]:
            return None
        params: Meta = {**here["params"]}
        then, there = known["here"]["params"], known["there"]["params"]
        for name in (name for name in {*then, *there} if then.get(name) != there.get(name)):
            if name not in then or name not in there or params.get(name) != then[name]:
                return None
            params[name] = there[name]
        return {
            **here,
            "params": params,
            "env": cast(dict[str, str], known["there"]["env"]),
            "accel": known["there"]["accel"],
        }

    def learn(self, stage: str, there: KeyDocument) -> None:
        """Take over what the key document of a stage's result says of the machine that made it."""
        here = self._here.get(stage)
        if here is None or (here["code"], here["inputs"]) != (there["code"], there["inputs"]):
            return
        known = StageMachine(here=_tables(here), there=_tables(there))
        if self._known.get(stage) != known:
            self._known[stage] = known
            self._store.backend.replace(self._file, json.dumps(self._known, sort_keys=True).encode())


def machine_of(recipe: Recipe) -> str:
    """Return 16 digits that name the machines of a recipe's jobs: the platform, what is asked of it, and what is left open."""
    launch = recipe.launch
    document: dict[str, Any] = {
        "kind": launch.kind, "python": launch.python, "image": launch.image, "options": dict(launch.options),
        "hardware": recipe.hardware.name if launch.kind == "sagemaker" else "", "open": sorted(recipe.decided_here),
        "threads": recipe.train.threads,
    }  # fmt: skip
    return digest_of(document).removeprefix("sha256:")[:16]


def _tables(document: KeyDocument) -> KeyTables:
    return KeyTables(params=document["params"], env=cast(Meta, document["env"]), accel=document["accel"])
