"""The user's own code in a graph: as an input of stages, and as stages behind built-in ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from trnflow.flows.recipes.files import nearest
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.runner.graph import Lookup, Node, NodeInputs
from trnflow.tasks.artifact import Artifact
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.keys.hooks import KIND, code_source, stage_kind
from trnflow.tasks.own_stage import OwnStage, named_stage

ELSEWHERE = frozenset({
    "answer", "check_models", "check_turns", "compare_models", "fit_baseline", "freeze_rows", "number_labels", "own_stage",
    "predict_before", "predict_rows", "run_harness", "sample_rows", "score_rows", "stand_in",
})  # fmt: skip
"""Stages of promotion and rehearsal, which have records under their names, too."""


def own_code(recipe: Recipe, *settings: str, also: tuple[str, ...] = ()) -> Lookup | None:
    """Return the lookup of the user's functions that these settings, or settings below them, name; None if none does.

    also: see `code_source`."""
    hooks = {
        setting: (named, folder)
        for setting, (named, folder) in recipe.hooks.items()
        if folder and any(f"{setting}.".startswith(f"{name}.") for name in settings)
    }
    files = recipe.own_files
    return Lookup(lambda store, known: code_source(hooks, known.home, known.memo, also, files)) if hooks else None


def with_own_stages(
    recipe: Recipe, nodes: Sequence[Node], given: Mapping[str, Artifact], kinds: Mapping[str, str]
) -> tuple[Node, ...]:
    """Return the nodes, behind each the user's stages that are after it.

    given: {built-in stage: artifact that stands for its node}; kinds: {built-in stage: kind}. Raises ConfigError for a
    name, a kind or an `after` that can't be.
    """
    # such as precompile, which does not run where training is a hit
    deferred = {needed.name for node in nodes for needed in node.after.values()}
    made: dict[str, Node | Artifact] = {**given, **{node.name: node for node in nodes}}
    _refuse_names(recipe.stages, made.keys() - deferred, kinds)

    def behind(name: str) -> Iterator[Node]:
        for own, config in recipe.stages.items():
            if config.after == name:
                inputs: NodeInputs = {"given": made[name], "code": own_code(recipe, f"stages.{own}")}
                made[own] = node = Node(named_stage(own, _kind(recipe, own, kinds)), config, inputs)
                yield node
                yield from behind(own)

    first = [node for name in given for node in behind(name)]
    return (*first, *(each for node in nodes for each in (node, *behind(node.name))))


def _kind(recipe: Recipe, name: str, kinds: Mapping[str, str]) -> str:
    setting = f"stages.{name}.function"
    named, folder = recipe.hooks[setting]
    assert folder is not None  # a shipped recipe has no hooks
    kind = stage_kind(setting, named, folder)
    for built_in, theirs in kinds.items():
        if kind == theirs:
            raise ConfigError(
                f"{setting}: {named} is of the kind {kind}, which {built_in} makes", "give it a kind of its own"
            )
    return kind


def _refuse_names(own: Mapping[str, OwnStage], makes: set[str], built_in: Mapping[str, str]) -> None:
    """Raise ConfigError for a name or an `after` that can't be. makes: built-in stages that make an artifact in each run."""
    for name, config in own.items():
        if name in built_in or name in ELSEWHERE or not KIND.fullmatch(name):
            what = "is the name of a built-in stage" if KIND.fullmatch(name) else "is no name of a stage"
            raise ConfigError(f"stages.{name} {what}", "choose another name, of small letters, digits and `_`")
        if config.after not in {*makes, *own}:
            close = nearest(config.after, [*makes, *own])
            raise ConfigError(
                f"stages.{name}.after: {config.after} is no stage that makes an artifact in each run of this recipe",
                f"did you mean {close}?" if close else f"name one of {', '.join(sorted({*makes, *own} - {name}))}",
            )
        passed = [name]
        while (above := own[passed[-1]].after) in own:
            if above in passed:
                circle = " is after ".join([*passed, above])
                raise ConfigError(f"stages.{name}.after: {circle}", "let one of them be after a built-in stage")
            passed.append(above)
