"""Promote a model: compare it with the champion on frozen rows, and make it the champion if it is surely better.

The champion is the model that a recipe's users should get, the challenger the model that may replace it; frozen rows
are test rows that the store keeps to compare them. The store's file `roots/champions/<recipe>/<n>.json` with the
highest n names the champion. A file is created once and never changed. Of two challengers at once, one creates n + 1;
the other finds it taken, and is compared with the new champion.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from trnflow.flows.champions.contenders import Contender, of_champion
from trnflow.flows.champions.freeze import freeze, secure_named
from trnflow.flows.champions.frozen_rows import Frozen, newest_frozen
from trnflow.flows.champions.scoring import Scored, score
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.runner.context import context_of
from trnflow.flows.runner.plan import Options
from trnflow.flows.runner.run_log import begin_log
from trnflow.flows.runner.work_folders import clean, workplace
from trnflow.tasks.artifact import Artifact, Meta
from trnflow.tasks.errors import BlobLost, ConfigError, DataError, StoreError
from trnflow.tasks.evaluation.scores import is_less_better
from trnflow.tasks.events import EventLog
from trnflow.tasks.promotion.bootstrap import LEAST_ROWS, Comparison, compare, score_of
from trnflow.tasks.store import Store
from trnflow.tasks.store.garbage.numbered_roots import CHAMPIONS, Numbered, add_numbered, numbered
from trnflow.tasks.system.clock import now

PROMOTED, ROLLED_BACK = "promoted", "rolled back"


class Decision(NamedTuple):
    """The result of a promotion: whether the challenger (the model that was to be promoted) became the champion (the
    model that a recipe's users should get), and why.

    Attributes:
        promoted: Whether the challenger is the champion now, and was not before.
        number: The n of the champion's file `roots/champions/<recipe>/<n>.json` in the store.
        champion: Digest of the model that is the champion now.
        challenger: Digest of the model that was to be promoted.
        comparison: The metric of both models, and the interval of their difference; None if no models were compared,
            because there was no champion yet or the challenger was the champion already.
        frozen: The frozen rows (fixed test rows kept in the store) on which the models were scored.
        froze: Whether this promotion made the frozen rows from the present test rows, because the recipe had none.
        why: The reason of the decision, in a sentence.
    """

    promoted: bool
    number: int
    champion: str
    challenger: str
    comparison: Comparison | None
    frozen: Frozen
    froze: bool
    why: str

    def to_json(self) -> Meta:
        compared = self.comparison.to_json() if self.comparison else None
        return {**self._asdict(), "comparison": compared, "frozen": self.frozen.to_json()}


def champions_of(store: Store, name: str) -> list[Numbered]:
    """Return the present and all earlier champions of a recipe (the models that its users should get), the present one
    first, each as (n, content) of its file `roots/champions/<recipe>/<n>.json` in the store. StoreError when a file
    can't be read."""
    return numbered(store.backend, CHAMPIONS, name)


def promote(
    recipe: Recipe,
    store: Store,
    challenger: Contender,
    log: EventLog,
    *,
    frozen: Frozen | None = None,
    offline: bool = False,
    by: Literal["promote", "retrain"] = "promote",
) -> Decision:
    """Compare a challenger with the recipe's champion and make it the champion if it is better, or if there is none yet.

    The champion is the model that the recipe's users should get; the models are compared on frozen rows (fixed test
    rows). Better means: the lower end of the bootstrap interval of the difference between the two models' metrics
    exceeds `promote.margin`, and there are at least 30 frozen rows. If the recipe has no frozen rows, its present test
    rows are frozen first. A model that is not yet scored on the frozen rows is scored.

    Args:
        log: Gets the events of the stages that freeze and score.
        frozen: The rows to compare on. Default: the newest frozen rows of the recipe.
        offline: Make no requests to a data hub.
        by: The command that asks, which the champion's document names.

    Raises:
        ConfigError: `promote.metric` is no metric of the challenger's task.
        DataError: The frozen rows have other labels than a model, or the two models' scores can't be paired.
        BlobLost: The store has lost a file of the champion or the challenger, or the frozen rows.
    """
    clean(store)
    score_of(recipe.promote, challenger.artifact.meta["task"])
    context = context_of(recipe, store).for_run(log, kind="promote")
    with begin_log(context, Options(offline=offline)):
        decision = _promote(recipe, store, challenger, log, frozen, by, offline=offline)
        if by == "promote":
            log.write("decided", entry=decision.to_json())
        return decision


def _promote(
    recipe: Recipe,
    store: Store,
    challenger: Contender,
    log: EventLog,
    frozen: Frozen | None,
    by: str,
    *,
    offline: bool,
) -> Decision:
    """Score, compare and decide, until no other process has changed the champion meanwhile."""
    before = frozen or newest_frozen(recipe, store)
    frozen = before or freeze(recipe, store, log, offline=offline)
    ours = score(recipe, store, challenger, frozen.artifact, log)
    while True:
        found = champions_of(store, recipe.name)
        comparison, why = None, "the first champion"
        if found:
            champion = found[0]
            if champion.document["artifact"] == challenger.artifact.digest:
                why = "this model is the champion already"
                return _decision(champion, challenger, None, frozen, before is None, why, promoted=False)
            comparison = _compared(recipe, store, champion, challenger, ours, frozen, log)
            why = describe(comparison)
            if not comparison.is_better:
                return _decision(champion, challenger, comparison, frozen, before is None, why, promoted=False)
        document = {"by": by} | _document(store, recipe, challenger, ours, frozen, found, comparison, why)
        added = add_champion(store, recipe.name, document, challenger.artifact)
        if added is not None:
            return _decision(added, challenger, comparison, frozen, before is None, why, promoted=True)


def rollback(recipe: Recipe, store: Store) -> Numbered:
    """Undo a promotion: make the earlier model, which the present champion replaced, the champion again (the model that
    a recipe's users should get).

    Creates the file `roots/champions/<recipe>/<n>.json` in the store, with the next n, and returns n and the content of
    the file. No model is scored.

    Raises:
        ConfigError: There is no champion, or no earlier one.
        BlobLost: The store has lost the earlier model's bytes.
        StoreError: Another process changed the champion meanwhile.
    """
    found = champions_of(store, recipe.name)
    if not found:
        raise ConfigError(f"{recipe.name} has no champion", f"`trnflow promote {recipe.name}` makes the first")
    present = found[0].document["artifact"]
    won = next(one for one in found if (one.document["artifact"], one.document["action"]) == (present, PROMOTED))
    earlier = next((one for one in found if one.document["artifact"] == won.document["replaces"]), None)
    if earlier is None:
        raise ConfigError(
            f"{recipe.name} has no champion before {present[:19]}, which was the first",
            "`trnflow champions` lists them",
        )
    why = f"rolled back from {present[:19]}"
    document = earlier.document | {
        "action": ROLLED_BACK, "by": "rollback", "replaces": present, "comparison": None, "why": why, "created": now(),
        "number": found[0].number + 1,
    }  # fmt: skip
    artifact = store.artifact(document["artifact"])
    missing = store.missing(artifact)
    if missing is not None:
        raise BlobLost(f"the store has lost {missing.path} of the earlier champion {artifact.digest[:19]}")
    document |= {name: _kept(store, document[name]) for name in ("evaluation", "frozen", "scores")}
    added = add_champion(store, recipe.name, document, artifact)
    if added is None:
        raise StoreError(f"another process changed the champion of {recipe.name} meanwhile", "look, then run it again")
    return added


def _kept(store: Store, digest: str | None) -> str | None:
    """Return a digest if the store still has its artifact, brought back from the trash where need be; else None, because
    garbage collection refuses to work while a root names what is gone."""
    try:
        artifact = None if digest is None else store.artifact(digest)
        if artifact is None:
            return None
        store.secure([], artifact)
    except BlobLost:
        return None
    return digest


def add_champion(store: Store, name: str, document: Meta, artifact: Artifact) -> Numbered | None:
    """Make a model the champion of a recipe (the model that its users should get): create the file
    `roots/champions/<name>/<number>.json` in the store. The model is not compared with the present champion.

    Args:
        name: The recipe's name.
        document: The file's content. Its field "number" is the number in the file's name.
        artifact: The model.

    Returns:
        Number and content of the file; None if the number is taken, in which case nothing is written.

    Raises:
        StoreError: Garbage collection removed the model meanwhile; the file is removed again.
    """
    number = document["number"]
    if not add_numbered(store.backend, CHAMPIONS, name, number, document):
        return None
    secure_named(store, CHAMPIONS, name, number, artifact)
    return Numbered(number, document)


def describe(found: Comparison) -> str:
    """Return one sentence about a comparison of the challenger (the new model) with the champion (the model that the
    recipe's users get now): whether the challenger is better, the number of rows, the metric of both models, and the
    difference with its interval."""
    word = "better" if found.is_better else "not surely better"
    word += f" ({LEAST_ROWS} rows are the least that can tell)" if found.rows < LEAST_ROWS else ""
    less = ", less is better" if is_less_better(found.metric) else ""
    return (
        f"{word} than the champion on {found.rows} frozen rows: {found.metric} {found.challenger:.4g} against "
        f"{found.champion:.4g}{less}; difference {found.difference:+.4g}, interval {found.low:+.4g} to {found.high:+.4g}"
    )


def _compared(
    recipe: Recipe,
    store: Store,
    champion: Numbered,
    challenger: Contender,
    ours: Scored,
    frozen: Frozen,
    log: EventLog,
) -> Comparison:
    holder = of_champion(store, champion.document)
    tasks = holder.artifact.meta["task"], challenger.artifact.meta["task"]
    if tasks[0] != tasks[1]:
        raise DataError(
            f"the champion is a model for {tasks[0]}, the challenger for {tasks[1]}", "give the recipe another name"
        )
    try:
        theirs = score(recipe, store, holder, frozen.artifact, log)
    except DataError as error:
        fix = "give the recipe another name, under which the challenger is the first champion"
        raise DataError(f"the champion can't be scored on frozen rows {frozen.number}: {error.message}", fix) from error
    with workplace(store.home, "comparison") as work:
        theirs_at, ours_at = (
            store.checkout(one.artifact, work / side) / "scores.parquet"
            for side, one in (("champion", theirs), ("challenger", ours))
        )
        return compare(theirs_at, ours_at, tasks[0], recipe.promote)


def _document(
    store: Store,
    recipe: Recipe,
    model: Contender,
    scores: Scored,
    frozen: Frozen,
    earlier: list[Numbered],
    comparison: Comparison | None,
    why: str,
) -> Meta:
    return {
        "schema": 1,
        "recipe": recipe.name,
        "number": (earlier[0].number if earlier else 0) + 1,
        "action": PROMOTED,
        "artifact": model.artifact.digest,
        "task": model.artifact.meta["task"],
        "evaluation": _kept(store, model.evaluation),
        "frozen": frozen.artifact.digest,
        "scores": scores.artifact.digest,
        "records": [*model.records, {"stage": "score_rows", "key": scores.key}],
        "shaping": model.shaping,
        "replaces": earlier[0].document["artifact"] if earlier else None,
        "comparison": comparison.to_json() if comparison else None,
        "why": why,
        "created": now(),
    }


def _decision(
    champion: Numbered,
    challenger: Contender,
    comparison: Comparison | None,
    frozen: Frozen,
    froze: bool,
    why: str,
    *,
    promoted: bool,
) -> Decision:
    digests = champion.document["artifact"], challenger.artifact.digest
    return Decision(promoted, champion.number, *digests, comparison, frozen, froze, why)
