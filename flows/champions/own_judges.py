"""Judge a challenger by the user's own functions: `promote.metric` of `evaluate.metrics`, and `promote.checks`."""

from __future__ import annotations

from trnflow.flows.champions.scoring import Scored
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.runner.context import RunContext
from trnflow.flows.runner.graph import Graph, Node
from trnflow.flows.runner.own_code import own_code
from trnflow.flows.runner.run import settle
from trnflow.tasks.artifact import Artifact, Meta
from trnflow.tasks.evaluation.own_metrics import SETTING, OwnMetric
from trnflow.tasks.evaluation.scores import PROMOTING, is_less_better
from trnflow.tasks.keys.key_document import key_document, key_of
from trnflow.tasks.promotion.compare import Comparison
from trnflow.tasks.promotion.own_judges import CheckModelsConfig, CompareConfig, check_models, compare_models
from trnflow.tasks.promotion.settings import PromoteConfig

CHECKS = "promote.checks"


def own_metric(recipe: Recipe) -> OwnMetric | None:
    """Return the metric of the user's that `promote.metric` names, or None."""
    metric = recipe.promote.metric
    if metric is None or metric in PROMOTING:
        return None
    return next(own for own in recipe.evaluate.metrics if own.may_promote and own.name == metric)


def less_is_better(recipe: Recipe, metric: str) -> bool:
    """Return whether less of a metric is better, also of the user's own."""
    own = own_metric(recipe)
    return own.less_is_better if own and own.name == metric else is_less_better(metric)


def compare_by_own(
    context: RunContext,
    own: OwnMetric,
    config: PromoteConfig,
    alpha: float,
    champion: Scored,
    challenger: Scored,
    frozen: Artifact,
) -> Comparison:
    """Compare two models by a metric of the user's, in a process of its own. Raises DataError with the user's line."""
    setting = f"{SETTING}.{context.recipe.evaluate.metrics.index(own)}.function"
    settings = CompareConfig(
        setting=setting, metric=own.name, less_is_better=own.less_is_better, margin=config.margin, alpha=alpha,
        resamples=config.resamples, seed=config.seed,
    )  # fmt: skip
    sides = {"champion": champion.artifact, "challenger": challenger.artifact, "frozen": frozen}
    node = Node(compare_models, settings, {**sides, "code": own_code(context.recipe, setting)})
    return Comparison(**_made(node, context))


def refusals(context: RunContext, challenger: Scored, champion: Scored | None, frozen: Artifact) -> list[str]:
    """Return why the user's checks refuse a challenger. Raises DataError with the user's line."""
    if not context.recipe.promote.checks:
        return []
    node = _checks(context.recipe, challenger.artifact, champion.artifact if champion else None, frozen)
    return list(_made(node, context)["refusals"])


def is_checked(context: RunContext, challenger: str, champion: str | None, frozen: str) -> bool:
    """Return whether the present checks have judged a challenger. All are digests: of scores, and of the frozen rows.
    Raises BlobLost."""
    store = context.store
    theirs = store.artifact(champion) if champion else None
    node = _checks(context.recipe, store.artifact(challenger), theirs, store.artifact(frozen))
    inputs = {name: item for name, item in node.inputs.items() if isinstance(item, Artifact)}
    code = node.inputs["code"].find(store, context.resolver)  # type: ignore[union-attr]
    document = key_document(node.stage, node.config, {**inputs, "code": code}, store.memo)
    return store.record(node.name, key_of(document)) is not None


def _checks(recipe: Recipe, challenger: Artifact, champion: Artifact | None, frozen: Artifact) -> Node:
    settings = tuple(f"{CHECKS}.{number}" for number in range(len(recipe.promote.checks)))
    sides = {"challenger": challenger, "champion": champion, "frozen": frozen}
    return Node(check_models, CheckModelsConfig(settings=settings), {**sides, "code": own_code(recipe, CHECKS)})


def _made(node: Node, context: RunContext) -> Meta:
    return settle(Graph((node,)), context).artifact(node.name).meta
