"""Check a recipe's present data before training: its labels, and what the section `checks` lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trnflow.flows.champions.contenders import run_of_model
from trnflow.flows.champions.frozen_rows import Frozen, finetune_without
from trnflow.flows.finetune import ROLES
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.retraining.change import RetrainReason
from trnflow.flows.runner.context import make_plan
from trnflow.flows.runner.metadata_check import checked_artifact
from trnflow.flows.runner.run import settle
from trnflow.flows.runner.work_folders import workplace
from trnflow.tasks.artifact import Artifact
from trnflow.tasks.documents import CheckDocument, CheckResult
from trnflow.tasks.errors import BlobLost, DataError
from trnflow.tasks.events import EventLog
from trnflow.tasks.kinds.registry import FORMATS
from trnflow.tasks.promotion.settings import AGAINST_CHAMPION, CheckConfig
from trnflow.tasks.store import Store
from trnflow.tasks.store.model_names import artifact_of_run

if TYPE_CHECKING:
    from trnflow.tasks.promotion.data_checks import Measured

# a dry run loads data for its checks if that is expected to take no longer
CHEAP_SECONDS = 60.0


class Checked(NamedTuple):
    """The result of one check.

    result: `passed` (within the limit, or explained by chance), as `check.then` says, or `not applied` without a value.
    """

    check: CheckConfig
    measured: Measured
    result: CheckResult

    def to_json(self) -> CheckDocument:
        check, measured = self.check, self.measured
        return {
            "what": check.what, "limit": check.most, "then": check.then, "column": check.column,
            "value": measured.value, "result": self.result, "why": measured.why,
        }  # fmt: skip

    @property
    def sentence(self) -> str:
        """Check, measured value and limit in a sentence."""
        name = self.check.what + (f" of {self.check.column}" if self.check.column else "")
        if self.measured.value is None:
            return f"the check {name} can't be applied: {self.measured.why}"
        word = "within" if self.result == "passed" else "above"
        numbers = (self.measured.value, self.check.most)
        value, most = (f"{number:,.4g}" if number < 1e4 else f"{number:,.0f}" for number in numbers)
        return f"the check {name} found {value}, {word} its limit {most} ({self.measured.why})"


def check_data(change: RetrainReason, log: EventLog) -> tuple[Checked, ...]:
    """Load a recipe's present data as a retrain does, and make the checks of the section `checks`.

    change: its plan loads the rows that are checked and trained on. Raises ConfigError for a column that the data does not
    have, DataError if the data can't be read or has other labels than the frozen rows.
    """
    from trnflow.tasks.promotion.data_checks import LoadedRows, measure

    recipe, store, frozen, champion = change.recipe, change.context.store, change.frozen, change.champion
    rows = _loaded(change, log)
    if frozen is not None and FORMATS[recipe.format.task].one_class:
        _check_labels(recipe, rows.meta["labels"], frozen)
    if not recipe.checks:
        return ()
    wants_raw = any(check.what == "leakage" for check in recipe.checks)
    raw = _loaded(change, log, raw=True) if wants_raw else rows
    earlier = data_of(store, champion) if champion else None
    with workplace(store.home, "checks") as work:
        laid_out = {
            artifact.digest: LoadedRows(store.link_files(artifact, work / artifact.digest[7:19]), artifact.meta)
            for artifact in {each.digest: each for each in (rows, raw, earlier) if each}.values()
        }
        before = laid_out[earlier.digest] if earlier else None
        measured_checks = [
            (check, measure(check, laid_out[rows.digest], laid_out[raw.digest], before)) for check in recipe.checks
        ]
    checked = [Checked(check, measured, _result(check, measured)) for check, measured in measured_checks]
    if champion is None or earlier is not None:
        return tuple(checked)
    gone = f"the store no longer has the data of the champion {champion[:19]}"
    return tuple(
        each._replace(measured=each.measured._replace(why=gone))
        if each.check.what in AGAINST_CHAMPION and each.result == "not applied"
        else each
        for each in checked
    )


def check_cheaply(change: RetrainReason) -> tuple[tuple[Checked, ...], str]:
    """Check the data as `check_data` does if that takes at most a minute; return (results, why not, or "")."""
    recipe, plan = change.recipe, change.context.plan
    assert plan is not None
    if not recipe.checks and (change.frozen is None or not FORMATS[recipe.format.task].one_class):
        return (), ""
    plans = [plan]
    if any(check.what == "leakage" for check in recipe.checks):
        plans.append(make_plan(finetune_without(recipe, None), change.context))
    for each in plans:
        load = each.steps[ROLES["rows"]]
        if load.action != "hit" and (load.seconds is None or load.seconds > CHEAP_SECONDS):
            time = "an unknown time" if load.seconds is None else f"{load.seconds:.0f} s"
            return (), f"the data was not checked: it is not loaded, and loading it takes {time}"
    return check_data(change, EventLog()), ""


def data_of(store: Store, model: str) -> Artifact | None:
    """Return the rows that a model was trained on, of the newest run that made or used it; None if they are lost."""
    digest = artifact_of_run(run_of_model(store, model) or {}, ROLES["rows"])
    if digest is None:
        return None
    try:
        artifact = checked_artifact(store, ROLES["rows"], digest)
        return None if store.missing(artifact) else artifact
    except BlobLost:
        return None


def _loaded(change: RetrainReason, log: EventLog, *, raw: bool = False) -> Artifact:
    """Load the rows that the change's plan loads. raw: with the frozen rows among them."""
    context = change.context.for_run(log, kind="check")
    plan = make_plan(finetune_without(change.recipe, None), context) if raw else context.plan
    assert plan is not None
    loaded = settle(plan.graph, context, plan=plan, until=ROLES["rows"]).artifact(ROLES["rows"])
    if not raw:
        plan.predict()  # the training finds these rows in the store
    return loaded


def _check_labels(recipe: Recipe, labels: list[str] | None, frozen: Frozen) -> None:
    """Raise DataError unless the data has the labels of the frozen rows."""
    # models of other labels could not be compared
    known = frozen.artifact.meta["labels"]
    if labels is None or known is None or {*labels} == {*known}:
        return
    sides = {"the data": sorted({*labels} - {*known}), "the frozen rows": sorted({*known} - {*labels})}
    only = "; ".join(f"only {place} has {', '.join(names[:5])}" for place, names in sides.items() if names)
    raise DataError(
        f"the data of {recipe.name} has other labels than its frozen rows {frozen.number} ({only})",
        "correct the data; if the new labels are meant, give the recipe another `name`, under which its model is the first",
    )


def _result(check: CheckConfig, measured: Measured) -> CheckResult:
    if measured.value is None:
        return "not applied"
    if measured.value <= check.most or measured.by_chance:
        return "passed"
    return "warned" if check.then == "warn" else "stopped"
