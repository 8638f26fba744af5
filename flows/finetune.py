"""The pipeline: one line a stage."""

from __future__ import annotations

from typing import Any

from flows.call import Stages
from flows.settings import Recipe
from tasks.consolidate import consolidate
from tasks.evaluate_model import evaluate_model
from tasks.export_neuron import export_neuron
from tasks.format_prompts import format_prompts
from tasks.load_data import data_source, load_data
from tasks.model_source import model_source
from tasks.pack_chunks import pack_chunks
from tasks.precompile import precompile
from tasks.tokenize_text import tokenize_text
from tasks.train import train
from tasks.training.config import check_model

DATA_STAGES = ("load_data", "format_prompts", "tokenize_text", "pack_chunks")
STAGES = (*DATA_STAGES, "precompile", "train", "consolidate", "export_neuron", "evaluate_model")


def finetune(recipe: Recipe, stage: Stages) -> Any:
    """From rows to an evaluated, exported model; `stage` runs the stages, or only asks what would run."""
    source = stage.resolve(data_source, recipe.data)
    model = stage.resolve(model_source, recipe.model)
    training = recipe.training
    check_model(training, model)
    rows = stage(load_data, recipe.data, source)
    texts = stage(format_prompts, recipe.format, rows, model)
    tokens = stage(tokenize_text, recipe.tokenize, texts, model)
    packed = stage(pack_chunks, recipe.pack, tokens)
    start = stage.earlier(training.warm_start_from, "train.warm_start_from")
    if training.micro_batch == "auto":  # found by precompile: what train makes depends on it
        graphs = stage(precompile, training, model, packed)
        shards = stage(train, training, model, packed, start, graphs)
    else:
        graphs = stage.later(precompile, training, model, packed)
        shards = stage(train, training, model, packed, start, after=graphs)
    weights = stage(consolidate, recipe.consolidate, shards, model, start)
    exported = stage(export_neuron, recipe.export, weights)
    return stage(evaluate_model, recipe.evaluate, texts, packed, weights, exported)
