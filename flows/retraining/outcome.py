"""How a retrain ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NotRequired, TypedDict

from trnflow.tasks.documents import CheckDocument
from trnflow.tasks.errors import PlacedError, TrnflowError
from trnflow.tasks.promotion.compare import Comparison


class ComparedMetric(TypedDict):
    """interval: of the difference."""

    name: str
    champion: float
    challenger: float
    difference: float
    interval: list[float]
    margin: float


class RetrainDocument(TypedDict):
    """What `trnflow retrain --json` prints, and Prefect's events carry. report: the command that writes the run's page."""

    schema: int
    recipe: str
    run: str | None
    changed: bool
    promoted: bool
    stopped: bool
    champion: str | None
    challenger: str | None
    frozen: str | None
    why: str
    metrics: ComparedMetric | None
    checks: list[CheckDocument]
    report: str | None
    notes: list[str]
    error: NotRequired[PlacedError]


@dataclass(frozen=True)
class Retrained:
    """How a retrain ended.

    Attributes:
        run: The run that trained, or None.
        changed: Whether data, code or settings differed from the newest judged model's.
        promoted: Whether the new model is the champion now.
        stopped: Whether a check of the data stopped it.
        champion: Digest of the champion afterwards.
        challenger: Digest of the newest judged model.
        frozen: Digest of the frozen rows.
        notes: Sentences for the user.
        earlier: How the first round ended, if this is of a second one.
        entry: The n of the ledger's entry that judged the challenger now.
    """

    recipe: str
    run: str | None
    changed: bool
    why: str
    promoted: bool = False
    stopped: bool = False
    champion: str | None = None
    challenger: str | None = None
    frozen: str | None = None
    comparison: Comparison | None = None
    margin: float = 0.0
    checks: tuple[CheckDocument, ...] = ()
    error: TrnflowError | None = None
    notes: tuple[str, ...] = ()
    earlier: Retrained | None = None
    entry: int | None = None

    @property
    def outcome(self) -> Literal["failed", "unchanged", "stopped", "promoted", "kept"]:
        """The outcome in a word. `failed`: or interrupted; `unchanged`: or another process retrains the recipe."""
        if self.error is not None:
            return "failed"
        if not self.changed:
            return "unchanged"
        return "stopped" if self.stopped else "promoted" if self.promoted else "kept"

    @property
    def exit_code(self) -> int:
        """The error's, 1 if a check stopped it, else 0."""
        return self.error.exit_code if self.error else int(self.stopped)

    def to_json(self) -> RetrainDocument:
        document = RetrainDocument(
            schema=1, recipe=self.recipe, run=self.run, changed=self.changed, promoted=self.promoted, stopped=self.stopped,
            champion=self.champion, challenger=self.challenger, frozen=self.frozen, why=self.why, metrics=self._metrics(),
            checks=list(self.checks), report=f"trnflow report {self.run}" if self.run else None,
            notes=[*self.notes],
        )  # fmt: skip
        if self.error is not None:
            document["error"] = self.error.placed()
        return document

    def _metrics(self) -> ComparedMetric | None:
        compared = self.comparison
        if compared is None:
            return None
        return {
            "name": compared.metric, "champion": compared.champion, "challenger": compared.challenger,
            "difference": compared.difference, "interval": [compared.low, compared.high], "margin": self.margin,
        }  # fmt: skip
