"""A recipe's own part, as it is chosen for data that was looked at, and what the data leaves open."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import Any

from trnflow.flows.authoring.look import Column
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ConfigError


class Question(ConfigError):
    """What the data leaves open. choices: {setting=value: what it means}. Shown without a terminal, it is an error."""

    def __init__(self, message: str, choices: dict[str, str]) -> None:
        listed = ", or ".join(f"{shlex.join(overrides_in(choice))} ({meaning})" for choice, meaning in choices.items())
        super().__init__(message, f"answer with {listed}")
        self.choices = choices


def overrides_in(choice: str) -> list[str]:
    """Return the overrides of a choice; their values may hold spaces."""
    return re.split(r" (?=[a-z]+\.[a-z_]+=)", choice)


@dataclass
class Draft:
    """A recipe's own part.

    Attributes:
        base: The shipped recipe that it extends.
        taken: (what for, column) of each column that is used.
        settings: {section: {setting: value}}.
        others: {section.setting: [(another value, why)]}, to be written as comments.
        why: {section.setting: comment}.
        also: Further lines of the report: what else is possible.
        fields: Fields of messages, such as `messages.id`, that are used only where the chat template reads them.
    """

    base: str
    taken: list[tuple[str, Column]] = field(default_factory=list)
    settings: dict[str, Meta] = field(default_factory=lambda: {"data": {}, "format": {}})
    others: dict[str, list[tuple[Any, str]]] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    also: list[str] = field(default_factory=list)
    fields: list[str] = field(default_factory=list)


def listed(columns: dict[str, Column]) -> str:
    """Return the columns with what they hold, as text."""
    some = [f"{name} ({column.describe()})" for name, column in list(columns.items())[:12]]
    return ", ".join(some + (["..."] if len(columns) > 12 else []))
