"""Deterministic kernels for engine native, because a resumed training promises the same bits as an uninterrupted one.

PyTorch refuses an operator that has no deterministic kernel on the device; `explain_refusal` turns that into one clear error.
PyTorch's warn_only mode is not used: some operators (memory-efficient attention) then vary from run to run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from trnflow.tasks.errors import ModelError
from trnflow.tasks.training.config import TrainConfig

REFUSED = re.compile(r"(\S+) does not have a deterministic implementation")  # PyTorch's text


def choose_kernels(config: TrainConfig) -> None:
    """Make PyTorch use only deterministic kernels in this process, or with `train.deterministic=false` any kernels."""
    import torch

    torch.use_deterministic_algorithms(config.deterministic)
    # not needed: no code here reads uninitialised memory
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextmanager
def explain_refusal(config: TrainConfig) -> Iterator[None]:
    """Context in which PyTorch's error about an operator without a deterministic kernel becomes a ModelError, which
    names the operator and what to set."""
    try:
        yield
    except RuntimeError as error:
        found = REFUSED.search(str(error))
        if found is None:
            raise
        raise ModelError(
            f"{found[1]} has no deterministic kernel on device {config.device}, and train.deterministic is true",
            "set train.deterministic=false; then two runs, and a resumed one, may differ in the last bits",
        ) from error
