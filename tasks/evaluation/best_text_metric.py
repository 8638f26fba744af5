"""Measure a `train.best_metric` of generated texts: the weights of each evaluation answer the first prompts of validation.

The answers are greedy, and those that evaluate_model gets of the same weights in fp32. Costs, beside the texts, the
trained parameters written to scratch, and a second copy of the model in fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.evaluation.best_metric import SPLIT
from trnflow.tasks.evaluation.config import GenerationConfig
from trnflow.tasks.evaluation.generated_rows import Generations
from trnflow.tasks.evaluation.generation import prompts
from trnflow.tasks.model_folder.published_weights import model_without_values
from trnflow.tasks.model_folder.settings_files import end_ids, generation_settings
from trnflow.tasks.sources.model_source import generation_config
from trnflow.tasks.stage import Workdir, read_json
from trnflow.tasks.training.checkpoint.merged_weights import MergedWeights, Weights
from trnflow.tasks.training.checkpoint.shards import Reader
from trnflow.tasks.training.checkpoint.starting_weights import base_weights, starting_from
from trnflow.tasks.training.shared_types import PARAMETER

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from trnflow.tasks.training.selection import Validated


def measure(
    metric: Source, *, packed: Input, texts: Input, model: Source, warm_start: Input | None, out: Workdir, **unused: Any
) -> Callable[[Validated], float | None]:
    """Return what computes the mean of a metric over the answers of an evaluation's weights."""
    module, _, attribute = metric.location["function"].partition(":")
    function: Callable[[str, str], float | None] = getattr(import_module(module), attribute)
    given = metric.location["generation"]
    settings = GenerationConfig(prompts=given["prompts"], max_new_tokens=given["max_new_tokens"])
    asked = prompts(texts.path / f"{SPLIT}.parquet", settings.prompts)
    generations = Generations(asked, settings, packed.path / "tokenizer", texts.meta)

    def value(seen: Validated) -> float | None:
        assert seen.weights is not None
        answering = trained_model(seen.weights, model, warm_start, packed.meta).to(given["device"])
        write, values = generations.writer(answering), []
        for count, prompt in enumerate(asked, 1):
            line = write(prompt, sample=False)
            values.append(function(line["generated"], line["answer"]))
            out.progress(count, len(asked), "answers")
        known = [each for each in values if each is not None]
        return sum(known) / len(known) if known else None

    return value


def trained_model(weights: Input, base: Source, warm_start: Input | None, packed: Meta) -> PreTrainedModel:
    """Return a checkpoint as a language model of transformers, in fp32 on the CPU. packed: metadata of its rows."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    config = AutoConfig.for_model(**read_json(weights.path / "config.json"))
    stored = Reader(weights.path, PARAMETER)
    empty = model_without_values(weights.meta["task"], config)
    values: Weights = stored
    if not dict(empty.named_parameters()).keys() <= {*stored.names}:  # it holds only what was trained
        values = MergedWeights(weights, base_weights(starting_from(base, warm_start), empty), stored, empty)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(values.tensor(name))
    settings = generation_settings(config.to_dict(), generation_config(base), **end_ids(packed))
    model.generation_config = GenerationConfig(**settings)
    trained: PreTrainedModel = model.eval()
    return trained
