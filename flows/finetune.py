"""The fine-tuning pipeline: the order of its stages, and the checks of a run before it begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, cast

from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.runner.graph import Elsewhere, Graph, Lookup, Node, NodeInputs, source_of
from trnflow.flows.runner.memory_check import refuse_what_cannot_fit
from trnflow.flows.runner.own_code import own_code, with_own_stages
from trnflow.flows.runner.plan import Plan
from trnflow.flows.runner.vocabulary import check_vocabulary, refuse_unknown_vocabulary
from trnflow.flows.runner.warm_start import earlier_model, starting_model
from trnflow.tasks.artifact import Artifact, Meta, Source
from trnflow.tasks.compute_reference import compute_reference
from trnflow.tasks.consolidate import consolidate
from trnflow.tasks.data.format.config import is_framed
from trnflow.tasks.data.format.row_makers import unread_columns
from trnflow.tasks.data.load.own_identity import TELLS_STATE, with_state
from trnflow.tasks.evaluate_model import evaluate_model
from trnflow.tasks.evaluation.chosen_metric import chosen_source, reads_texts
from trnflow.tasks.evaluation.generation import refuse_messages
from trnflow.tasks.evaluation.harness import harness_source
from trnflow.tasks.evaluation.harness_files import harness_files
from trnflow.tasks.export_neuron import export_neuron
from trnflow.tasks.format_prompts import format_prompts
from trnflow.tasks.kinds.registry import FORMATS
from trnflow.tasks.load_data import data_source, load_data
from trnflow.tasks.pack_chunks import pack_chunks
from trnflow.tasks.precompile import precompile
from trnflow.tasks.sources.model_source import model_source
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.stage import Known, by_role, stage_of
from trnflow.tasks.store import Store
from trnflow.tasks.tokenize_text import tokenize_text
from trnflow.tasks.train import train
from trnflow.tasks.training.config import OWN_LOSS
from trnflow.tasks.training.losses import reads_rows
from trnflow.tasks.training.preference_losses import needs_reference
from trnflow.tasks.training.refusals import refuse_long_export, refuse_unfit_model

if TYPE_CHECKING:
    from trnflow.flows.runner.stage_call import Parent
    from trnflow.tasks.metadata import RowsMeta

FUNCTIONS: tuple[Callable[..., Meta], ...] = (
    load_data, format_prompts, tokenize_text, pack_chunks, compute_reference, precompile, train, consolidate, export_neuron,
    evaluate_model,
)  # fmt: skip
STAGES = tuple(stage_of(function).name for function in FUNCTIONS)
ROLES = by_role(FUNCTIONS)
"""Role -> name of the stage."""
DATA_STAGES = STAGES[: STAGES.index(ROLES["chunks"]) + 1]
KINDS = {described.name: described.kind for described in map(stage_of, FUNCTIONS)}
"""Stage name -> kind of the artifact that the stage makes."""

UNUSED = "is not used (data.ignore silences this)"


def finetune(recipe: Recipe, frozen: Artifact | None = None, *, rows: Artifact | None = None) -> Graph:
    """Return the stages from data rows to an evaluated, exported model.

    frozen: frozen rows, whose texts load_data drops from the split `train`; rows: instead of those that load_data loads.
    """
    training = recipe.training
    # precompile then finds the micro batch: what train makes depends on it
    measures = training.micro_batch == "auto"
    model, start = source_of(model_source, recipe.model), _starting_weights(training.warm_start_from)
    knows = partial(_check_vocabulary, start=start)

    data = rows or loading(recipe, frozen)
    makes = own_code(recipe, "format.make")
    texts = Node(format_prompts, recipe.format, {"rows": data, "model": model, "code": makes})
    tokens = Node(tokenize_text, recipe.tokenize, {"texts": texts, "model": model})
    packed = Node(pack_chunks, recipe.pack, {"tokens": tokens})
    refuse = partial(refuse_unfit_model, training)
    initial: NodeInputs = {"model": model, "packed": packed, "warm_start": start}
    compares = needs_reference(training.objective)
    reference = Node(compute_reference, training, initial, check=knows, needs=refuse) if compares else None
    loss = own_code(recipe, "train.loss", also=(OWN_LOSS,))
    graphs = Node(precompile, training, {"model": model, "packed": packed, "code": loss}, check=knows, needs=refuse)
    compiled = {"graphs": graphs}
    reads: NodeInputs = {**initial, "code": loss, "reference": reference, **choosing(recipe, data, texts)}
    if measures:
        reads |= compiled
    shards = Node(train, training, reads, after={} if measures else compiled, check=knows, needs=refuse)
    weights = Node(consolidate, recipe.consolidate, {**initial, "shards": shards, "texts": texts, "tokens": tokens})
    exports = recipe.export.target != "none"
    fits = partial(refuse_long_export, recipe.export.length)
    exported = Node(export_neuron, recipe.export, {"weights": weights}, needs=fits) if exports else None
    evaluation = Node(
        evaluate_model,
        recipe.evaluate.on_device_of(training.device),
        {
            "texts": texts,
            "packed": packed,
            "rows": data,
            "code": own_code(recipe, "evaluate.metrics"),
            "harness": source_of(harness_files, recipe.evaluate.harness) if recipe.evaluate.harness else None,
            "weights": weights,
            "exported": exported,
            "reference": reference,
            "base": model,
            "warm_start": start,
            "shards": shards,
        },
        needs=lambda known: refuse_messages(recipe.evaluate.prompts, framed=is_framed(recipe.format, known.of("rows"))),
    )
    nodes = (data, texts, tokens, packed, reference, graphs, shards, weights, exported, evaluation)
    given = {} if rows is None else {ROLES["rows"]: rows}
    present = with_own_stages(recipe, [node for node in nodes if isinstance(node, Node)], given, KINDS)
    return Graph(present, partial(_check_run, recipe), partial(_remarks, recipe), _elsewhere(recipe, present))


def _elsewhere(recipe: Recipe, nodes: tuple[Node, ...]) -> Elsewhere | None:
    """Return what has another machine run the stages of `launch.stages`; None if all run here."""
    if recipe.launch.kind == "local":
        return None
    from trnflow.flows.jobs.elsewhere import elsewhere_of

    return elsewhere_of(recipe, tuple(node.name for node in nodes), STAGES, DATA_STAGES)


def _remarks(recipe: Recipe, known: Known) -> Iterator[str]:
    yield from remarks_of_columns(recipe, known.of("rows"))
    yield from remarks_of_fields(recipe, known.of("texts"))
    if recipe.launch.kind == "sagemaker" and recipe.train.device == "cuda":
        yield (
            "AWS does not say which GPU driver SageMaker's training hosts have: where it is too old for the image's torch, the "
            "job ends in its first minute"
        )


def loading(recipe: Recipe, frozen: Artifact | None = None) -> Node:
    """Return the node that loads a recipe's rows. frozen: see `finetune`."""
    inputs: NodeInputs = {"source": rows_source(recipe), "frozen": frozen, "code": own_code(recipe, "data.make")}
    return Node(load_data, recipe.loading, inputs)


def rows_source(recipe: Recipe) -> Lookup:
    """Return the lookup of the rows' source, of `data.make` with the state that `own.identity` tells."""
    code = own_code(recipe, "own.identity", also=(TELLS_STATE,))
    if code is None:
        return source_of(data_source, recipe.data)

    def find(store: Store, resolver: Resolver) -> Source:
        source = resolver.ask_once(data_source, recipe.data)
        return with_state(source, code.find(store, resolver), recipe.data, stage_of(load_data), resolver)

    return Lookup(find)


def choosing(recipe: Recipe, rows: Node | Artifact, texts: Node) -> NodeInputs:
    """Return the inputs with which train measures `train.best_metric`: a function of the user's reads rows and texts, a
    metric of answers texts."""
    training = recipe.training
    is_own = training.keeps_best and ":" in training.best_metric
    reads = is_own or reads_texts(training, FORMATS[recipe.format.task])
    return {"metric": best_metric(recipe), "rows": rows if is_own else None, "texts": texts if reads else None}


def best_metric(recipe: Recipe) -> Lookup | None:
    """Return the lookup of the code that measures `train.best_metric`; None for what every evaluation has."""
    training, kind = recipe.train, FORMATS[recipe.format.task]
    of_sums = not (kind.per_row or kind.pairs) and training.keeps_best and training.best_metric != "eval_loss"
    if not of_sums and not reads_rows(training, kind):
        return None
    own = next((metric for metric in recipe.evaluate.metrics if metric.function == training.best_metric), None)
    at = recipe.evaluate.metrics.index(own) if own else 0
    folder = recipe.hooks[f"evaluate.metrics.{at}.function"][1] if own else None
    return Lookup(
        lambda store, resolver: chosen_source(
            training,
            kind,
            recipe.evaluate.on_device_of(training.device),
            own,
            folder,
            resolver.home,
            resolver.memo,
            recipe.own_files,
        )
    )


def _starting_weights(text: str | None) -> Lookup | None:
    """Return the lookup of the model in the store that `train.warm_start_from` names."""
    if text is None:
        return None
    setting = "train.warm_start_from"
    return Lookup(lambda store, resolver: earlier_model(store, text, setting, resolver.folder(setting)), starting_model)


def remarks_of_columns(recipe: Recipe, rows: Meta) -> Iterator[str]:
    """Name the columns that nothing reads. rows: metadata of load_data, as far as it is known."""
    knows = "columns" in rows and not recipe.evaluate.metrics  # which may read any column
    unread = unread_columns(recipe.format, cast("RowsMeta", rows)) if knows else []
    unread += rows.get("left_out", []) if knows and recipe.data.ignore is not None else []
    yield from (f"column {name} {UNUSED}" for name in unread if name not in (recipe.data.ignore or ()))


def remarks_of_fields(recipe: Recipe, texts: Meta) -> Iterator[str]:
    """Name the fields of messages that nothing reads. texts: metadata of format_prompts, as far as it is known."""
    for name in texts.get("unread", ()) if not recipe.evaluate.metrics else ():
        if name not in texts["rows"]["columns"] and name not in (recipe.data.ignore or ()):
            yield f"field {name} {UNUSED}"


def _check_vocabulary(plan: Plan, start: Lookup | None) -> None:
    """Raise ConfigError unless the model that training starts from has the vocabulary of this run's rows."""
    earlier, tokens = plan.found[start] if start else None, plan.steps[ROLES["tokens"]].artifact
    if earlier is not None and tokens is not None:
        check_vocabulary(plan.store, earlier.artifact, tokens)


def _check_run(recipe: Recipe, plan: Plan, until: str | None, parent: Callable[[str], Parent]) -> None:
    """Raise a TrnflowError if the training of a run is bound to fail. Data stages need neither vocabulary nor memory."""
    if until in DATA_STAGES:
        return
    if recipe.evaluate.harness:
        plan.resolver.ask_once(harness_source, recipe.evaluate.harness)  # which runs code of the tasks
    refuse_unknown_vocabulary(recipe, plan)
    refuse_what_cannot_fit(recipe, plan, *parent(ROLES["graphs"]))
