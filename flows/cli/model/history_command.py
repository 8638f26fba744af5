"""`trnflow history RECIPE`: each decision about a recipe's models and each firing of its retrains."""

from __future__ import annotations

import gc
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from trnflow.flows.champions.forced import forced_champion
from trnflow.flows.champions.lost import lost_champion
from trnflow.flows.cli.arguments import add_command
from trnflow.flows.cli.live.runs_command import killed_runs, logged_summary, place_of
from trnflow.flows.cli.output import emit
from trnflow.flows.cli.past_store import past_store
from trnflow.flows.display import report
from trnflow.flows.recipes.names import model_name
from trnflow.flows.retraining.firings import Firing, read_firings
from trnflow.tasks.artifact import Meta
from trnflow.tasks.store import Store
from trnflow.tasks.store.layout import is_ahead
from trnflow.tasks.store.ledger import Ledger, read_ledger
from trnflow.tasks.store.ledger.entries import FIELDS
from trnflow.tasks.store.location import store_option
from trnflow.tasks.system.clock import now

HIDDEN = {"schema", "recipe", "stands", "imported", "records", "shaping", "scores", "evaluation", "task"}
"""The fields of an entry that `trnflow history --json` leaves out."""
HEAD = ("n", "created", "outcome", "by", "run", "model", "champion", "why")
AHEAD = "dated in the future, so a clock was wrong; "


def add_commands(sub: Any, store: ArgumentParser) -> None:
    past = add_command(sub, "history", history, store, "list what happened to a recipe's models, newest first")
    past.add_argument("recipe", metavar="RECIPE", help="the name of a recipe, or its file")


def history(options: Namespace) -> int:
    """Print each decision about a recipe's models and each firing of its retrains, the newest first."""
    gc.disable()  # looking for garbage among 10,000 entries takes a quarter of the time
    store = past_store(options.store, options.recipe)
    name = model_name(options.recipe).recipe
    ledger = read_ledger(store, name)
    firings = list_firings(store, ledger)
    notes = [*filter(None, [lost_champion(store, ledger), forced_champion(ledger)])]
    lines = [f"note: {note}" for note in notes]
    if firings and not options.json:
        lines += report.aligned([HEAD, *map(_row, firings)])
    there = store_option(store.root, store.home)
    pages = (
        f"`trnflow report RUN{there}` writes the page of a run, `trnflow logs RUN{there}` prints what a killed one did"
    )
    lines += [pages] if firings else [f"nothing happened to models of {name} in this store yet"]
    listed = [{field: value for field, value in firing.items() if field != "title"} for firing in firings]
    document = {"store": store.root, "recipe": name, "history": listed, "notes": notes}
    emit(options, document, *lines)
    return 0


def list_firings(store: Store, ledger: Ledger) -> list[Meta]:
    """Return the fields of each entry of a ledger, and of each firing of this machine that left none, newest first.

    Beside the fields: `ahead` (whether the time is yet to come), `page` (the command that shows the run, or None), and
    `title`, the champion's number as the table has it.
    """
    entries, present = ledger.entries(), now()
    known = {str(entry["run"]) for entry in entries}
    nothing = dict.fromkeys(FIELDS - HIDDEN) | {"by": "retrain", "title": ""}
    others = [*read_firings(store.home, ledger.recipe, store.root), *killed_retrains(store, ledger.recipe, known)]
    # first: of one second, a retrain that found nothing new follows the one that judged
    timed: list[tuple[str, Meta]] = [(min(firing["created"], present), {**nothing, **firing}) for firing in others]
    latest = present
    for entry in entries:
        latest = min(latest, entry["created"])  # clocks differ, so numbers decide among entries
        shown: Meta = {field: value for field, value in entry.items() if field not in HIDDEN}
        titles, is_new = entry["stands"]["champions"], entry["number"] is not None and entry["outcome"] != "frozen"
        title = f"{titles[0]['number']}{' (new)' if is_new else ''}" if titles else ""
        timed.append((latest, shown | {"title": title}))
    on_record = {*store.run_ids()}
    return [
        firing
        | {"ahead": firing["created"] > present and is_ahead(firing["created"]), "page": _page(firing, on_record)}
        for _, firing in sorted(timed, key=itemgetter(0), reverse=True)
    ]


def killed_retrains(store: Store, recipe: str, known: set[str]) -> Iterator[Firing]:
    """Yield each retrain that was killed on this machine. known: runs that were not."""
    for state in killed_runs(store, known):
        if (state.recipe, state.kind) == (recipe, "retrain"):
            killed = logged_summary(state)
            place = f"killed at {place_of(killed)}; the next retrain goes on from what was saved"
            why = place if killed["stage"] else "killed before its first stage"
            yield {"created": str(killed["ended"]), "outcome": "killed", "run": state.run, "why": why}


def _page(firing: Meta, on_record: set[str]) -> str | None:
    run = firing["run"]
    if run in on_record:
        return f"trnflow report {run}"
    return f"trnflow logs {run}" if firing["outcome"] == "killed" else None


def _row(firing: Meta) -> tuple[str, ...]:
    model = firing["frozen"] if firing["outcome"] == "frozen" else firing["challenger"] or firing["champion"]
    return (
        str(firing["n"] or ""), firing["created"], firing["outcome"], firing["by"], firing["run"] or "",
        (model or "")[:19], firing["title"], f"{AHEAD if firing['ahead'] else ''}{firing['why']}",
    )  # fmt: skip
