"""`Store`: all operations that a run needs."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from trnflow.tasks.artifact import Artifact, Json, Meta
from trnflow.tasks.documents import Format, Journal, Record, RecordName, RunRecord
from trnflow.tasks.errors import BlobLost, ConfigError, DamagedFormat, StoreError
from trnflow.tasks.keys.canonical_json import canonical
from trnflow.tasks.keys.hash_cache import in_threads
from trnflow.tasks.sources.remote_errors import credentials_fix
from trnflow.tasks.store.backend import is_unfinished
from trnflow.tasks.store.blob_store import BlobStore
from trnflow.tasks.store.garbage.trash import secure
from trnflow.tasks.store.layout import (
    FORMAT,
    FORMATS,
    SHARD,
    checked_record,
    document_name,
    newest_runs,
    read_shape,
    record_name,
)
from trnflow.tasks.store.lease import Waiter, sweep_leases
from trnflow.tasks.store.location import default_root
from trnflow.tasks.store.partial import PartialState
from trnflow.tasks.system.home import home_folder
from trnflow.tasks.system.private_files import make_home

READERS = 16
"""How many records of a remote store are read at once."""

# seconds between reads, beside the retries of the object store's library
FORMAT_PAUSES = (0.5, 1.0, 2.0)


class Store(BlobStore):
    """A store at `root`, a folder or an fsspec URL, which `prepare` creates."""

    def prepare(self) -> None:
        """Create the store, if there is none, and the home; a local store with mode 0700, an existing folder keeps its mode.

        Raises:
            ConfigError: FORMAT.json is damaged, or of another format.
            StoreError: The bucket is missing, or the filesystem can't create files exclusively.
        """
        make_home(self.home)
        if self.is_made():
            return
        if self.backend.local is not None:
            make_home(self.backend.local)
        data = canonical(FORMAT).encode()
        try:
            exclusive = not (self.backend.create("FORMAT.json", data) and self.backend.create("FORMAT.json", data))
        except FileNotFoundError as error:
            fix = "create the bucket, or name another: --store, TRNFLOW_STORE, store.root"
            raise StoreError(f"the store {self.root} can't be created: {error}", fix) from error
        if not exclusive:
            raise StoreError(
                f"the store {self.root} does not create files exclusively: two runs could overwrite each other's results",
                "use a local folder, or an object store with conditional puts (S3, GCS, R2, moto)",
            )
        self.check()

    def check(self) -> None:
        """Raise ConfigError unless there is a store of our format at the root."""
        if not self.is_made():
            fix = "`trnflow run` makes one; or name another: --store, TRNFLOW_STORE, store.root"
            raise ConfigError(f"there is no store at {self.root}", fix)

    def is_made(self) -> bool:
        """Return whether there is a store. Raises ConfigError when FORMAT.json is damaged or of another format."""
        try:
            format_file = read_shape(self._read_format(), Format)
        except FileNotFoundError:
            return False
        except ValueError as error:
            fix = "if the store is yours, `trnflow verify --repair` writes it anew; else choose another store.root"
            raise DamagedFormat(f"FORMAT.json of the store {self.root} is damaged: {error}", fix) from error
        if format_file not in FORMATS:
            raise ConfigError(
                f"the store {self.root} has format {canonical(format_file)}, this trnflow reads and writes {canonical(FORMAT)}",
                "upgrade trnflow, if a newer one made the store; or choose another store.root",
            )
        return True

    def _read_format(self) -> bytes:
        """Read FORMAT.json, again after a failure of the network."""
        for pause in FORMAT_PAUSES if self.backend.local is None else ():
            try:
                return self.backend.read("FORMAT.json")
            except StoreError as error:
                cause = error.__cause__
                if isinstance(cause, PermissionError) or (cause and credentials_fix(cause, self.root)):
                    raise
                time.sleep(pause)
        return self.backend.read("FORMAT.json")

    def record(self, stage: str, key: str) -> Record | None:
        """Return a key's record, or None; a damaged one is quarantined. The artifact is not checked."""
        name = record_name(stage, key)
        try:
            return checked_record(name, self.backend.read(name))
        except FileNotFoundError:
            return None
        except ValueError:
            self._quarantine(name)
            return None

    def records(self, stage: str, newest: int | None = None) -> list[Record]:
        """Return a stage's records, newest first. newest: only so many, those written last."""
        entries = [entry for entry in self.backend.entries(f"records/{stage}") if not is_unfinished(entry.name)]
        entries.sort(key=lambda entry: entry.time, reverse=True)
        keys = [document_name(entry.name) for entry in entries[:newest]]
        read = in_threads(partial(self.record, stage), keys, 1 if self.is_local else READERS)
        return sorted((record for record in read if record), key=lambda record: str(record["created"]), reverse=True)

    def all_records(self) -> list[Record]:
        """Return the records of all stages, newest first, without those of shards, of which there may be thousands."""
        stages = {name.split("/")[1] for name in self.backend.names("records")}
        found = [record for stage in sorted(stages) if not stage.endswith(SHARD) for record in self.records(stage)]
        return sorted(found, key=lambda record: str(record["created"]), reverse=True)

    def publish(self, record: Record, *, replace: bool = False) -> Record:
        """Write a record, which makes the result visible, and return the record that the key then has.

        An earlier record stays, unless `replace` moves it to the trash.
        """
        name = record_name(record["stage"], record["key"])
        data = _pretty(record)
        if self.backend.create(name, data):
            return record
        earlier = self.record(record["stage"], record["key"])
        if earlier is not None and not replace:
            return earlier
        if earlier is not None:
            with contextlib.suppress(FileNotFoundError):  # another run replaces it, too
                self.backend.move(name, f"trash/{name}.{time.time_ns()}")
        if self.backend.create(name, data):
            return record
        return self.record(record["stage"], record["key"]) or record

    def retract(self, stage: str, key: str) -> None:
        """Quarantine a key's record, because its artifact is damaged."""
        self._quarantine(record_name(stage, key))

    def write_attempt(self, key: str, attempt: str, document: Journal) -> None:
        """Write an attempt's journal, in place of its earlier one."""
        self.backend.replace(f"attempts/{key}/{attempt}.json", _pretty(document))

    def attempt(self, key: str, attempt: str) -> Journal:
        """Return an attempt's journal; {} without a sound one."""
        return cast(Journal, self._document(f"attempts/{key}/{attempt}.json", Journal) or {})

    def write_run(self, run: str, document: RunRecord) -> None:
        """Write a run record, in place of its earlier one."""
        self.backend.replace(f"runs/{run}.json", _pretty(document))
        with contextlib.suppress(BlobLost):  # the next run makes lost results again
            held = [stage for stage in document.get("stages", []) if stage.get("artifact")]
            self.restore(cast(list[RecordName], held))

    def restore(self, held: Sequence[RecordName], artifact: Artifact | None = None) -> None:
        """Bring back from the trash what a document names. Raises BlobLost."""
        # gc may have moved it just before the document was written
        secure(self.backend, held, artifact)

    def run(self, run: str) -> RunRecord | None:
        """Return a run record; None without a sound one."""
        return cast(RunRecord | None, self._document(f"runs/{run}.json", RunRecord))

    def run_ids(self) -> list[str]:
        """Return the ids of the runs on record, newest first."""
        return newest_runs(self.backend.entries("runs"))

    def _document(self, name: str, shape: Any) -> Meta | None:
        with contextlib.suppress(FileNotFoundError, ValueError):
            return read_shape(self.backend.read(name), shape)
        return None

    def partial(self, key: str) -> PartialState:
        """Return access to a key's partial state. Makes no request."""
        return PartialState(self.backend, self.home, key)

    def waiter(self, key: str, *, run: str, attempt: str, ttl: float, patient: bool = False) -> Waiter:
        """Return a waiter for a key's lease. ttl: seconds without a heartbeat after which others may take over."""
        return Waiter(self.backend, key, run=run, attempt=attempt, ttl=ttl, patient=patient)

    def sweep_leases(self) -> None:
        """Remove leases that have certainly ended."""
        # leases also expire
        with contextlib.suppress(StoreError, FileNotFoundError):
            sweep_leases(self.backend)

    def check_space(self, needed: int, reserve: int) -> None:
        """Raise StoreError unless `needed` + `reserve` bytes are free on the store's disk, or the home's."""
        place = self.backend.local or self.home
        while not place.exists():
            place = place.parent
        free = shutil.disk_usage(place).free
        if free < needed + reserve:
            apart = self.backend.local is not None and self.home not in self.backend.local.parents
            which, other = ("store", "store.root") if apart else ("home", "TRNFLOW_HOME")
            wanted = f"this stage needs about {_size(needed)} with {_size(reserve)} to spare"
            raise StoreError(
                f"only {_size(free)} are free on the disk of the {which} ({place}), and "
                f"{wanted if needed else f'{_size(reserve)} must stay free'}",
                f"free some space, choose another {other}, or lower store.min_free_gb",
            )


def made_store(root: str | None = None, *, damaged: bool = False) -> Store:
    """Return the store at a root, else at TRNFLOW_STORE, else `<home>/store`. Raises ConfigError if there is none.

    damaged: also one whose FORMAT.json is damaged."""
    home = home_folder()
    store = Store(root or default_root(home), home)
    with contextlib.suppress(*([DamagedFormat] if damaged else [])):
        store.check()
    return store


def _size(count: int) -> str:
    """Return a number of bytes in the unit that shows its size: KB, MB or GB."""
    unit, size = next((each for each in (("GB", 1e9), ("MB", 1e6)) if count >= each[1] / 10), ("KB", 1e3))
    return f"{count / size:.1f} {unit}"


def _pretty(document: Json) -> bytes:
    return json.dumps(document, indent=1, sort_keys=True).encode()
