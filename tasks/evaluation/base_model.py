"""Load the language model that training started from, in architecture and dtype of the trained model.

The trained model's tokenizer serves both: embeddings of new tokens are as training began with them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import Input, Source
from trnflow.tasks.errors import ModelError
from trnflow.tasks.sources.model_source import model_folder
from trnflow.tasks.training.checkpoint.grown_weights import load_grown
from trnflow.tasks.training.checkpoint.starting_weights import load_start, starting_from

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def load_base_model(source: Source, warm_start: Input | None, trained: Path) -> PreTrainedModel:
    """Return the model that training started from, on the CPU and in inference mode. Raises ModelError.

    source: the base model; warm_start: the artifact whose weights replaced its; trained: the trained model's folder.
    """
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(trained, local_files_only=True)
    start = starting_from(source, warm_start)
    try:
        model = _from_checkpoint(start, config) if start.identity["weights"] is None else _from_folder(start, config)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(
            f"the model that training started from can't be loaded: {error}",
            "check model.source and train.warm_start_from, or set evaluate.generation.before=false",
        ) from error
    # texts of the two models then differ by their weights alone
    model.generation_config = _generation_settings(trained, config)
    return model.eval()


def _from_folder(source: Source, config: Any) -> Any:
    from transformers import AutoConfig
    from transformers.models.auto import AutoModelForCausalLM

    own = AutoConfig.from_pretrained(model_folder(source), local_files_only=True)
    if own.get_text_config().vocab_size < config.get_text_config().vocab_size:
        return load_grown("causal_lm", config, source, str(config.dtype).removeprefix("torch."))[0]
    return AutoModelForCausalLM.from_pretrained(
        model_folder(source), config=config, dtype=config.dtype, use_safetensors=True, local_files_only=True
    )


def _from_checkpoint(source: Source, config: Any) -> Any:
    from transformers.models.auto import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(config, dtype=config.dtype)
    load_start(source, model)
    return model


def _generation_settings(folder: Path, config: Any) -> Any:
    from transformers import GenerationConfig

    if (folder / "generation_config.json").exists():
        return GenerationConfig.from_pretrained(folder, local_files_only=True)
    return GenerationConfig.from_model_config(config)
