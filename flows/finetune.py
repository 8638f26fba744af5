"""The fine-tuning pipeline: its nine stages in order, and the function that passes each stage's output to the next
stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.runner.call import Call, Stages
from trnflow.flows.runner.pipeline import Parent, Pipeline
from trnflow.flows.runner.planning.memory_check import refuse_what_cannot_fit
from trnflow.flows.runner.planning.planner import Planner
from trnflow.flows.runner.vocabulary import refuse_unknown_vocabulary
from trnflow.tasks.artifact import Artifact, Meta
from trnflow.tasks.consolidate import consolidate
from trnflow.tasks.evaluate_model import evaluate_model
from trnflow.tasks.export_neuron import export_neuron
from trnflow.tasks.format_prompts import format_prompts
from trnflow.tasks.load_data import data_source, load_data
from trnflow.tasks.pack_chunks import pack_chunks
from trnflow.tasks.precompile import precompile
from trnflow.tasks.sources.model_source import model_source
from trnflow.tasks.stage import of
from trnflow.tasks.tokenize_text import check_tokenizer, tokenize_text
from trnflow.tasks.train import train
from trnflow.tasks.training.config import check_model

FUNCTIONS: tuple[Callable[..., Meta], ...] = (
    load_data, format_prompts, tokenize_text, pack_chunks, precompile, train, consolidate, export_neuron, evaluate_model,
)  # fmt: skip
STAGES = tuple(of(function).name for function in FUNCTIONS)
DATA_STAGES = STAGES[: STAGES.index("pack_chunks") + 1]
KINDS = {described.name: described.kind for described in map(of, FUNCTIONS)}
"""Stage name -> kind of the artifact that the stage makes."""


def finetune(recipe: Recipe, stage: Stages, frozen: Artifact | None = None) -> Any:
    """Call the stages that lead from data rows to an evaluated, exported model, in order.

    Args:
        recipe: Gives each stage its config.
        stage: The object through which each stage is called: it runs the stage or takes its artifact from the store
            (`Runner`), or only finds out what a run would do (`Planner`).
        frozen: Rows whose texts load_data drops from the split `train`; `retrain` passes the frozen test rows on which
            it compares models.

    Returns:
        The artifact of the last stage, evaluate_model; an `Unknown` (a placeholder) in a plan in which that stage has
        yet to run.

    Raises:
        TrnflowError: The settings do not fit the model or its tokenizer, or a stage failed.
        Stop: The run ends after an earlier stage (`--until`), and that stage is done.
    """
    source = stage.resolve(data_source, recipe.data)
    model = stage.resolve(model_source, recipe.model)
    training = recipe.training
    check_model(training, model)
    check_tokenizer(recipe.tokenize, model)
    rows = stage(load_data, recipe.data, source, frozen)
    texts = stage(format_prompts, recipe.format, rows, model)
    tokens = stage(tokenize_text, recipe.tokenize, texts, model)
    packed = stage(pack_chunks, recipe.pack, tokens)
    earlier = stage.find_model(training.warm_start_from, "train.warm_start_from")
    stage.check_vocabulary(earlier, tokens)
    needs: tuple[Any, ...] = ()
    after = None
    if training.micro_batch == "auto":  # found by precompile: what train makes depends on it
        needs = (stage(precompile, training, model, packed),)
    else:
        after = stage.defer(precompile, training, model, packed)
    start = stage.starting_model(earlier, train, training, model, packed, None, *needs, after=after)
    shards = stage(train, training, model, packed, start, *needs, after=after)
    weights = stage(consolidate, recipe.consolidate, shards, model, start, texts, tokens)
    exported = stage(export_neuron, recipe.export, weights)
    evaluate = recipe.evaluate.on_device_of(training.device)
    return stage(evaluate_model, evaluate, texts, packed, weights, exported, model, start)


def check_finetune(recipe: Recipe, planner: Planner, until: str | None, parent_of: Callable[[Call], Parent]) -> None:
    """Raise a TrnflowError before a run if its training is bound to fail: if the vocabulary of the model that training
    starts from can't be compared with that of this run's rows, or if training can't fit in the device's memory.

    Args:
        planner: The plan of the run: what the run would do with each stage.
        until: The stage after which the run stops; None for the last. If that is a data stage, nothing is checked.
        parent_of: Returns the environment variables and modules of the warm parent of a call, the process from which
            the stage's process is forked.
    """
    if until in DATA_STAGES:
        return
    refuse_unknown_vocabulary(recipe, planner.outcomes)
    refuse_what_cannot_fit(recipe, planner, *parent_of(planner.calls["precompile"]))


FINETUNE = Pipeline(finetune, STAGES, check_finetune)
