"""Write what training gives: the weights of now, and what reads them."""

from __future__ import annotations

from pathlib import Path

from trnflow.tasks.artifact import Meta
from trnflow.tasks.config import keyed_params
from trnflow.tasks.kinds.preference import WEIGHED
from trnflow.tasks.stage import write_json
from trnflow.tasks.training.checkpoint import shards
from trnflow.tasks.training.checkpoint.adapter_slices import beside_initial
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.engine import Engine
from trnflow.tasks.training.model.adapters import adapter_document
from trnflow.tasks.training.model.lora import CONFIG
from trnflow.tasks.training.preference_losses import PREFERENCES
from trnflow.tasks.training.shared_types import Built
from trnflow.tasks.training.world import World

PUBLISHED = frozenset({
    "method", "lora", "optimizer", "learning_rate", "schedule", "warmup_ratio", "weight_decay", "global_batch", "epochs",
    "max_steps", "label_smoothing", "class_weights", "dtype", "seed",
    "learning_rate_mapping", "neftune_noise_alpha", "ema_decay",
})  # fmt: skip
"""Settings in the metadata, for the model card: what was trained, not on which devices."""


def published_settings(config: TrainConfig) -> Meta:
    """Return `settings` of the metadata."""
    settings = {name: value for name, value in keyed_params(config).items() if name in PUBLISHED}
    if config.freeze:
        settings["freeze"] = list(config.freeze)
    if config.objective in PREFERENCES:
        settings |= {name: getattr(config, name) for name in WEIGHED}
    return settings


def write_weights(folder: Path, config: TrainConfig, built: Built, engine: Engine, world: World) -> None:
    """Write the trained parameters as shards. Every rank calls it."""
    own_file = config.devices if world.rank == 0 else None
    slices = beside_initial(engine.slices(state=False), initial=built.initial, device=own_file)
    shards.write(folder, slices, {}, world.gather)


def write_documents(folder: Path, config: TrainConfig, built: Built) -> None:
    """Write `config.json`, of LoRA also `adapter_config.json`."""
    write_json(folder / "config.json", built.config)
    if config.method == "lora":
        write_json(folder / CONFIG, adapter_document(built))
