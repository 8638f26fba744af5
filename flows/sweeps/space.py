"""Parse the settings that a sweep varies, and check each against the recipe.

A range is `1e-5..1e-4`, `1e-5..1e-4:log` or, with a step, `16..64:16`; choices are `4,8,16`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from trnflow.flows.recipes import recipe as settings
from trnflow.flows.recipes.schema import annotation_at, cut, kinds_of
from trnflow.flows.recipes.yaml_tree import OVERRIDE, read_value
from trnflow.tasks.artifact import Json, Meta
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.system.redaction import hide_secrets

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

SECTIONS = ("data", "format", "model", "tokenize", "pack", "train")
"""The sections on which the metrics of training depend."""
FORM = "a range is low..high, low..high:log or low..high:step, and choices are a,b,c"
RANGE = re.compile(r"([^\s,\[\]{}'\"]*?)\.\.([^\s,:\[\]{}'\"]*)(?::(\S*))?")
"""low..high, with :log or :step."""
CHOICES = re.compile(r"""("(?:[^"\\]|\\.)*"|'[^']*'|[^,"'\[\]{}]*)(?:,|$)""")
"""One choice and the comma after it; a text with a comma is quoted."""


@dataclass(frozen=True)
class Dimension:
    """One setting that varies: over `values` if there are any, else from `low` to `high`.

    log: drawn evenly on a logarithmic scale; step: None for any value between the ends; whole: whole numbers.
    """

    setting: str
    values: tuple[Any, ...] = ()
    low: float = 0
    high: float = 0
    log: bool = False
    step: float | None = None
    whole: bool = False

    def to_json(self) -> Json:
        """Return the range as a user writes it, such as `1e-05..0.0001:log`; choices as a list."""
        if self.values:
            return list(self.values)
        ending = ":log" if self.log else f":{self.step:g}" if self.step else ""
        return f"{self.low!r}..{self.high!r}{ending}"

    def ends(self) -> tuple[Any, ...]:
        """Return all choices, or both ends."""
        # tried on the recipe before the first trial
        return self.values or (self.low, self.high)

    def grid(self) -> tuple[Any, ...]:
        """Return all values, for the sampler `grid`. Raises ConfigError for a range without steps."""
        if self.values:
            return self.values
        step = self.step or (1 if self.whole and not self.log else None)
        if step is None:
            raise ConfigError(
                f"{self.setting}: a grid needs a list of values, and {self.to_json()} is a range without steps",
                "write choices (a,b,c) or a step (low..high:step), or take the sampler tpe or random",
            )
        count = math.floor((self.high - self.low) / step + 1e-9) + 1
        return tuple(self.low + number * step for number in range(count))

    def distribution(self) -> BaseDistribution:
        """Return the Optuna distribution of the setting's values."""
        from optuna import distributions

        if self.values:
            return distributions.CategoricalDistribution(self.values)
        if self.whole:
            return distributions.IntDistribution(int(self.low), int(self.high), log=self.log, step=int(self.step or 1))
        return distributions.FloatDistribution(self.low, self.high, log=self.log, step=self.step)


def combinations(space: Iterable[Dimension]) -> list[Meta]:
    """Return every combination of all dimensions' values, as {setting: value}."""
    dimensions = list(space)
    values = product(*(dimension.grid() for dimension in dimensions))
    return [{dimension.setting: value for dimension, value in zip(dimensions, some, strict=True)} for some in values]


def separate(texts: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Split a command line's texts: {setting: range or choices}, and the other texts."""
    varied, fixed = {}, []
    for text in texts:
        name, _, value = text.partition("=")
        is_setting = name.split(".")[0] not in ("on", "sweep")
        if is_setting and (_is_range(name, value) or len(_choices(value)) > 1):
            varied[name] = value
        else:
            fixed.append(text)
    return varied, fixed


def parse(written: Meta, refuse: Callable[[str, Any], None]) -> tuple[Dimension, ...]:
    """Return the dimensions of a sweep. Raises ConfigError.

    written: {setting: a range as text, or choices as text or list}; refuse: called with each end and choice, may raise.
    """
    dimensions = tuple(_dimension(name, value) for name, value in sorted(written.items()))
    for dimension in dimensions:
        for value in dimension.ends():
            refuse(dimension.setting, value)
    return dimensions


def override(setting: str, value: Any) -> str:
    """Return `setting=value` with the value as JSON."""
    return f"{setting}={json.dumps(value)}"


def _dimension(name: str, written: Any) -> Dimension:
    if name.split(".")[0] in settings.Recipe.model_fields and name.split(".")[0] not in SECTIONS:
        raise ConfigError(
            f"sweep: {name} has no influence on training, by whose metrics trials are compared",
            f"vary settings of {', '.join(SECTIONS)}",
        )
    if isinstance(written, list):
        return _of_choices(name, written)
    if _is_range(name, written):
        return _of_range(name, written)
    return _of_choices(name, [read_value(text, f"{OVERRIDE}{name}") for text in _choices(written)])


def _of_choices(name: str, values: list[Any]) -> Dimension:
    if not values or any(value is None or value == "" for value in values):
        raise ConfigError(f"sweep: a choice of {name} is empty", FORM)
    wrong = next((value for value in values if not isinstance(value, str | int | float | bool)), None)
    if wrong is not None:
        raise ConfigError(
            f"sweep: a choice of {name} is a list or mapping", "choices are numbers, texts, true or false"
        )
    if any(hide_secrets(value) != value for value in values):
        raise ConfigError(
            f"sweep: a choice of {name} holds credentials, which would stand in the sweep's results",
            "give the credentials in the environment",
        )
    return Dimension(name, tuple(dict.fromkeys(values)))


def _is_range(name: str, text: str) -> bool:
    match = RANGE.fullmatch(text.strip())
    if match is None:
        return False
    # `a..b` may also be a path, such as `../rows`
    return bool({int, float} & _kinds(name)) or None not in (_number(match[1]), _number(match[2]))


def _of_range(name: str, text: str) -> Dimension:
    match = RANGE.fullmatch(text.strip())
    assert match is not None
    low, high = _number(match[1]), _number(match[2])
    kinds = _kinds(name)
    if kinds and not {int, float} & kinds:
        raise ConfigError(f"sweep: {name} takes no number, so it has no range {cut(text)}", "give choices: a,b,c")
    if low is None or high is None:
        raise ConfigError(f"sweep: the range {cut(text)} of {name} has an end that is no number", FORM)
    if not low < high:
        fix = f"write the lower end first; a value that does not vary is written {name}={cut(match[1])}"
        raise ConfigError(f"sweep: the range {cut(text)} of {name} is empty", fix)
    log, step = match[3] == "log", _number(match[3] or "")
    if match[3] is not None and not log and not (step and step > 0):
        raise ConfigError(f"sweep: {cut(match[3])} is neither log nor a step above 0 (the range of {name})", FORM)
    if log and low <= 0:
        raise ConfigError(f"sweep: the range {cut(text)} of {name} is logarithmic, so its ends are above 0", FORM)
    whole = bool(kinds) and float not in kinds
    if whole and any(end is not None and not float(end).is_integer() for end in (low, high, step)):
        raise ConfigError(f"sweep: {name} takes whole numbers, and the range is {cut(text)}", "write whole numbers")
    if whole:
        low, high, step = int(low), int(high), int(step) if step else None
    return Dimension(name, (), low, high, log, step, whole)


def _kinds(name: str) -> set[Any]:
    """Return the types that a setting takes; empty if there is no such setting."""
    annotation = annotation_at(settings.Recipe, name.split("."))
    return set(kinds_of(annotation)) - {type(None)} if annotation is not None else set()


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _choices(text: str) -> list[str]:
    """Split a text at its commas; [text] if it is one value, such as a list in brackets."""
    choices, at = [], 0
    while at < len(text):
        match = CHOICES.match(text, at)
        if match is None:
            return [text]
        choices.append(match[1].strip())
        at = match.end()
    return [*choices, ""] if text.endswith(",") else choices
