"""The settings of training that choose themselves where they are `auto`: `train.epochs`, `train.learning_rate`,
`train.class_weights`.

The plan puts values in their place once the rows are packed: keys hold the values, and no key this module's code.
docs/training.md has the figures behind the rule, and says which are measured here and which are published.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from trnflow.tasks.artifact import Artifact, Meta, Source
from trnflow.tasks.kinds.multi_label import MultiLabel
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.preference_losses import PREFERENCES

AUTO = "auto"
SETTINGS = ("epochs", "learning_rate", "class_weights")
"""The settings that take `auto`."""

FEWEST_EPOCHS, MOST_EPOCHS = 3, 20
FEW_OUTPUTS = 2
FEWEST_UPDATES = {True: 200, False: 300}
"""{whether a pretrained model learns at most FEW_OUTPUTS: updates}"""
UPDATES_AN_OUTPUT = 16
UPDATES_A_LABEL = 32  # where a row has several: of most labels it says no

# Highest learning rates. Measured: SMALL alone, on a model of width 384.
SMALL_WIDTH = 384
SMALL_RATES = {True: 1e-4, False: 3e-4}
"""{whether a pretrained model learns at most FEW_OUTPUTS: rate}: at 3e-4 two classes lose what the model knew."""
BASE_RATE = 5e-5  # BERT: of 2e-5 to 5e-5
LARGE_WIDTH, LARGE_RATE = 1024, 2e-5
LORA_RATES = {True: 4e-4, False: 2e-4}  # of encoders, as RoBERTa-base's in LoRA's paper; of language models
VECTORS_RATE = 2e-5  # sentence-transformers
COMPARING_RATE = 5e-6  # DPO
UNTRAINED_RATE = 1e-3  # nothing to forget: weights from nothing, or a head alone

WIDTHS = ("hidden_size", "d_model", "dim", "n_embd")
"""The names of the width in `config.json`."""


class Facts(NamedTuple):
    """What the rule reads.

    Attributes:
        task: Of the packed rows.
        rows: Chunks of train: of a task with targets its rows.
        outputs: Classes, labels or tags; 0 for a language model.
        width: Of the model; None if unknown.
        pretrained: Whether training starts from weights.
    """

    task: str
    rows: int
    outputs: int
    width: int | None
    pretrained: bool

    @property
    def is_soon_learnt(self) -> bool:
        return self.pretrained and self.outputs <= FEW_OUTPUTS


def open_settings(config: Any) -> list[str]:
    """Return the settings of a `TrainConfig` that are still `auto`."""
    return [name for name in SETTINGS if getattr(config, name) == AUTO]


def resolved(config: TrainConfig, inputs: Mapping[str, Any]) -> TrainConfig:
    """Return the config with values for `auto`; as it is without `auto`, or while the packed rows are not known.

    inputs: of precompile or train, by parameter name.
    """
    model, packed = inputs.get("model"), inputs.get("packed")
    if not open_settings(config) or not isinstance(packed, Artifact) or not isinstance(model, Source):
        return config
    return chosen(config, facts(model.identity, packed.meta, starts_warm=config.warm_start_from is not None))


def facts(model: Meta, packed: Meta, *, starts_warm: bool) -> Facts:
    """Return what the rule reads. model: a source's identity; packed: metadata of pack_chunks."""
    return Facts(
        task=packed["task"],
        rows=sum(packed["rows"]["train"].values()),
        outputs=len(packed.get("labels") or ()),
        width=width_of(model["config"]),
        pretrained=model["weights"] is not None or starts_warm,
    )


def chosen(config: TrainConfig, known: Facts) -> TrainConfig:
    """Return the config with values for `auto`.

    epochs: as many as give 16 updates for each output, 32 for each of several labels, and at least 300 (200 where a pretrained
    model learns one or two), from 3 to 20; 3 for language models, for texts that are compared, and where `max_steps` decides.
    learning_rate: by method, task, outputs and width. class_weights: balanced where a row has one class and the loss is built
    in, else none.
    """
    values: Meta = {}
    if config.epochs == AUTO:
        values["epochs"] = _epochs(config, known)
    if config.learning_rate == AUTO:
        values["learning_rate"] = _learning_rate(config, known)
    if config.class_weights == AUTO:
        # a loss of the user's may not read them, and is divided by their sum
        values["class_weights"] = "balanced" if kind_of(known.task).one_class and not config.loss else None
    return config.model_copy(update=values)


def _epochs(config: TrainConfig, known: Facts) -> int:
    kind = kind_of(known.task)
    if config.max_steps is not None or not kind.per_row or kind.apart:
        return FEWEST_EPOCHS
    whole = math.floor if config.last_batch == "drop" else math.ceil
    # few rows make short passes: what teaches is the number of updates
    each = UPDATES_A_LABEL if known.task == MultiLabel.name else UPDATES_AN_OUTPUT
    wanted = max(FEWEST_UPDATES[known.is_soon_learnt], each * known.outputs)
    epochs = math.ceil(wanted / max(1, whole(known.rows / config.global_batch)))
    return min(max(epochs, FEWEST_EPOCHS), MOST_EPOCHS)


def _learning_rate(config: TrainConfig, known: Facts) -> float:
    kind = kind_of(known.task)
    if not known.pretrained or config.method == "head":
        return UNTRAINED_RATE
    if config.objective in PREFERENCES and config.objective != "reward":
        return COMPARING_RATE
    if config.method == "lora":
        return LORA_RATES[kind.per_row]
    if kind.apart:
        return VECTORS_RATE
    if not kind.per_row or known.width is None:
        return BASE_RATE
    if known.width >= LARGE_WIDTH:
        return LARGE_RATE
    # rerankers begin from models that rank already, and no rate of theirs was measured
    small = known.width <= SMALL_WIDTH and not kind.queries
    return SMALL_RATES[known.is_soon_learnt] if small else BASE_RATE


def width_of(config: Meta) -> int | None:
    """Return a model's hidden size, or None. config: `identity["config"]` of a model's source."""
    fields = {**(config["pretrained"] or {}), **config["overrides"]}
    fields = fields.get("text_config") or fields
    return next((fields[name] for name in WIDTHS if isinstance(fields.get(name), int)), None)
