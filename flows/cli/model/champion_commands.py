"""The commands about champions: `freeze`, `promote`, `rollback` and `champions`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from contextlib import suppress
from typing import Any, TypedDict

from trnflow.flows.cli.arguments import add_command
from trnflow.flows.cli.output import emit
from trnflow.flows.cli.past_store import past_store
from trnflow.flows.display import report
from trnflow.flows.display.progress import Progress
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.runner.context import open_context
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError, TrnflowError
from trnflow.tasks.events import EventLog
from trnflow.tasks.promotion.settings import PromoteConfig
from trnflow.tasks.store.ledger.entries import Entry, Forced, Outcome


def add_commands(sub: Any, recipe: ArgumentParser, online: ArgumentParser, store: ArgumentParser) -> None:
    add_command(sub, "freeze", freeze, online, "keep the present test rows, to compare models on them")
    better = add_command(sub, "promote", promote, online, "make a model the champion if it is better on frozen rows")
    better.add_argument(
        "challenger",
        nargs="?",
        metavar="MODEL",
        help="a run of the recipe (`last`: its last with a model), a digest, or RECIPE@newest; default: RECIPE itself",
    )
    better.add_argument("--force", action="store_true", help="make it the champion whatever speaks against it")
    better.add_argument("--why", metavar="TEXT", help="the reason for --force, which is recorded with your name")
    add_command(sub, "rollback", rollback, recipe, "make the earlier champion the champion again")
    listing = add_command(sub, "champions", champions, store, "list the champions, of one recipe with their past")
    listing.add_argument("recipe", nargs="?", metavar="RECIPE", help="the name of a recipe; default: all recipes")


def freeze(options: Namespace) -> int:
    """Freeze the test rows of a recipe's present data, and print their number. Runs `load_data` if it is not cached."""
    from trnflow.flows.champions.budget import promise
    from trnflow.flows.champions.frozen_rows import freeze as freeze_test_rows

    context = open_context(options.recipe, options.overrides, offline=options.offline)
    recipe = context.recipe
    with Progress() as progress:
        frozen = freeze_test_rows(context, EventLog(progress))
    found = frozen.to_json()
    where = f"{recipe.name} as number {frozen.number} ({frozen.artifact.digest[:19]})"
    said = promise(recipe, found["rows"], context.store.memo).text
    emit(
        options,
        {"recipe": recipe.name, **found, "promise": said},
        f"froze {found['rows']} test rows of {where}",
        *filter(None, [said]),
    )
    return 0


def promote(options: Namespace) -> int:
    """Compare a model with the champion on the frozen rows, make it the champion if it is surely better, and print the
    decision.

    The model is that of the present settings, or the one that MODEL names. Without a champion it becomes the
    first; without frozen rows, the present test rows are frozen.
    """
    from trnflow.flows.champions.contenders import find_contender, of_recipe
    from trnflow.flows.champions.forced import force_by_hand
    from trnflow.flows.champions.mirror import mirror
    from trnflow.flows.champions.promote import of_first
    from trnflow.flows.champions.promote import promote as promote_model

    if options.why is not None and not options.force:
        raise ConfigError("--why is the reason for --force", "add --force, or leave --why out")
    force = force_by_hand(options.why) if options.force else None
    context = open_context(options.recipe, options.overrides, offline=options.offline)
    recipe, store = context.recipe, context.store

    with Progress() as progress:
        text = options.challenger
        challenger = of_recipe(recipe, store) if text is None else find_contender(text, recipe, store)
        found = promote_model(context, challenger, EventLog(progress), force=force)
    lines = [f"there were no frozen rows: froze the present test rows as number {found.frozen.number}"] * found.froze
    verb = "is now champion" if found.promoted else "is not promoted; the champion stays"
    lines += [f"{found.challenger[:19]} {verb} {found.number} of {recipe.name}: {found.why}"]
    needless = "--force was not needed: this is a promotion by evidence" if force and not found.forced else ""
    notes = [*filter(None, [needless * found.promoted, of_first(recipe, store, found), mirror(recipe, store, found)])]
    lines += [f"note: {note}" for note in notes]
    emit(options, {"recipe": recipe.name, **found.to_json(), "notes": notes}, *lines)
    return 0


def rollback(options: Namespace) -> int:
    """Make the model champion again that the present champion replaced. Raises ConfigError without one."""
    from trnflow.flows.champions.mirror import mirror
    from trnflow.flows.champions.rollback import rollback as roll_back

    context = open_context(options.recipe, options.overrides)
    recipe, store = context.recipe, context.store
    found = roll_back(context, EventLog())
    note = mirror(recipe, store)
    lines = [f"{str(found['champion'])[:19]} is champion {found['number']} of {recipe.name}: {found['why']}"]
    lines += [f"note: {note}"] if note else []
    emit(options, {"recipe": recipe.name, **_champion(found)}, *lines)
    return 0


def champions(options: Namespace) -> int:
    """Print each recipe's champion, or all of a named recipe, newest first, and which frozen rows are old."""
    from trnflow.flows.champions.frozen_rows import old_frozen
    from trnflow.tasks.store.ledger import read_ledger, recipes_of

    store = past_store(options.store, options.recipe)
    days: dict[str, float] = {}
    if options.recipe and options.recipe.endswith((".yaml", ".yml")):  # a file: its recipe's name
        given = settings.load(options.recipe, [])
        options.recipe, days[given.name] = given.name, given.promote.frozen_days
    ledgers = [read_ledger(store, name) for name in ([options.recipe] if options.recipe else recipes_of(store))]
    names = [ledger.recipe for ledger in ledgers if options.recipe or ledger.champion]
    found = [
        _champion(entry)
        for ledger in ledgers
        for entry in (ledger.champions() if options.recipe else filter(None, [ledger.champion]))
    ]
    rows = [("recipe", "n", "artifact", "created", "action", "why")]
    rows += [
        (one["recipe"], str(one["number"]), str(one["artifact"])[:19], one["created"], one["action"], one["why"])
        for one in found
    ]
    none = f"{options.recipe} has no champion" if options.recipe else "no recipe has a champion"
    lines = report.aligned(rows) if found else [f"{none}: `trnflow promote RECIPE` makes the first"]
    notes = [note for name in names if (note := old_frozen(store, name, days.get(name) or _frozen_days(name)))]
    shown = {"store": store.root, "champions": found, "notes": notes}
    emit(options, shown, *lines, *(f"note: {note}" for note in notes))
    return 0


class ListedChampion(TypedDict):
    """What is printed of the entry that made a champion. action: its outcome."""

    recipe: str
    number: int | None
    artifact: str | None
    evaluation: str | None
    frozen: str | None
    scores: str | None
    replaces: str | None
    action: Outcome
    why: str
    created: str
    comparison: Meta | None
    forced: Forced | None


def _champion(entry: Entry) -> ListedChampion:
    return {
        "recipe": entry["recipe"], "number": entry["number"], "artifact": entry["champion"], "evaluation": entry["evaluation"],
        "frozen": entry["frozen"], "scores": entry["scores"], "replaces": entry["replaces"],
        "action": entry["outcome"], "why": entry["why"], "created": entry["created"],
        "comparison": entry["comparison"], "forced": entry["forced"],
    }  # fmt: skip


def _frozen_days(name: str) -> float:
    """Return a recipe's `promote.frozen_days`, or its default if the recipe is not in `conf/`."""
    with suppress(TrnflowError):
        return settings.load(name, []).promote.frozen_days
    return PromoteConfig().frozen_days
