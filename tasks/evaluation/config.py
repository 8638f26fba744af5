"""Settings of predicting, and what is in its key: light, because scoring imports them, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from trnflow.tasks.artifact import Artifact, Input, Json, Meta, Source
from trnflow.tasks.config import BatchRows, NonNegativeCount, Positive, PositiveCount, Seed, StageConfig, Tokens
from trnflow.tasks.errors import DataError
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.stage import Keyed, identities
from trnflow.tasks.system.devices import cores, device_kind
from trnflow.tasks.system.model_process import model_environ

GENERATIONS = "generations.jsonl"


class GenerationConfig(StageConfig):
    """Settings by which `evaluate_model` generates texts with a language model for its report, each greedily and
    sampled."""

    prompts: NonNegativeCount = 5
    """The number of prompts that are taken from the evaluated split. Exact match and ROUGE are computed on them."""
    max_new_tokens: Tokens = 64
    """The most tokens of a generated text."""
    before: bool = True
    """Generate the texts with the model that training started from too, and show them beside the trained model's. From
    scratch there is no such model. Costs reading the model, and as many tokens again."""
    temperature: Positive = 0.9
    """The temperature of sampling: lower is more predictable."""
    top_k: PositiveCount = 50
    """Sample from this many most likely tokens."""
    top_p: Positive = 0.9
    """Sample from the most likely tokens whose probabilities sum to this."""
    seed: Seed = 0
    """The seed of sampling. Each prompt gets a seed of its own, made of this one and the prompt's text."""


class SplitConfig(StageConfig):
    """Settings of `fit_baseline`."""

    split: Literal["train", "validation", "test"] = "test"
    """The split to evaluate on. Where the data has no test split, validation is used, and the report says so."""


class PredictConfig(SplitConfig):
    """Settings of `predict_rows`: what they change is predicted again."""

    device: Literal["cpu", "cuda"] | None = None
    """The device that evaluates. Default: `cuda` where `train.device` is `cuda`, else `cpu`."""
    batch: BatchRows = 32
    """The rows of a forward pass."""
    export_rows: NonNegativeCount | None = None
    """The rows on which the exported model is compared with the trained one. Default: 256, or as many as are estimated to
    take 10 minutes. Without the extra `jax`: as many as are estimated to take a second, but at least one call of each
    length. 0 skips the comparison."""
    prompts: tuple[str | tuple[dict[str, Any], ...], ...] = ()
    """Further prompts for a language model: texts, or lists of messages (`role`, `content`), which the tokenizer's chat
    template turns into texts."""
    generation: GenerationConfig = GenerationConfig()
    """The texts that a language model generates for the report."""

    def on_device_of(self, training: str) -> Self:
        """Return a copy with `device` filled in. training: `train.device`."""
        follows: Literal["cpu", "cuda"] = "cuda" if training == "cuda" else "cpu"
        return self.model_copy(update={"device": self.device or follows})

    def generates_before(self, task: str) -> bool:
        """Return whether the report shows texts of the model that training started from, if there is one."""
        return not kind_of(task).per_row and self.generation.before and bool(self.prompts or self.generation.prompts)


def environ(config: PredictConfig) -> dict[str, str]:
    """Return the environment of the predicting process, and of the evaluating one."""
    return model_environ()


def accelerator(config: PredictConfig) -> Meta:
    """Return the part `accel` of the key."""
    # the last bits of sums depend on both: else two machines would make different artifacts under one key
    return {"device": device_kind(config.device or "cpu"), "threads": cores()}


def predict_inputs(config: PredictConfig, inputs: Keyed) -> Meta:
    """Return the table `inputs` of the key: the texts only for generations, and the weights that training started from if
    they generate, too."""
    base, start, weights = inputs.get("base"), inputs.get("warm_start"), inputs["weights"]
    assert isinstance(weights, Artifact) and not isinstance(base, Artifact) and not isinstance(start, Source)
    task = weights.meta["task"]
    unread = {"base", "warm_start", *(("texts",) if kind_of(task).per_row else ())}
    keyed = identities(config, {name: item for name, item in inputs.items() if name not in unread})
    before = base_weights(base, start)
    return {**keyed, "base": before} if before and config.generates_before(task) else keyed


def base_weights(base: Source | None, warm_start: Artifact | Input | None) -> Json:
    """Return the identity of the weights that training started from, or None."""
    return warm_start.digest if warm_start is not None else base and base.identity["weights"]


def split_of(config: SplitConfig, chunks: Mapping[str, Mapping[str, int]]) -> str:
    """Return the split to evaluate on: the configured one, or validation where test is missing. Raises DataError.

    chunks: {split: {length: chunks}}."""
    there = [name for name, counts in chunks.items() if any(counts.values())]
    if config.split in there:
        return config.split
    if config.split == "test" and "validation" in there:
        return "validation"
    raise DataError(
        f"evaluate.split: the data has no rows in its {config.split} split (it has: "
        f"{', '.join(sorted(there)) or 'none'})",
        "let load_data make a test split by ratio, or set evaluate.split to one that is there",
    )
