"""What garbage collection keeps: everything reachable from the roots, and everything young. Reads only.

Roots are what `roots/` names (pins, registered models), the runs that the policy keeps, attempts and leases that are alive, and
records written within the grace period. A document keeps what it names: the artifact of every `artifact` in it, and the
records, attempts and partial state of every `key`, wherever they stand in it; not the key document itself, for a
model does not keep the data it was made of. A kept record keeps its artifact: the manifest and all its blobs.

A root that can't be read stops everything with a StoreError: what it keeps is not known. Costs one listing of the store and one
read a record, run, attempt and kept manifest.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tasks.artifact import Json, Meta
from tasks.errors import StoreError
from tasks.fingerprint import digest_of
from tasks.store.backend import Entry
from tasks.store.names import blob_name, is_aside, newest_runs, read_manifest
from tasks.store.trash import Trashed

KINDS = ("records", "attempts", "runs", "partial", "blobs")
"""What is collected, in this order: a result is hidden before its bytes go, and comes back after them."""

LEASE_SECONDS = 600.0
"""A lease is alive at least so long after its last heartbeat, however short the grace period."""

_ASIDE = ("document", "resolved")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Policy:
    """keep_last: newest runs a recipe (runs that came to the same keys count once); keep_days: runs younger than that;
    grace: seconds during which nothing that was written is collected, whoever refers to it."""

    keep_last: int = 5
    keep_days: float = 0.0
    grace: float = 86400.0


@dataclass
class View:
    """A store at one moment. present: by name; trashed: by the name it had, where nothing is present under it; read: bytes
    of a name, from the trash where it lies there."""

    present: dict[str, Entry]
    trashed: dict[str, Trashed]
    read: Callable[[str], bytes]
    by_key: dict[str, list[str]] = field(init=False)

    def __post_init__(self) -> None:
        self.by_key = defaultdict(list)
        for name in sorted(self.present.keys() | self.trashed.keys()):
            kind, *parts = name.split("/")
            if is_aside(name):  # what a killed writer left is no one's, beside whatever it lies
                continue
            if kind == "records" and len(parts) == 2:
                self.by_key[parts[1].removesuffix(".json")].append(name)
            elif kind in ("attempts", "partial", "leases") and parts:
                self.by_key[parts[0]].append(name)

    def __contains__(self, name: str) -> bool:
        return name in self.present or name in self.trashed

    def below(self, kind: str) -> list[str]:
        """Names that are present, without what writers left aside."""
        return [name for name in self.present if name.startswith(f"{kind}/") and not is_aside(name)]


def mark(view: View, policy: Policy, now: float) -> dict[str, str]:
    """{name: what keeps it first} of all that must stay, or come back from the trash. StoreError: a root can't be read."""
    marker = _Marker(view, policy, now)
    marker.mark()
    return marker.kept


def references(document: Json) -> Iterator[tuple[str, str]]:
    """("artifact", digest), ("key", key) and ("run", id) of all that a document names, at any depth."""
    pending = [document]
    while pending:
        item = pending.pop()
        if isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, dict):
            for name, value in item.items():
                if isinstance(value, str) and name in ("artifact", "key", "run"):
                    yield name, value
                elif name not in _ASIDE:
                    pending.append(value)


class _Marker:
    def __init__(self, view: View, policy: Policy, now: float) -> None:
        self.kept: dict[str, str] = {}
        self._view = view
        self._policy = policy
        self._now = now
        self._runs: set[str] = set()
        self._leased: set[str] = set()
        self._artifacts: set[str] = set()

    def mark(self) -> None:
        for name in self._view.below("roots"):
            self._root(name)
        for name in self._kept_runs():
            self._run(name, "runs")
        for name in self._view.below("leases"):
            if self._age(name) < max(self._policy.grace, LEASE_SECONDS):
                self._leased.add(name.split("/")[1])
        for name in self._view.below("attempts"):
            self._attempt(name)
        for key in self._leased:
            self._at_work(key)
        for name in self._view.below("records"):
            if self._is_young(name):
                self._key(name.split("/")[2].removesuffix(".json"), "young")
        for name in self._view.present:
            if self._is_young(name):
                self._young(name)

    # Roots

    def _root(self, name: str) -> None:
        document = self._document(name)
        named = [(kind, value) for kind, value in references(document) if kind in ("artifact", "run")]
        if not named:
            raise _unreadable(name, "it names no artifact and no run")
        self._keep(name, "roots")
        for kind, value in named:
            target = f"runs/{value}.json" if kind == "run" else blob_name(value)
            if target not in self._view:
                raise _unreadable(name, f"{target} is not in the store")
            if kind == "run":
                self._run(target, "roots")
        self._follow(document, "roots")

    def _kept_runs(self) -> list[str]:
        """Every recipe's newest runs, whatever came of them, and its newest completed ones: a week of failures drops no model."""
        by_recipe: dict[str, list[tuple[str, Meta]]] = defaultdict(list)
        for run in newest_runs(self._view.present[name] for name in self._view.below("runs")):
            document = self._document(name := f"runs/{run}.json")
            by_recipe[str(document.get("recipe"))].append((name, document))
        kept: list[str] = []
        for runs in by_recipe.values():
            completed = [run for run in runs if run[1].get("outcome") == "completed"]
            kept += self._newest(runs) + self._newest(completed)
        days = self._policy.keep_days * 86400
        kept += [name for name in self._view.below("runs") if self._age(name) < max(days, self._policy.grace)]
        return list(dict.fromkeys(kept))

    def _newest(self, runs: list[tuple[str, Meta]]) -> list[str]:
        """The newest `keep_last` that came to different keys, and those in between that came to the same."""
        results: set[str] = set()
        kept = []
        for name, document in runs:
            results.add(digest_of(sorted(value for kind, value in references(document) if kind == "key")))
            if len(results) > self._policy.keep_last:
                break
            kept.append(name)
        return kept

    def _run(self, name: str, why: str) -> None:
        self._runs.add(name.split("/")[1].removesuffix(".json"))
        if self._keep(name, why):
            self._follow(self._document(name), why)

    def _attempt(self, name: str) -> None:
        """Attempts at work, just ended, or part of a kept run hold what they name; others only stay with their record."""
        document = self._document(name)
        key = name.split("/")[1]
        at_work = key in self._leased or (document.get("outcome") == "running" and _lives_here(document))
        if at_work or self._is_young(name) or document.get("run") in self._runs:
            self._follow(document, "attempts")
            self._at_work(key)

    def _at_work(self, key: str) -> None:
        """A key that is being made, or whose attempt a run keeps: its partial state stays too."""
        for name in self._view.by_key.get(key, ()):
            if not name.startswith("records/"):
                self._keep(name, "attempts")
        self._key(key, "attempts")

    def _young(self, name: str) -> None:
        self._keep(name, "young")
        if name.startswith("partial/"):  # one young file keeps all steps: none is of use without the others
            for other in self._view.by_key[name.split("/")[1]]:
                if other.startswith("partial/"):
                    self._keep(other, "young")

    # What they lead to

    def _follow(self, document: Meta, why: str) -> None:
        for kind, value in references(document):
            if kind == "artifact" and _DIGEST.fullmatch(value):
                self._artifact(value, why)
            elif kind == "key":
                self._key(value, why)

    def _key(self, key: str, why: str) -> None:
        for name in self._view.by_key.get(key, ()):
            if name.startswith("attempts/"):
                self._keep(name, why)
            elif name.startswith("records/") and self._keep(name, why):
                self._follow(self._document(name), why)

    def _artifact(self, digest: str, why: str) -> None:
        name = blob_name(digest)
        if name not in self._view or digest in self._artifacts:
            return  # a lost one is a miss already; what it was made of must not stop the rest
        self._artifacts.add(digest)
        self._keep(name, why)
        manifest = read_manifest(self._view.read(name), digest)
        if manifest is None:
            raise _unreadable(name, "it is no sound manifest")
        for _, _, blob in manifest["files"]:
            self._keep(blob_name(blob), why)

    def _keep(self, name: str, why: str) -> bool:
        if name not in self._view or name in self.kept:
            return False
        self.kept[name] = why
        return True

    def _document(self, name: str) -> Meta:
        try:
            document = json.loads(self._view.read(name))
        except ValueError as error:
            raise _unreadable(name, str(error)) from error
        if not isinstance(document, dict):
            raise _unreadable(name, "it is no JSON object")
        return document

    def _age(self, name: str) -> float:
        return self._now - self._view.present[name].time

    def _is_young(self, name: str) -> bool:
        return self._age(name) < self._policy.grace


def _lives_here(attempt: Meta) -> bool:
    if attempt.get("host") != socket.gethostname():
        return False
    try:
        os.kill(int(attempt["pid"]), 0)
    except (ProcessLookupError, KeyError, ValueError):
        return False
    except PermissionError:
        return True
    return True


def _unreadable(name: str, why: str) -> StoreError:
    return StoreError(
        f"garbage collection stopped, nothing was touched: {name} can't be read, so what it keeps is not known ({why})",
        "`trnflow verify --repair` takes it out of the way; for a root, `trnflow unpin`",
    )
