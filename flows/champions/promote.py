"""Promote a model: compare it with the champion on frozen rows, and make it the champion if it is surely better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypedDict

from trnflow.flows.champions.budget import compared_by, looks_of, next_look, promise, settings_of
from trnflow.flows.champions.contenders import Contender, judged_models, of_champion, run_of_model
from trnflow.flows.champions.forced import Force, told
from trnflow.flows.champions.frozen_rows import Frozen, FrozenDocument, append_secured, freeze, newest_frozen
from trnflow.flows.champions.lost import restoring
from trnflow.flows.champions.own_judges import compare_by_own, less_is_better, own_metric, refusals
from trnflow.flows.champions.scoring import Scored, check_whole, score
from trnflow.flows.finetune import ROLES
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.runner.context import RunContext
from trnflow.flows.runner.metadata_check import checked_artifact
from trnflow.flows.runner.run_log import begin_log
from trnflow.flows.runner.work_folders import clean, workplace
from trnflow.tasks.artifact import Meta
from trnflow.tasks.documents import CheckDocument, RecordName
from trnflow.tasks.errors import BlobLost, ConfigError, DataError
from trnflow.tasks.events import EventLog
from trnflow.tasks.promotion.compare import Comparison, compare_scores, score_of
from trnflow.tasks.promotion.permutations import LEAST_ALPHA, least_rows
from trnflow.tasks.promotion.settings import PromoteConfig
from trnflow.tasks.store import Store
from trnflow.tasks.store.ledger import Ledger, append_ledger, read_ledger
from trnflow.tasks.store.ledger.entries import FORCED, OUT_OF_BOUNDS, REFUSED, Entry, Forced, NewEntry


@dataclass(frozen=True)
class Round:
    """What a retrain knows of its challenger.

    run: made or found it; data: a digest; checks: of the data; confirm: raises if no decision may be written now.
    """

    run: str
    data: str
    checks: list[CheckDocument]
    confirm: Callable[[], None]


class PromoteDocument(TypedDict):
    """What `trnflow promote --json` prints of a decision."""

    promoted: bool
    number: int
    champion: str | None
    challenger: str
    comparison: Meta | None
    frozen: FrozenDocument
    froze: bool
    why: str
    forced: Forced | None


class Decision(NamedTuple):
    """The result of a promotion.

    Attributes:
        promoted: Whether the challenger is the champion now, and was not before.
        number, champion: Of the present champion; 0 and None where the first challenger was refused.
        comparison: None if no models were compared.
        froze: Whether this promotion froze the rows.
        entry: The n of the ledger's entry, None if none was added.
        forced: If a person made it champion without evidence.
    """

    promoted: bool
    number: int
    champion: str | None
    challenger: str
    comparison: Comparison | None
    frozen: Frozen
    froze: bool
    why: str
    entry: int | None = None
    forced: Forced | None = None

    def to_json(self) -> PromoteDocument:
        return {
            "promoted": self.promoted, "number": self.number, "champion": self.champion, "challenger": self.challenger,
            "comparison": self.comparison.to_json() if self.comparison else None, "frozen": self.frozen.to_json(),
            "froze": self.froze, "why": self.why, "forced": self.forced,
        }  # fmt: skip


class _Verdict(NamedTuple):
    """Whether the challenger becomes champion, and why. broke: what speaks against it."""

    promoted: bool
    why: str
    comparison: Comparison | None = None
    broke: tuple[str, ...] = ()
    forced: Forced | None = None


def promote(
    context: RunContext,
    challenger: Contender,
    log: EventLog,
    *,
    frozen: Frozen | None = None,
    training: Round | None = None,
    force: Force | None = None,
) -> Decision:
    """Compare a challenger with the champion, promote it if it is surely better or the first, and add the decision.

    frozen: the rows to compare on, else the newest, else the present test rows, which are frozen. training: of a retrain,
    which promotes no model that was rolled back. force: promote it whatever speaks against it.

    Raises ConfigError if `promote.metric` is no metric of the challenger's task, DataError if the frozen rows have other
    labels than a model or the scores can't be paired, BlobLost if the store has lost a file of a model, or the frozen rows.
    """
    recipe, store = context.recipe, context.store
    clean(store)
    if own_metric(recipe) is None:
        score_of(recipe.judging, challenger.artifact.meta["task"])
    judging = context.for_run(log, kind="promote")
    with begin_log(judging):
        before = frozen or newest_frozen(recipe, store)
        rows = before or freeze(context, log)
        return _Judging(context, challenger, log, rows, before is None, training, force).decide()


@dataclass
class _Judging:
    """The judgement of one challenger: see `promote`. froze: whether the rows were frozen for it; scores: its own."""

    context: RunContext
    challenger: Contender
    log: EventLog
    frozen: Frozen
    froze: bool
    training: Round | None
    force: Force | None
    scores: Scored | None = None

    def decide(self) -> Decision:
        """Score, compare and write the decision."""
        store, name, digest = self.context.store, self.context.recipe.name, self.challenger.artifact.digest
        # again if another writer adds an entry between the look at the ledger and ours
        while True:
            ledger = read_ledger(store, name)
            verdict = self._verdict(ledger)
            titles = ledger.stands["champions"]
            if self.training is None and titles and titles[0]["artifact"] == digest:
                return Decision(False, titles[0]["number"], digest, digest, None, self.frozen, self.froze, verdict.why)
            new = self._new_entry(ledger, verdict)
            if self.training is not None:
                self.training.confirm()
            if verdict.promoted:
                entry = append_secured(store, name, new, ledger.number, self.challenger.artifact)
            else:
                # None if another challenger was first: this one is then compared with the new champion
                entry = append_ledger(store, name, new, ledger.number)
            if entry is not None:
                self.log.write("decided", entry=dict(entry))
                title = next(iter(entry["stands"]["champions"]), None)
                number, champion = (title["number"], title["artifact"]) if title else (0, None)
                return Decision(
                    verdict.promoted, number, champion, digest, verdict.comparison, self.frozen, self.froze, verdict.why,
                    entry["n"], verdict.forced,
                )  # fmt: skip

    def _verdict(self, ledger: Ledger) -> _Verdict:
        """Judge the challenger; with force promote it even so."""
        known = _without_comparison(ledger, self.challenger.artifact.digest, self.training)
        if known is not None:
            return known
        if self.force is None:
            return self._judged(ledger)
        check_whole(self.context.store, self.challenger)
        try:
            found = self._judged(ledger)
        except (ConfigError, DataError, BlobLost) as error:
            found = _Verdict(False, "", broke=(f"it can't be judged: {error.message}",))
        if found.promoted:
            return found
        forced = Forced(who=self.force.who, why=self.force.why, broke=list(found.broke))
        return found._replace(promoted=True, why=f"{FORCED}{told(forced)}", forced=forced)

    def _judged(self, ledger: Ledger) -> _Verdict:
        ours = self.scores = self.scores or score(self.context, self.challenger, self.frozen.artifact, self.log)
        if ledger.champion is None:
            return self._checked(_Verdict(True, "the first champion"), ours, None)
        theirs = self._champion_scores(ledger.champion)
        comparison = self._compare(ledger, ledger.champion, theirs, ours)
        why = describe(comparison, less_is_better(self.context.recipe, comparison.metric))
        broke = () if comparison.is_better else (f"not surely better: {_figures(comparison)}",)
        return self._checked(_Verdict(comparison.is_better, why, comparison, broke), ours, theirs)

    def _checked(self, verdict: _Verdict, ours: Scored, theirs: Scored | None) -> _Verdict:
        """Return the verdict after the user's checks and the bounds, which judge each challenger."""
        judging = self.context.for_run(self.log, kind="promote")
        checks = self._reasons(partial(refusals, judging, ours, theirs, self.frozen.artifact))
        bounds: list[str] = []
        if not checks or self.force is not None:
            bounds = self._reasons(partial(_broken_bounds, judging.recipe.promote, self.challenger, judging.store))
        if not (reasons := checks or bounds):
            return verdict
        why = f"{REFUSED if checks else OUT_OF_BOUNDS}{'; '.join(reasons)}"
        return _Verdict(False, why, verdict.comparison, (*verdict.broke, *checks, *bounds))

    def _reasons(self, find: Callable[[], list[str]]) -> list[str]:
        """Return why the challenger is refused. By force an error is a reason, too."""
        try:
            return find()
        except (ConfigError, DataError) as error:
            if self.force is None:
                raise
            return [error.message]

    def _champion_scores(self, champion: Entry) -> Scored:
        """Score the champion. Raises DataError, BlobLost."""
        holder = of_champion(self.context.store, champion)
        task, other = holder.artifact.meta["task"], self.challenger.artifact.meta["task"]
        if task != other:
            what = f"the champion is a model for {task}, the challenger for {other}"
            raise DataError(what, "give the recipe another name")
        try:
            return score(self.context, holder, self.frozen.artifact, self.log)
        except DataError as error:
            fix = "give the recipe another name, under which the challenger is the first champion"
            what = f"the champion can't be scored on frozen rows {self.frozen.number}: {error.message}"
            raise DataError(what, fix) from error
        except BlobLost as error:
            what = f"champion {champion['number']} can't be compared: {error.message}"
            raise BlobLost(what, restoring(self.context.recipe.name), error.digest) from error

    def _compare(self, ledger: Ledger, champion: Entry, theirs: Scored, ours: Scored) -> Comparison:
        """Compare the champion with the challenger at what is left of the year's budget. Raises DataError."""
        recipe, store, own = self.context.recipe, self.context.store, own_metric(self.context.recipe)
        task, rows = self.challenger.artifact.meta["task"], self.frozen.artifact
        metric = own.name if own else score_of(recipe.judging, task).name
        config, _ = looks_of(recipe, store.memo)
        settings, digest = settings_of(recipe.promote), self.challenger.artifact.digest
        look = next_look(config, ledger, compared_by(digest, champion["champion"], rows.digest, metric, settings))
        alpha = look.alpha or config.share(look.number)
        if own:
            judging = self.context.for_run(self.log, kind="promote")
            found = compare_by_own(judging, own, config, alpha, theirs, ours, rows)
        else:
            with workplace(store.home, "comparison") as work:
                theirs_at, ours_at = (
                    store.link_files(scored.artifact, work / side) / "scores.parquet"
                    for side, scored in (("champion", theirs), ("challenger", ours))
                )
                found = compare_scores(theirs_at, ours_at, task, config, alpha)
        return look.charge(found)

    def _new_entry(self, ledger: Ledger, verdict: _Verdict) -> NewEntry:
        store, challenger, training, scores = self.context.store, self.challenger, self.training, self.scores
        digest, titles = challenger.artifact.digest, ledger.stands["champions"]
        entry = NewEntry(
            outcome="promoted" if verdict.promoted else "kept", by="retrain" if training else "promote",
            why=verdict.why, challenger=digest, frozen=self.frozen.artifact.digest,
            scores=scores.artifact.digest if scores else None, evaluation=kept(store, challenger.evaluation),
            comparison=verdict.comparison.to_json() if verdict.comparison else None,
            settings=settings_of(self.context.recipe.promote), forced=verdict.forced,
        )  # fmt: skip
        if training is not None:
            champion = digest if verdict.promoted else titles[0]["artifact"] if titles else None
            keep = self.context.recipe.promote.keep_models
            entry |= NewEntry(run=training.run, data=training.data, checks=training.checks)
            entry["judged"] = judged_models(store, ledger, training.run, digest, champion, keep)
        else:
            entry["run"] = (run_of_model(store, digest) or {}).get("run")
        if verdict.promoted and not (titles and titles[0]["artifact"] == digest):
            scored = [RecordName(stage="score_rows", key=scores.key)] if scores else []
            entry |= NewEntry(
                champion=digest, replaces=titles[0]["artifact"] if titles else None, shaping=challenger.shaping,
                task=challenger.artifact.meta["task"], records=[*challenger.records, *scored],
            )  # fmt: skip
        return entry


def _broken_bounds(config: PromoteConfig, challenger: Contender, store: Store) -> list[str]:
    """Return why `promote.at_least` and `at_most` refuse a challenger. Raises ConfigError for a missing metric, BlobLost."""
    if not (config.at_least or config.at_most):
        return []
    evaluation = challenger.evaluation
    metrics = checked_artifact(store, ROLES["evaluation"], evaluation).meta["metrics"] if evaluation else {}
    for name in {**config.at_least, **config.at_most}:
        if name not in metrics:
            raise ConfigError(
                f"promote bounds {name}, which the newest evaluation of the model does not have (it has: "
                f"{', '.join(metrics) or 'none'})",
                "correct the name, or let `trnflow run` evaluate the model",
            )
    low = [(name, least, "below") for name, least in config.at_least.items() if metrics[name] < least]
    high = [(name, most, "above") for name, most in config.at_most.items() if metrics[name] > most]
    return [f"{name} is {metrics[name]:.4g}, {side} {bound:g}" for name, bound, side in low + high]


def kept(store: Store, digest: str | None) -> str | None:
    """Return a digest if the store still has its artifact, else None."""
    try:
        # gc refuses to work while a root names what is gone
        if digest is not None:
            store.restore([], store.artifact(digest))
    except BlobLost:
        return None
    return digest


def of_first(recipe: Recipe, store: Store, decision: Decision) -> str:
    """Return what can win from now on, if a decision made the first champion and its frozen rows are few, else ""."""
    if not (decision.promoted and decision.number == 1):
        return ""
    expected = promise(recipe, decision.frozen.artifact.meta["rows"], store.memo)
    return expected.text if expected.is_few else ""


def describe(pair: Comparison, less_is_better: bool) -> str:
    """Return one sentence about a comparison."""
    word = "better" if pair.is_better else "surely worse" if pair.high < 0 and pair.can_win else "not surely better"
    if not pair.alpha:
        word += " (the year's budget of judgements is spent: see promote.confidence)"
    elif not pair.can_win:
        word += f" ({_unwinnable(pair)}: this look is free)"
    less = ", less is better" if less_is_better else ""
    spent = f"{pair.spent:.1%} of the year's budget spent"
    return f"{word} than the champion on {pair.rows} frozen rows: {_figures(pair, less)}; {spent}"


def _figures(pair: Comparison, less: str = "") -> str:
    """Return the values of a comparison. less: a remark on the metric."""
    values = f"{pair.metric} {pair.challenger:.4g} against {pair.champion:.4g}{less}"
    return f"{values}; difference {pair.difference:+.4g}, interval {pair.low:+.4g} to {pair.high:+.4g}"


def _unwinnable(pair: Comparison) -> str:
    """Say why no challenger could have won by a look's share."""
    if pair.differing < (least := least_rows(pair.alpha)):
        return f"{pair.differing} rows are judged differently, {least} are the least that can tell"
    if pair.alpha < LEAST_ALPHA:
        return f"its share of the budget, {pair.alpha:.1g}, is too small for {pair.metric}: see promote.looks_per_year"
    return f"{pair.differing} rows are judged differently, too few for promote.margin"


def _without_comparison(ledger: Ledger, digest: str, training: Round | None) -> _Verdict | None:
    """Return the verdict on a challenger that needs no judgement, else None."""
    champion = ledger.champion
    if champion is None:
        return None
    if champion["champion"] == digest:
        judged = ledger.judged
        # a store of format 1: a retrain was killed after it had promoted the model and before it could say so
        is_news = champion["by"] == "retrain" and (judged is None or judged["n"] < champion["n"])
        if training is not None and is_news:
            return _Verdict(True, champion["why"])
        return _Verdict(False, "this model is the champion already")
    if training is None:
        return None
    last = next((entry for entry in ledger.champions() if digest in (entry["champion"], entry["replaces"])), None)
    if last is not None and (last["replaces"], last["outcome"]) == (digest, "rolled back"):
        again = f"`trnflow promote {ledger.recipe}` compares it again"
        return _Verdict(False, f"the model was rolled back in champion {last['number']}; {again}")
    return None
