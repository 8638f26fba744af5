"""Which parameters have a learning rate of their own."""

from __future__ import annotations

from trnflow.tasks.errors import ModelError
from trnflow.tasks.training.config import TrainConfig
from trnflow.tasks.training.model.lora import B
from trnflow.tasks.training.model.named_parts import has_part, parts_named
from trnflow.tasks.training.shared_types import Built


def rate_factors(config: TrainConfig, built: Built) -> dict[str, float]:
    """Return {trained parameter: how many times the common learning rate it has}; those with the common rate are left out.

    Raises ModelError when `train.learning_rate_mapping` names nothing that is trained, or what has other rates by others.
    """
    trained = built.trained()
    ratio = config.lora and config.lora.loraplus_lr_ratio
    # as peft's create_loraplus_optimizer
    fast = {name for name, p in trained.items() if f"{B}." in name or p.dim() == 1} if ratio else set[str]()
    model, rates = type(built.model).__name__, config.learning_rate_mapping
    named = parts_named(rates, list(trained), f"what is trained of {model}", "train.learning_rate_mapping")
    for pattern, rate in rates.items():
        got = {rates[part] for name, part in named.items() if has_part(name.split("."), pattern)}
        if pattern not in named.values() and got != {rate}:
            raise ModelError(
                f"train.learning_rate_mapping: all that {pattern} names has another rate by a part before it",
                f"write {pattern} first",
            )
    # memory is traced before the rows are known, and depends on no rate
    common = 1.0 if config.learning_rate == "auto" else config.learning_rate
    own = {name: rates[pattern] / common for name, pattern in named.items()}
    return {**dict.fromkeys(fast, float(ratio or 1)), **own}
