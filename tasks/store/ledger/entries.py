"""Entries of a ledger: the files `<root>/roots/ledger/<recipe>/<n>.json`, and what stands after each."""

from __future__ import annotations

import re
from typing import Literal, TypedDict, cast
from urllib.parse import quote

from trnflow.tasks.artifact import Meta
from trnflow.tasks.documents import CheckDocument, RecordName
from trnflow.tasks.errors import PlacedError, StoreError
from trnflow.tasks.system.clock import now
from trnflow.tasks.system.json_objects import misfit

LEDGER = "roots/ledger"
SCHEMA = 1
KEPT_CHAMPIONS = 3
"""How many different models that were champions are kept by garbage collection."""

Outcome = Literal["promoted", "kept", "unchanged", "stopped", "failed", "rolled back", "frozen"]
By = Literal["retrain", "promote", "rollback", "freeze"]

_NUMBER = re.compile(r"([1-9][0-9]{0,17})\.json")
"""One name for each number: `007.json` would be looked for as `7.json`."""

REFUSED = "refused by promote.checks: "
"""The beginning of `why` where the user's own checks refused a challenger."""
OUT_OF_BOUNDS = "refused by promote.at_least and promote.at_most: "
FORCED = "forced: "
"""The beginning of `why` where a person made the champion without evidence."""

SETTLED: tuple[Outcome, ...] = ("promoted", "kept", "unchanged", "stopped")
"""The outcomes after which a recipe is not trained again on the same data."""


class Held(TypedDict):
    """A champion or frozen rows. number: counted from 1; entry: the n of the entry that made it so."""

    number: int
    entry: int
    artifact: str


class Forced(TypedDict):
    """A promotion without evidence. who: user@host; why: in that person's words; broke: what spoke against it."""

    who: str
    why: str
    broke: list[str]


class JudgedModel(TypedDict):
    """A model that was compared with the champion, and the run that made it."""

    run: str
    model: str


class Ended(TypedDict):
    """How a retrain ended. data: the digest of the data that was to be trained on; None if it was not found."""

    outcome: Outcome
    created: str
    data: str | None


class Stands(TypedDict):
    """What stands after an entry.

    champions: of the last three different models the newest title each, the present champion first. series: the time
    and artifact of the recipe's first champion, or "". frozen: the newest frozen rows. judged: models whose runs'
    results are kept, the newest first; judged_by: the n of the entry that judged it. ended: how the newest retrain
    ended. settled: the data of the newest retrain that did not fail. failures: retrains in a row that failed on the
    same data.
    """

    champions: list[Held]
    series: str
    frozen: Held | None
    judged: list[JudgedModel]
    judged_by: int | None
    ended: Ended | None
    settled: str | None
    failures: int


class EntryFields(TypedDict, total=False):
    """The fields that new and stored entries share; what a new one leaves out is null or empty.

    Attributes:
        outcome, by, why: What was decided, by which command, and the reason in a sentence.
        run: The run that made the challenger.
        data: The digest of the data that a retrain was about.
        champion: The digest of the champion after the decision.
        challenger: The digest of the model that the decision was about.
        replaces: The digest of the champion before, if this entry made another.
        frozen: The digest of the rows that were frozen, or on which the models were compared.
        scores, evaluation: Digests of the artifacts about the challenger.
        records: Those that garbage collection keeps with the champion or the frozen rows.
        task: The champion's task.
        shaping: The sections `format` and `tokenize` with which the champion was trained.
        comparison, checks, error: As `trnflow promote` and `trnflow retrain` print them.
        settings: The section `promote` by which a model was judged.
        forced: Of a champion that a person made without evidence.
        created: The time; default: now.
        number: That of the champion or the frozen rows which this entry made, else None.
        imported: Whether the entry is made of a store of format 1.
    """

    outcome: Outcome
    by: By
    why: str
    run: str | None
    data: str | None
    champion: str | None
    challenger: str | None
    replaces: str | None
    frozen: str | None
    scores: str | None
    evaluation: str | None
    records: list[RecordName]
    task: str | None
    shaping: Meta | None
    comparison: Meta | None
    checks: list[CheckDocument]
    error: PlacedError | None
    settings: Meta | None
    forced: Forced | None
    created: str
    number: int | None
    imported: bool


class NewEntry(EntryFields, total=False):
    """What a writer knows of an entry.

    judged: the models whose runs' results are kept from now on, the newest first; settled, failures: of entries that
    are made of a store of format 1.
    """

    judged: list[JudgedModel]
    settled: str | None
    failures: int


class Entry(EntryFields):
    """An entry as it stands in the store. n: the entry's number; stands: what stands after it."""

    schema: int
    recipe: str
    n: int
    stands: Stands


FIELDS = frozenset(Entry.__annotations__)
LATER_FIELDS = frozenset({"settings", "forced"})
"""Fields that entries of earlier versions do not have."""
NOTHING = Stands(
    champions=[], series="", frozen=None, judged=[], judged_by=None, ended=None, settled=None, failures=0
)  # fmt: skip
"""What stands where a ledger is empty."""


def complete_entry(recipe: str, n: int, before: Stands, entry: NewEntry) -> Entry:
    """Return an entry with all fields, and what stands after it.

    n: the entry's number; before: what stood until now.
    """
    nothing: Meta = dict.fromkeys(Entry.__annotations__)
    whole = {
        **nothing, "schema": SCHEMA, "recipe": recipe, "n": n, "records": [], "checks": [], "imported": False,
        "created": entry.get("created") or now(), **entry,
    }  # fmt: skip
    stands = _stands(before, n, whole)
    champion, frozen = next(iter(stands["champions"]), None), stands["frozen"]
    made = frozen if entry["outcome"] == "frozen" else champion
    whole["champion"] = champion["artifact"] if champion else None
    whole["number"] = made["number"] if made and made["entry"] == n else None
    whole["stands"] = stands
    return cast(Entry, {name: whole[name] for name in Entry.__annotations__})


def _stands(before: Stands, n: int, entry: Meta) -> Stands:
    stands = Stands(**before)
    held, champion = before["champions"], entry["champion"]
    if entry["outcome"] != "frozen" and champion and (not held or champion != held[0]["artifact"]):
        number = entry["number"] or (held[0]["number"] if held else 0) + 1
        title = Held(number=number, entry=n, artifact=champion)
        stands["champions"] = [title, *(one for one in held if one["artifact"] != champion)][:KEPT_CHAMPIONS]
        stands["series"] = before["series"] or f"{entry['created']} {champion[7:19]}"
    if entry["outcome"] == "frozen":
        number = entry["number"] or (before["frozen"]["number"] if before["frozen"] else 0) + 1
        stands["frozen"] = Held(number=number, entry=n, artifact=entry["frozen"])
    if entry.get("judged") is not None:
        stands["judged"], stands["judged_by"] = entry["judged"], n
    is_title_of_format_1 = entry["imported"] and entry["number"]  # another file says how that retrain ended
    if entry["by"] == "retrain" and not is_title_of_format_1:
        ended = before["ended"]
        stands["ended"] = Ended(outcome=entry["outcome"], created=entry["created"], data=entry["data"])
        if entry["outcome"] in SETTLED:
            stands["settled"], stands["failures"] = entry["data"], 0
        else:  # only failures on the same data count together
            stands["failures"] = 1 + (before["failures"] if ended and ended["data"] == entry["data"] else 0)
    if "failures" in entry:
        stands["settled"], stands["failures"] = entry["settled"], entry["failures"]
    return stands


def checked_entry(place: str, document: Meta, n: int) -> Entry:
    """Return a document as the entry `n`. Raises StoreError if it is none. place: the name of its file."""
    if why := entry_fault(document, n):
        raise unreadable(place, why)
    return cast(Entry, {**dict.fromkeys(LATER_FIELDS), **document})


def entry_fault(document: Meta, n: int) -> str:
    """Return why a document is not the entry `n` of a ledger, or ""."""
    lacking = sorted(FIELDS - LATER_FIELDS - document.keys())
    if lacking or document["n"] != n:
        return f"it has no {lacking[0]}" if lacking else f"it is the entry {document['n']!r}"
    return misfit(document, Entry)


def unreadable(place: str, why: str) -> StoreError:
    """Return the error for a file that says what happened to a recipe's models. place: its name."""
    return StoreError(
        f"{place} can't be read: {why}",
        "look at the file: it says what happened to the recipe's models, and which is champion; restore or remove it",
    )


def place_of(recipe: str, n: int) -> str:
    """Return the name of an entry's file."""
    return f"{LEDGER}/{quoted_name(recipe)}/{n}.json"


def quoted_name(name: str) -> str:
    """Return a recipe's name as the name of a file or folder: percent-encoded, except ASCII letters, digits, `_`, `-`,
    `~` and dots that are not at the beginning."""
    quoted = quote(name, safe="")
    return quoted.replace(".", "%2E", 1) if quoted.startswith(".") else quoted


def number_of(place: str) -> int:
    """Return the n of a numbered file such as `roots/ledger/demo/3.json`, from 1 on; 0 for any other file."""
    parts = place.split("/")
    number = _NUMBER.fullmatch(parts[-1])
    return int(number[1]) if len(parts) == 4 and number else 0
