"""Translate the keys of another program's config into settings of a recipe, by a table with a rule for each key.

Each key gets an outcome: translated, no effect here, or not translated. What would make half a recipe is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

from trnflow.flows.recipes.files import Origins, SettingOrigin
from trnflow.flows.recipes.schema import Tree, shown
from trnflow.flows.recipes.yaml_tree import Lines
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.system.redaction import MASK, hide_secrets, names_secret

Outcome = Literal["translated", "no effect", "not translated"]
Place = Callable[[str], str]
OFF: tuple[Any, ...] = (None, False, "", [], {})
NOT_SET = "not set there"


class Entry(NamedTuple):
    """What became of a key. text: the settings, or why there are none."""

    value: Any
    outcome: Outcome
    text: str


class Rule(NamedTuple):
    """How a key is translated.

    Attributes:
        kind: `to` sets a setting, `part` leaves the key to the program's own function, `nothing` says that it has no effect,
            `lacks` that it is not translated, `refuses` ends the translation.
        text: The setting, or why.
        off: Values with which the key of `lacks` and `refuses` has no effect.
    """

    kind: Literal["to", "part", "nothing", "lacks", "refuses"]
    text: str
    convert: Callable[[Any], Any] = lambda value: value
    off: tuple[Any, ...] = OFF


Table = Mapping[str, Rule]


def to(setting: str, convert: Callable[[Any], Any] = lambda value: value) -> Rule:
    return Rule("to", setting, convert)


def part(setting: str, read: Callable[[Any], Any] = lambda value: value) -> Rule:
    """Leave a key to the program's own function. read: returns its value, checked."""
    return Rule("part", setting, read)


def nothing(why: str) -> Rule:
    return Rule("nothing", why)


def lacks(why: str, *off: Any) -> Rule:
    return Rule("lacks", why, off=(*OFF, *off))


def refuses(why: str, *off: Any) -> Rule:
    return Rule("refuses", why, off=(*OFF, *off))


class Nearest(Exception):
    """Raised by a conversion of a value that a setting can't take.

    Args:
        why: For the user.
        nearest: What is written instead; None leaves the setting out.
    """

    def __init__(self, why: str, nearest: Any = None) -> None:
        super().__init__(why)
        self.why, self.nearest = why, nearest


class Translation:
    """A config while it is translated.

    Attributes:
        name: The recipe's.
        given: The settings that the user named on the command line.
        usual: The comment beside a setting that follows from no key of theirs.
        settings: {section: {setting: value}} of the recipe.
        why: {dotted setting: the comment beside it}.
        origins: {parts of a setting: file, line and key of theirs}, for errors.
        values: {key there: its value, as its rule reads it}, without null.
        entries: {key there, lists by number: what became of it}.
        functions: {function's file: its text}, written beside the recipe.
        notes: What else the user must know.
    """

    def __init__(self, program: str, file: Path, tree: Tree, lines: Lines, given: Tree, name: str) -> None:
        self.name, self.program, self.file, self.tree, self.lines, self.given = name, program, file, tree, lines, given
        self.usual = f"{program}'s default"
        self.settings: Tree = {}
        self.values: Tree = {}
        self.why: dict[str, str] = {}
        self.origins: Origins = {}
        self.entries: dict[str, Entry] = {}
        self.functions: dict[Path, str] = {}
        self.notes: list[str] = []

    def start(self, table: Table) -> None:
        """Translate the config's keys one by one."""
        self.values = self.apply(table, self.tree)

    def apply(self, table: Table, tree: Tree, above: str = "", place: Place = str) -> Tree:
        """Translate the keys of `tree`, and return their values, read, without null.

        above: the key of `tree`, with a dot behind; place: from a setting to the one that it is here.
        """
        values: Tree = {}
        for name, value in tree.items():
            rule, key = table.get(name), f"{above}{name}"
            if value is None:
                self.note(key, value, "no effect", NOT_SET)
                continue
            values[name] = value
            if rule is None:
                self.note(key, value, "not translated", f"trnflow knows no such setting of {self.program}")
            elif rule.kind == "to":
                self._convert(rule, key, value, place)
            elif rule.kind == "part":
                values[name] = self.read(rule.convert, key, value, rule.text)
            elif rule.kind == "nothing":
                self.note(key, value, "no effect", rule.text)
            elif value in rule.off:
                self.note(key, value, "no effect", "off there, as here" if value in OFF else "there as here")
            elif rule.kind == "lacks":
                self.note(key, value, "not translated", rule.text)
            else:
                self.refuse(key, rule.text)
        return values

    def set_read(self, table: Table, keys: tuple[str, ...]) -> None:
        """Write the settings of keys of kind `part`, as they were read."""
        for key in keys:
            if key in self.values:
                self.set(table[key].text, self.values[key], key)

    def _convert(self, rule: Rule, key: str, value: Any, place: Place) -> None:
        setting = place(rule.text)
        try:
            ours = self.read(rule.convert, key, value, setting)
        except Nearest as error:
            if error.nearest is not None:
                self.set(setting, error.nearest, key)
            self.note(key, value, "not translated", error.why)
        else:
            self.set(setting, ours, key)

    def read(self, convert: Callable[[Any], Any], key: str, value: Any, setting: str) -> Any:
        """Return a converted value. Raises ConfigError where it is of another type."""
        try:
            return convert(value)
        except ValueError as error:
            fix = f"correct it, or leave it out and set {setting} in the recipe"
            raise ConfigError(f"{self.at(key)}: {key} can't be {shown(hidden(value))}: {error}", fix) from error

    def set(self, setting: str, value: Any, *theirs: str, why: str = "") -> None:
        """Write a setting that follows from those of `theirs` that the config has.

        why: the comment beside it where the config has none. Raises ConfigError where an earlier key says another value.
        """
        keys = [key for key in theirs if self.at_key(key) is not None]
        *above, name = setting.split(".")
        if name in ("source", "tokenizer") and hidden(value) != value:
            fix = (
                "take the secret out of the address: a hub's token is read from HF_TOKEN, other rows can be downloaded"
            )
            self.refuse(keys[-1] if keys else setting, "it holds a secret, and a recipe holds none", fix)
        section = self.settings
        for part_of in above:
            section = section.setdefault(part_of, {})
        if name in section and section[name] != value:
            self.refuse(
                keys[-1] if keys else setting,
                f"{setting} would be both {shown(section[name])} and {shown(value)}, and a recipe has one",
                "translate them one by one, and name the recipes' rows in data.mix",
            )
        section[name] = value
        if keys:
            names = [key.rpartition(".")[2] for key in keys]
            self.why.setdefault(setting, ", ".join(dict.fromkeys(names)))
            self.origins.setdefault((*above, name), SettingOrigin(f"{self.at(keys[0])}: {keys[0]}"))
        elif why:
            self.why.setdefault(setting, why)
        for key in keys:
            earlier = self.entries.get(key)
            text = f"{setting}={plain(hidden(value))}"
            joined = f"{earlier.text}, {text}" if earlier and earlier.outcome == "translated" else text
            self.note(key, self.at_key(key), "translated", joined)

    def default(self, setting: str, value: Any, why: str = "") -> None:
        """Write a value of theirs where no key says another."""
        if not self.has(setting):
            self.set(setting, value, why=why or self.usual)

    def has(self, setting: str) -> bool:
        return self.get(setting) is not None

    def get(self, setting: str) -> Any:
        section: Any = self.settings
        for name in setting.split("."):
            section = section.get(name) if isinstance(section, dict) else None
        return section

    def note(self, key: str, value: Any, outcome: Outcome, text: str) -> None:
        # the value goes to the terminal and into the recipe's comments
        self.entries[key] = Entry(MASK if names_secret(key) else hidden(value), outcome, text)

    def lack(self, key: str, why: str) -> None:
        self.note(key, self.at_key(key), "not translated", why)

    def ignore(self, key: str, why: str) -> None:
        self.note(key, self.at_key(key), "no effect", why)

    def at_key(self, key: str) -> Any:
        """Return the value of a key there, None without one."""
        value: Any = self.tree
        for name in key.split("."):
            if isinstance(value, list) and name.isdecimal():
                value = value[int(name)] if int(name) < len(value) else None
            else:
                value = value.get(name) if isinstance(value, dict) else None
        return value

    def at(self, key: str) -> str:
        """Return the file, with the line of a key where it is known."""
        line = self.lines.get(tuple(key.split("."))) or self.lines.get((key.split(".")[0],))
        return f"{self.file}:{line}" if line else str(self.file)

    def refuse(self, key: str, why: str, fix: str = "") -> NoReturn:
        value = self.at_key(key)
        given = (
            "" if value is None or isinstance(value, dict | list) or names_secret(key) else f" {shown(hidden(value))}"
        )
        raise ConfigError(
            f"{self.at(key)}: {key}{given} is not translated: {why}",
            fix or f"leave {key} out if the run is the same to you without it",
        )

    def end(self, table: Table, defaults: Tree) -> None:
        """Write the defaults that no key changed, and give an outcome to each key that the program's own function left alone."""
        for setting, value in defaults.items():
            self.default(setting, value)
        # data sets have an entry for each of their keys
        inside = {key.partition(".")[0] for key in self.entries if "." in key}
        for key, value in self.tree.items():
            if key not in self.entries and key not in inside and key in table:
                outcome: Outcome = "no effect" if value in OFF else "not translated"
                why = "off there, as here" if value in OFF else f"it does not decide {table[key].text} here"
                self.note(key, value, outcome, why)

    def ignore_lora(self, table: Table, why: str) -> None:
        for key in self.values:
            if key in table and table[key].text.startswith("train.lora") and key not in self.entries:
                self.ignore(key, why)

    def of(self, outcome: Outcome) -> Iterator[tuple[str, Entry]]:
        return ((key, entry) for key, entry in self.entries.items() if entry.outcome == outcome)


TOKEN = re.compile(r"(?<![\w-])(?:hf_|sk-|ghp_|github_pat_|glpat-|wandb_v1_)[\w-]{8,}")
"""The form of some programs' tokens."""


def hidden(value: Any) -> Any:
    """Return a value of theirs with `***` in place of secrets: by name, by form of a URL, and by form of a token."""
    if isinstance(value, dict):
        return {name: MASK if names_secret(str(name)) else hidden(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [hidden(inner) for inner in value]
    return TOKEN.sub(MASK, hide_secrets(value)) if isinstance(value, str) else value


def plain(value: Any) -> str:
    """Return a value on one line, cut where it is long."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = text.replace("\n", "\\n")
    return text if len(text) <= 60 else f"{text[:57]}..."
