"""Why a stage would run again, in the user's words: rows of a file, constants and functions of own code, else key values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from trnflow.flows.runner.code_parts import PARTS, REST, PartChange, changed_parts
from trnflow.flows.runner.metadata_check import checked_artifact
from trnflow.tasks.artifact import Json, Meta, Source
from trnflow.tasks.documents import Documented, KeyDocument
from trnflow.tasks.errors import TrnflowError
from trnflow.tasks.keys.explain import ValueChange, nearest_record
from trnflow.tasks.load_data import is_at_hand
from trnflow.tasks.store import Store
from trnflow.tasks.system.redaction import MASK

FILES = "source.files"
ROWS = "rows of a file"
"""The kind of counts in the home's memo."""
MOST_BYTES = 64 << 20
"""Bytes of files whose rows a plan counts."""

Told = Callable[[Documented, Sequence[ValueChange]], list[str]]
"""Returns changes since a record as texts."""


def nearest_changes(records: Sequence[Documented], document: KeyDocument, told: Told) -> str:
    """Return, as text, in what a key document differs from the nearest of `records`; "" if there are none."""
    near = nearest_record(records, document)
    if near is None:
        return ""
    changes = told(*near)
    more = f" and {len(changes) - 2} more" if len(changes) > 2 else ""
    return "; ".join(changes[:2]) + more


def in_words(store: Store, data: Source | None, record: Documented, changes: Sequence[ValueChange]) -> list[str]:
    """Return changes since a record as texts. data: the present source of the rows."""
    return [text for change in changes for text in _told(store, data, record, change)]


def _told(store: Store, data: Source | None, record: Documented, change: ValueChange) -> Iterator[str]:
    texts: list[str] = []
    if change.part == "inputs" and change.name == FILES and data is not None:
        texts = _of_files(store, data, record, change.before, change.after)
    elif change.part == "code":
        texts = [*_of_code(store, change)]
    yield from texts or [str(change)]


def _of_code(store: Store, change: ValueChange) -> Iterator[str]:
    """Yield which parts of a module changed; nothing where its earlier parts are not known."""
    before, after = (store.memo.one(PARTS, str(value), "") for value in (change.before, change.after))
    if before is None or after is None:
        return
    for part in changed_parts(before["parts"], after["parts"]):
        yield str(change) if part.name == REST else f"{part.name} in {after['file']}{_how(part)}"


def _how(part: PartChange) -> str:
    if part.before is None or part.after is None:
        return " is new" if part.before is None else " is gone"
    is_shown = part.before != part.after and MASK not in (part.before, part.after)
    return f": {part.before} -> {part.after}" if is_shown else " changed"


def _of_files(store: Store, data: Source, record: Documented, before: Json, after: Json) -> list[str]:
    """Return how many rows the files that changed have more or fewer; [] for other files than before."""
    if not isinstance(before, list) or not isinstance(after, list) or len(before) != len(after):
        return []
    places, same = data.location.get("files", []), ("split", "format")
    if len(places) != len(after) or any(
        old[part] != new[part] for old, new in zip(before, after, strict=True) for part in same
    ):
        return []
    names = [place["name"] for old, new, place in zip(before, after, places, strict=True) if old != new]
    past, now = _rows_of(store, record), _rows_in(store, data.location)
    what = ", ".join(names)
    if past is None or now is None:
        return [f"{what} changed"]
    if past == now:
        return [f"{what}: rows changed, as many as before"]
    count = abs(now - past)
    return [f"{what}: {count:,} row{'s' * (count > 1)} {'more' if now > past else 'fewer'}"]


def _rows_of(store: Store, record: Documented) -> int | None:
    """Return how many rows the source of a record's artifact had."""
    try:
        meta = checked_artifact(store, record["document"]["stage"], str(record.get("artifact"))).meta
    except TrnflowError:
        return None
    return int(sum(meta["splits"].values()) + sum(meta["dropped"].values())) if "splits" in meta else None


def _rows_in(store: Store, location: Meta) -> int | None:
    """Count the rows of a source's files, as load_data reads them; None for files that are elsewhere, large or broken."""
    if not is_at_hand(location):
        return None
    counts = [_count(store, file) for file in location["files"]]
    return None if None in counts else sum(filter(None, counts))


def _count(store: Store, file: Meta) -> int | None:
    known: int | None = store.memo.one(ROWS, file["digest"], file["format"])
    if known is not None or (file["format"] != "parquet" and Path(file["path"]).stat().st_size > MOST_BYTES):
        return known
    from trnflow.tasks.data.load.readers import open_file

    try:
        rows = open_file(Path(file["path"]), file["format"], file["name"])
        count = int(sum(batch.num_rows for batch in rows.batches([*rows.schema.names][:1])))
    except TrnflowError:
        return None
    store.memo.put(ROWS, file["digest"], file["format"], count)
    return count
