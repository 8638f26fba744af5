"""What verdicts are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from trnflow.tasks.artifact import Meta
from trnflow.tasks.kinds.kind import Kind
from trnflow.tasks.kinds.registry import kind_of

if TYPE_CHECKING:
    from trnflow.tasks.evaluation.report_document import Generation, Report
    from trnflow.tasks.system.arrays import Bools, Ints


class Known(NamedTuple):
    """Which rows stand in train, bool [rows]: equal but for case and spaces; near, which differ by punctuation or one word."""

    equal: Bools
    near: Bools


@dataclass(frozen=True)
class Facts:
    """An evaluation, and what is known of its training.

    Attributes:
        report: report.json.
        columns: What the model said of the rows; others: {name of a baseline: the same of it}, in the same order.
        labels: Names of outputs, by id.
        training: Metadata of train; {} where it is not known.
        packed: Metadata of the packed rows.
        known: Which rows of format_prompts stand in train. None: not looked for.
        rows: int64 [segments]: each one's row of format_prompts, in the order of `columns` where a row is one segment.
        taught: int64 [classes], rows of train. None of other tasks.
        unknown: The share of the split's tokens that are no text that the tokenizer knows.
        generations: Of which most should end.
        temperature: By which the model's logits were divided, as validation chose. None: they are training's.
    """

    report: Report
    columns: Any = None
    others: Mapping[str, Any] = field(default_factory=dict)
    labels: Sequence[str] = ()
    training: Meta = field(default_factory=dict)
    packed: Meta = field(default_factory=dict)
    known: Known | None = None
    rows: Ints | None = None
    taught: Ints | None = None
    unknown: float = 0.0
    generations: Sequence[Generation] = ()
    temperature: float | None = None

    @property
    def kind(self) -> Kind:
        return kind_of(self.report["task"])

    @property
    def split(self) -> str:
        return self.report["split"]

    @property
    def count(self) -> int:
        """How many rows were evaluated, or pairs."""
        return len(self.columns[0])

    @property
    def is_balanced(self) -> bool:
        """Whether training gave classes weights; True of tasks without such weights."""
        return not self.kind.one_class or self.training.get("settings", {}).get("class_weights") is not None

    @property
    def curves(self) -> list[dict[str, float]]:
        """Rows by step, as train's metadata has them."""
        return list(self.training.get("curves", ()))


def figure(value: float) -> str:
    """Return a figure with three significant digits; what is below 1 is never shown as 1."""
    text = f"{value:.3g}"
    return f"{value:.4g}" if text == "1" and value < 1 else text


def percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def a_few(names: Sequence[str], most: int = 5) -> str:
    """Return names as text: the first `most`, then how many more."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
