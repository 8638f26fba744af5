"""Promote a model: compare it with the champion on frozen rows, and make it the champion if it is surely better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypedDict

from trnflow.flows.champions.budget import looks_of, next_look
from trnflow.flows.champions.contenders import Contender, judged_models, no_champion, of_champion, run_of_model
from trnflow.flows.champions.frozen_rows import Frozen, FrozenDocument, append_secured, freeze, newest_frozen
from trnflow.flows.champions.lost import restoring
from trnflow.flows.champions.own_judges import compare_by_own, less_is_better, own_metric, refusals
from trnflow.flows.champions.scoring import Scored, score
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.runner.context import RunContext
from trnflow.flows.runner.run_log import begin_log
from trnflow.flows.runner.work_folders import clean, workplace
from trnflow.tasks.artifact import Meta
from trnflow.tasks.documents import CheckDocument, RecordName
from trnflow.tasks.errors import BlobLost, ConfigError, DataError, StoreError
from trnflow.tasks.events import EventLog
from trnflow.tasks.promotion.bootstrap import Comparison, compare_scores, least_rows, score_of
from trnflow.tasks.promotion.settings import PromoteConfig
from trnflow.tasks.store import Store
from trnflow.tasks.store.ledger import Ledger, append_ledger, read_ledger
from trnflow.tasks.store.ledger.entries import OUT_OF_BOUNDS, REFUSED, Entry, NewEntry


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


class Decision(NamedTuple):
    """The result of a promotion.

    Attributes:
        promoted: Whether the challenger is the champion now, and was not before.
        number, champion: Of the present champion; 0 and None where the first challenger was refused.
        comparison: None if no models were compared.
        froze: Whether this promotion froze the rows.
        entry: The n of the ledger's entry, None if none was added.
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

    def to_json(self) -> PromoteDocument:
        return {
            "promoted": self.promoted, "number": self.number, "champion": self.champion, "challenger": self.challenger,
            "comparison": self.comparison.to_json() if self.comparison else None, "frozen": self.frozen.to_json(),
            "froze": self.froze, "why": self.why,
        }  # fmt: skip


class _Verdict(NamedTuple):
    """Whether the challenger becomes champion, and why."""

    promoted: bool
    why: str
    comparison: Comparison | None = None


def promote(
    context: RunContext,
    challenger: Contender,
    log: EventLog,
    *,
    frozen: Frozen | None = None,
    training: Round | None = None,
) -> Decision:
    """Compare a challenger with the champion, promote it if it is surely better or the first, and add the decision.

    frozen: the rows to compare on, else the newest, else the present test rows, which are frozen. training: of a retrain,
    which promotes no model that was rolled back. Raises ConfigError if `promote.metric` is no metric of the challenger's
    task, DataError if the frozen rows have other labels than a model or the scores can't be paired, BlobLost if the store
    has lost a file of a model, or the frozen rows.
    """
    recipe, store = context.recipe, context.store
    clean(store)
    if own_metric(recipe) is None:
        score_of(recipe.judging, challenger.artifact.meta["task"])
    judging = context.for_run(log, kind="promote")
    with begin_log(judging):
        before = frozen or newest_frozen(recipe, store)
        rows = before or freeze(context, log)
        return _Judging(context, challenger, log, rows, before is None, training).decide()


@dataclass
class _Judging:
    """The judgement of one challenger: see `promote`. froze: whether the rows were frozen for it."""

    context: RunContext
    challenger: Contender
    log: EventLog
    frozen: Frozen
    froze: bool
    training: Round | None

    def decide(self) -> Decision:
        """Score, compare and write the decision."""
        store, name, digest = self.context.store, self.context.recipe.name, self.challenger.artifact.digest
        ours: Scored | None = None
        # again if another writer adds an entry between the look at the ledger and ours
        while True:
            ledger = read_ledger(store, name)
            verdict = _without_comparison(ledger, digest, self.training)
            if verdict is None or (verdict.promoted and ledger.champion is None):
                ours = ours or score(self.context, self.challenger, self.frozen.artifact, self.log)
            if verdict is None:
                assert ours is not None and ledger.champion is not None
                theirs = self._champion_scores(ledger.champion)
                comparison = self._compare(ledger, ledger.champion, theirs, ours)
                less = less_is_better(self.context.recipe, comparison.metric)
                verdict = _Verdict(comparison.is_better, describe(comparison, less), comparison)
                verdict = self._checked(verdict, ours, theirs)
            elif verdict.promoted and ours is not None:
                verdict = self._checked(verdict, ours, None)
            titles = ledger.stands["champions"]
            if self.training is None and titles and titles[0]["artifact"] == digest:
                return Decision(False, titles[0]["number"], digest, digest, None, self.frozen, self.froze, verdict.why)
            new = self._new_entry(ledger, ours, verdict)
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
                    entry["n"],
                )  # fmt: skip

    def _checked(self, verdict: _Verdict, ours: Scored, theirs: Scored | None) -> _Verdict:
        """Return the verdict after the user's checks and the bounds, which judge each challenger."""
        judging = self.context.for_run(self.log, kind="promote")
        reasons = refusals(judging, ours, theirs, self.frozen.artifact)
        begin = REFUSED if reasons else OUT_OF_BOUNDS
        reasons = reasons or _broken_bounds(judging.recipe.promote, self.challenger, judging.store)
        return _Verdict(False, f"{begin}{'; '.join(reasons)}", verdict.comparison) if reasons else verdict

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
        pair = (self.challenger.artifact.digest, champion["champion"], rows.digest, metric)
        look = next_look(config, ledger, pair)
        alpha = look.alpha or config.alpha
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
        return found._replace(alpha=look.alpha, spent=look.spent, is_better=found.is_better and look.alpha > 0)

    def _new_entry(self, ledger: Ledger, scores: Scored | None, verdict: _Verdict) -> NewEntry:
        store, challenger, training = self.context.store, self.challenger, self.training
        digest, titles = challenger.artifact.digest, ledger.stands["champions"]
        entry = NewEntry(
            outcome="promoted" if verdict.promoted else "kept", by="retrain" if training else "promote",
            why=verdict.why, challenger=digest, frozen=self.frozen.artifact.digest,
            scores=scores.artifact.digest if scores else None, evaluation=_kept(store, challenger.evaluation),
            comparison=verdict.comparison.to_json() if verdict.comparison else None,
        )  # fmt: skip
        if training is not None:
            champion = digest if verdict.promoted else titles[0]["artifact"] if titles else None
            keep = self.context.recipe.promote.keep_models
            entry |= NewEntry(run=training.run, data=training.data, checks=training.checks)
            entry["judged"] = judged_models(store, ledger, training.run, digest, champion, keep)
        else:
            entry["run"] = (run_of_model(store, digest) or {}).get("run")
        if verdict.promoted and scores is not None:
            entry |= NewEntry(
                champion=digest, replaces=titles[0]["artifact"] if titles else None, shaping=challenger.shaping,
                task=challenger.artifact.meta["task"],
                records=[*challenger.records, RecordName(stage="score_rows", key=scores.key)],
            )  # fmt: skip
        return entry


def _broken_bounds(config: PromoteConfig, challenger: Contender, store: Store) -> list[str]:
    """Return why `promote.at_least` and `at_most` refuse a challenger. Raises ConfigError for a missing metric, BlobLost."""
    if not (config.at_least or config.at_most):
        return []
    metrics = store.artifact(challenger.evaluation).meta["metrics"] if challenger.evaluation else {}
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


def rollback(context: RunContext, log: EventLog) -> Entry:
    """Make the model that the champion replaced the champion again, and score none; return the ledger's entry. Raises
    ConfigError without an earlier champion, BlobLost if the store has lost its bytes, StoreError if another process changed
    the champion meanwhile."""
    with begin_log(context.for_run(log, kind="rollback")):
        entry = _roll_back(context.recipe, context.store)
        log.write("decided", entry=dict(entry))
    return entry


def _roll_back(recipe: Recipe, store: Store) -> Entry:
    ledger = read_ledger(store, recipe.name)
    champions = ledger.champions()
    if not champions:
        raise no_champion(recipe.name)
    present = champions[0]["champion"]
    won = next(entry for entry in champions if (entry["champion"], entry["outcome"]) == (present, "promoted"))
    earlier = next((entry for entry in champions if entry["champion"] == won["replaces"]), None)
    if earlier is None:
        raise ConfigError(
            f"{recipe.name} has no champion before {str(present)[:19]}, which was the first",
            "`trnflow champions` lists them",
        )
    artifact = store.artifact(str(earlier["champion"]))
    missing = store.missing(artifact)
    if missing is not None:
        raise BlobLost(f"the store has lost {missing.path} of the earlier champion {artifact.digest[:19]}")
    new = NewEntry(
        outcome="rolled back", by="rollback", why=f"rolled back from {str(present)[:19]}", champion=artifact.digest,
        replaces=present, run=earlier["run"], task=earlier["task"], shaping=earlier["shaping"],
        records=earlier["records"], evaluation=_kept(store, earlier["evaluation"]),
        frozen=_kept(store, earlier["frozen"]), scores=_kept(store, earlier["scores"]),
    )  # fmt: skip
    while True:
        entry = append_secured(store, recipe.name, new, ledger.number, artifact)
        if entry is not None:
            return entry
        ledger = read_ledger(store, recipe.name)
        if ledger.champion is None or ledger.champion["n"] != champions[0]["n"]:
            changed = f"another process changed the champion of {recipe.name} meanwhile"
            raise StoreError(changed, "look, then run it again")


def _kept(store: Store, digest: str | None) -> str | None:
    """Return a digest if the store still has its artifact, else None."""
    try:
        # gc refuses to work while a root names what is gone
        if digest is not None:
            store.restore([], store.artifact(digest))
    except BlobLost:
        return None
    return digest


def describe(pair: Comparison, less_is_better: bool) -> str:
    """Return one sentence about a comparison."""
    word = "better" if pair.is_better else "not surely better"
    if not pair.alpha:
        word += " (the year's budget of judgements is spent: see promote.looks_per_year)"
    elif pair.differing < least_rows(pair.alpha):
        word += f" ({pair.differing} rows are judged differently, {least_rows(pair.alpha)} are the least that can tell)"
    less = ", less is better" if less_is_better else ""
    return (
        f"{word} than the champion on {pair.rows} frozen rows: {pair.metric} {pair.challenger:.4g} against "
        f"{pair.champion:.4g}{less}; difference {pair.difference:+.4g}, interval {pair.low:+.4g} to {pair.high:+.4g}; "
        f"{pair.spent:.1%} of the year's budget spent"
    )


def _without_comparison(ledger: Ledger, digest: str, training: Round | None) -> _Verdict | None:
    """Return the verdict on a challenger, None where the models must be compared."""
    champion = ledger.champion
    if champion is None:
        return _Verdict(True, "the first champion")
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
