"""Ledgers: every decision about a recipe's models, `<root>/roots/ledger/<recipe>/<n>.json`."""

from trnflow.tasks.store.ledger.entries import Entry, JudgedModel, NewEntry, quoted_name
from trnflow.tasks.store.ledger.ledger import (
    Ledger,
    append_ledger,
    by_recipe,
    protected,
    read_ledger,
    recipes_of,
    remove_newest,
)

__all__ = [
    "Entry",
    "JudgedModel",
    "Ledger",
    "NewEntry",
    "append_ledger",
    "by_recipe",
    "protected",
    "quoted_name",
    "read_ledger",
    "recipes_of",
    "remove_newest",
]
