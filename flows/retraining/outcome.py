"""How a retraining ended: the document that `trnflow retrain --json` prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import TrnflowError
from trnflow.tasks.promotion.bootstrap import Comparison


@dataclass(frozen=True)
class Retrained:
    """How a retraining ended.

    Attributes:
        recipe: The recipe's name.
        run: The id of the run that trained; None if nothing was trained.
        changed: Whether data, code or settings differed from those of the newest judged model (see `challenger`); False
            also if that was not found out.
        promoted: Whether the new model is the champion now.
        stopped: Whether a check of the data stopped the retraining before training.
        champion: Digest of the recipe's champion, the model that its users get, after the retraining; None if there is
            none.
        challenger: Digest of the model that was judged (compared with the champion, or made the first champion), in
            this retraining or, if nothing changed, in an earlier one; None if none was.
        frozen: Digest of the frozen rows (the fixed test rows on which models are compared); None if there are none.
        why: The reason for the outcome in a sentence.
        comparison: How challenger and champion compare; None if they were not compared.
        margin: The setting `promote.margin`, which the lower end of the interval of the difference must exceed.
        checks: What the checks of the data found, each as JSON.
        error: Why the retraining failed or was interrupted; None if it ended well.
        notes: Sentences to show to the user.
        earlier: How the first round ended, if the data changed during that round and this is the outcome of a second
            one; None if there was no second round, or if the first round's model was not judged.
        entry: The n of the ledger's entry that judged the challenger in this retraining; None if none did.
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
    checks: tuple[Meta, ...] = ()
    error: TrnflowError | None = None
    notes: tuple[str, ...] = ()
    earlier: Retrained | None = None
    entry: int | None = None

    @property
    def outcome(self) -> Literal["failed", "unchanged", "stopped", "promoted", "kept"]:
        """The outcome in a word: `failed` (or interrupted), `unchanged` (nothing to train, or another process
        retrains the recipe), `stopped` (by a check of the data), `promoted` (the new model is the champion) or `kept`
        (the old champion stays)."""
        if self.error is not None:
            return "failed"
        if not self.changed:
            return "unchanged"
        return "stopped" if self.stopped else "promoted" if self.promoted else "kept"

    @property
    def exit_code(self) -> int:
        """The exit code of `trnflow retrain`: that of the error, 1 if a check of the data stopped it, else 0."""
        return self.error.exit_code if self.error else int(self.stopped)

    def to_json(self) -> Meta:
        """Return the document that `trnflow retrain --json` prints: the fields recipe, run, changed, promoted,
        stopped, champion, challenger, frozen, why and checks; metrics (the comparison of challenger and champion, null
        without one), report (the command that shows the run's report, or null), and, after an error, error {stage,
        type, message, fix}."""
        names = (
            "recipe", "run", "changed", "promoted", "stopped", "champion", "challenger", "frozen", "why",
        )  # fmt: skip
        document = {"schema": 1, **{name: getattr(self, name) for name in names}, "metrics": self._metrics()}
        document["checks"] = list(self.checks)
        document["report"] = f"trnflow report {self.run}" if self.run else None
        if self.error is not None:
            document["error"] = {"stage": self.error.stage or None, **self.error.to_json()}
        return document

    def _metrics(self) -> Meta | None:
        found = self.comparison
        if found is None:
            return None
        return {
            "name": found.metric, "champion": found.champion, "challenger": found.challenger,
            "difference": found.difference, "interval": [found.low, found.high], "margin": self.margin,
        }  # fmt: skip
