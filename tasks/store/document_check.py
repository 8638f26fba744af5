"""Check a JSON document of a store by what its name says that it is."""

from __future__ import annotations

from typing import cast

from trnflow.tasks.artifact import Meta
from trnflow.tasks.documents import (
    Format,
    Heartbeat,
    JobName,
    JobResult,
    JobRun,
    JobSubmission,
    Journal,
    MachineFacts,
    RunRecord,
)
from trnflow.tasks.store.layout import checked_record, read_shape
from trnflow.tasks.store.lease import checked_lease
from trnflow.tasks.store.ledger.entries import LEDGER, entry_fault, number_of
from trnflow.tasks.system.json_objects import read_object

KINDS = ("records", "attempts", "runs", "roots", "leases", "partial", "jobs", "machines")
"""The folders with JSON documents, besides FORMAT.json."""
_SHAPES = {"FORMAT.json": Format, "attempts": Journal, "runs": RunRecord, "machines": MachineFacts}
JOBS = {"order.json": JobName, "result.json": JobResult, "runs": JobRun, "submitted": JobSubmission}
"""{file or folder of a job: the shape of its documents}"""


def is_document(name: str) -> bool:
    """Return whether a finished file below KINDS is a document: of partial state COMMIT alone, of jobs JOBS."""
    if name.startswith("jobs/"):
        return [*name.split("/"), ""][2] in JOBS
    return not name.startswith("partial/") or name.endswith("/COMMIT")


def checked_document(name: str, data: bytes) -> Meta:
    """Parse the document in a file. Raises ValueError if it is damaged, or of another shape than its name says."""
    kind = name.split("/")[0]
    if kind in _SHAPES:
        return read_shape(data, _SHAPES[kind])
    if kind == "jobs":
        return read_shape(data, JOBS[name.split("/")[2]])
    if kind == "records":
        return cast(Meta, checked_record(name, data))
    if kind == "leases":
        return cast(Meta, checked_lease(data)) if name.endswith(".json") else read_shape(data, Heartbeat)
    if kind == "partial":
        return read_shape(data, dict[str, str])
    document = read_object(data)
    if is_entry(name) and (why := entry_fault(document, number_of(name))):
        raise ValueError(why)
    return document


def is_entry(name: str) -> bool:
    """Return whether a file is an entry of a ledger."""
    return name.startswith(f"{LEDGER}/") and number_of(name) > 0
