"""Engine native's optimizers by name."""

from __future__ import annotations

from trnflow.tasks.training.native.adamw_8bit import AdamW8bit
from trnflow.tasks.training.native.updates import Adafactor, FusedAdamW

UPDATES: dict[str, type[FusedAdamW | Adafactor]] = {
    "adamw": FusedAdamW,
    "adamw_8bit": AdamW8bit,
    "adafactor": Adafactor,
}
"""{`train.optimizer`: the class that holds its state and updates weights}."""
