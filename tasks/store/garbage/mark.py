"""The mark phase of garbage collection: find the files that must stay.

Roots are the documents below `roots/`, the runs that the policy keeps, attempts that run, leases with a recent heartbeat,
and files within the grace period. Raises StoreError if a root or a document below it can't be read. Costs a listing,
and a read of each document.
"""

# A document protects what it names, at any depth: by `artifact`, `evaluation`, `frozen` or `scores` an artifact, by `key` a
# record with its artifact and attempts. Names in a key document do not count: a model does not protect its data.

from __future__ import annotations

import contextlib
import math
import re
import socket
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from trnflow.tasks.artifact import Json, Meta
from trnflow.tasks.errors import StoreError
from trnflow.tasks.keys.canonical_json import digest_of
from trnflow.tasks.store.backend import Entry, is_unfinished
from trnflow.tasks.store.layout import blob_name, document_name, newest_runs, read_manifest
from trnflow.tasks.store.ledger import protected
from trnflow.tasks.system.json_objects import read_object
from trnflow.tasks.system.process import is_running

KINDS = ("records", "attempts", "runs", "logs", "jobs", "machines", "partial", "blobs")
"""The kinds of files that are collected, in this order: a record is removed before its blobs, and brought back after them."""

ORDER, RESULT = "/order.json", "/result.json"
"""The ends of the names of a job's documents."""

LEASE_SECONDS = 600.0
"""A lease protects its key for at least this many seconds after its last heartbeat, even if the grace period is
shorter."""

_ASIDE = ("document", "resolved")
"""The fields that are not searched: a key document, and settings."""
_ARTIFACTS = ("artifact", "evaluation", "frozen", "scores")
"""The fields of documents that name an artifact. Only in `artifact` may something else than a digest stand."""
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Policy:
    """Which runs and new files garbage collection keeps, besides what files below `roots/` protect.

    keep_last: of each recipe so many of the newest runs, and of the newest completed ones; runs with the same keys
    count once. grace: seconds for which new files are kept, and removed ones stay in trash and quarantine.
    """

    keep_last: int = 5
    keep_days: float = 0.0
    grace: float = 86400.0


@dataclass
class View:
    """The files of a store at one moment. A file is "in place" when it is not in the trash.

    Attributes:
        present: {name: file} of the files in place.
        trashed: {name before the move to the trash: file in the trash}, without names that a file in place has.
        read: Returns the bytes of a file by its name before a move to the trash.
        by_key: {stage key: names of its records, attempts, partial state and leases}.
        jobs: {folder of a job: names of its files in place}.
    """

    present: dict[str, Entry]
    trashed: dict[str, Entry]
    read: Callable[[str], bytes]
    by_key: dict[str, list[str]] = field(init=False)
    logs: dict[str, list[str]] = field(init=False)
    jobs: dict[str, list[str]] = field(init=False)

    def __post_init__(self) -> None:
        self.jobs = defaultdict(list)
        for name in self.below("jobs"):
            self.jobs["/".join(name.split("/")[:2])].append(name)
        self.by_key, self.logs = defaultdict(list), defaultdict(list)
        for name in sorted(self.present.keys() | self.trashed.keys()):
            kind, *parts = name.split("/")
            if is_unfinished(name):  # an unfinished file of a killed writer belongs to no key
                continue
            if kind == "records" and len(parts) == 2:
                self.by_key[document_name(name)].append(name)
            elif kind in ("attempts", "partial", "leases") and parts:
                self.by_key[parts[0]].append(name)
            elif kind == "logs" and parts:
                self.logs[parts[0]].append(name)

    def __contains__(self, name: str) -> bool:
        return name in self.present or name in self.trashed

    def below(self, kind: str) -> list[str]:
        """Return the names of the finished files in place below a top folder, such as `runs`."""
        return [name for name in self.present if name.startswith(f"{kind}/") and not is_unfinished(name)]


def mark(view: View, policy: Policy, now: float) -> dict[str, str]:
    """Return {name of a file that must stay or come back: `roots`, `runs`, `jobs`, `attempts` or `young`}. Raises StoreError.

    now: seconds since 1970."""
    marker = _Marker(view, policy, now)
    marker.mark()
    return marker.kept


def references(document: Json) -> Iterator[tuple[str, str]]:
    """Yield what a document names, at any depth: ("artifact", digest), ("key", stage key) or ("run", run id)."""
    pending = [document]
    while pending:
        item = pending.pop()
        if isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, dict):
            for name, value in item.items():
                if isinstance(value, str) and name in ("artifact", "key", "run"):
                    yield name, value
                elif isinstance(value, str) and name in _ARTIFACTS and _DIGEST.fullmatch(value):
                    yield "artifact", value
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
        roots = self._view.below("roots")
        for name, named in protected(roots, self._document):
            self._root(name, named)
        for name in roots:  # also those that keep themselves alone, and those of later versions
            self._keep(name, "roots")
        for name in self._kept_runs():
            self._run(name, "runs")
        for job, names in self._view.jobs.items():
            self._job(job, names)
        for name in self._view.below("leases"):
            if self._age(name) < max(self._policy.grace, LEASE_SECONDS):
                self._leased.add(name.split("/")[1])
        for name in self._view.below("attempts"):
            self._attempt(name)
        for key in self._leased:
            self._keep_key(key)
        for name in self._view.below("records"):
            if self._is_young(name):
                self._key(document_name(name), "young")
        for run, names in self._view.logs.items():
            if f"runs/{run}.json" in self._view:
                continue
            ages = [self._age(name) for name in names if name in self._view.present]
            # of a run in progress: readers go on from the first file
            if min(ages, default=math.inf) < max(self._policy.grace, LEASE_SECONDS):
                for name in names:
                    self._keep(name, "young")
        for name in self._view.present:
            if self._is_young(name):
                self._young(name)

    def _job(self, job: str, names: list[str]) -> None:
        """Keep a job that is young, has no result, or whose run is kept; with it the facts of its machine."""
        result: Meta = {}
        with contextlib.suppress(StoreError):  # one that can't be read is as none
            result = self._document(f"{job}{RESULT}") if f"{job}{RESULT}" in names else {}
        has_run = f"runs/{result.get('run')}.json" in self.kept
        if result and not has_run and not any(map(self._is_young, names)):
            return
        # not the rest of what was collected: a result of before says nothing of a job that is ordered anew
        for name in (*names, f"{job}{ORDER}"):
            self._keep(name, "jobs")
        # an order that can't be read is refused by the job, too
        with contextlib.suppress(StoreError, KeyError):
            order = self._document(f"{job}{ORDER}")
            self._keep(f"machines/{order.get('machine')}.json", "jobs")
            if result.get("outcome") != "completed":
                self._follow(order, "jobs")

    # Roots

    def _root(self, name: str, document: Meta) -> None:
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
        # completed runs count by themselves, so that many failed runs do not push out the last good model
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
        """Return the newest runs up to `keep_last` different sets of keys. Runs with the same keys count once."""
        results: set[str] = set()
        kept = []
        for name, document in runs:
            results.add(digest_of(sorted(value for kind, value in references(document) if kind == "key")))
            if len(results) > self._policy.keep_last:
                break
            kept.append(name)
        return kept

    def _run(self, name: str, why: str) -> None:
        self._runs.add(document_name(name))
        for log in self._view.logs.get(document_name(name), ()):
            self._keep(log, why)
        if self._keep(name, why):
            self._follow(self._document(name), why)

    def _attempt(self, name: str) -> None:
        # an attempt that has ended is kept only with its record
        document = self._document(name)
        key = name.split("/")[1]
        pid, host = str(document.get("pid")), document.get("host")
        lives_here = (
            host == socket.gethostname() and pid.isdecimal() and 0 < int(pid) < 1 << 31 and is_running(int(pid))
        )
        is_running_now = key in self._leased or (document.get("outcome") == "running" and lives_here)
        if is_running_now or self._is_young(name) or str(document.get("run")) in self._runs:
            self._follow(document, "attempts")
            self._keep_key(key)

    def _keep_key(self, key: str) -> None:
        """Mark all files of a key, including the partial state."""
        for name in self._view.by_key.get(key, ()):
            if not name.startswith("records/"):
                self._keep(name, "attempts")
        self._key(key, "attempts")

    def _young(self, name: str) -> None:
        self._keep(name, "young")
        if name.startswith("partial/"):  # one file within the grace period keeps all steps of the key
            for other in self._view.by_key[name.split("/")[1]]:
                if other.startswith("partial/"):
                    self._keep(other, "young")

    # The files that roots lead to

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
            return  # its result is lost anyway; that must not stop the collection
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
            return read_object(self._view.read(name))
        except ValueError as error:
            raise _unreadable(name, str(error)) from error

    def _age(self, name: str) -> float:
        return self._now - self._view.present[name].time

    def _is_young(self, name: str) -> bool:
        return self._age(name) < self._policy.grace


def _unreadable(name: str, why: str) -> StoreError:
    return StoreError(
        f"garbage collection stopped, nothing was touched: {name} can't be read, so what it keeps is not known ({why})",
        "`trnflow verify --repair` takes it out of the way; for a root, `trnflow unpin`",
    )
