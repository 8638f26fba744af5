"""Count the bytes of the tensors that this process takes from safetensors files."""

from __future__ import annotations

from typing import Any

import torch


class Counting:
    """safetensors' open file, and the bytes of the tensors that are taken from it."""

    read = 0

    def __init__(self, opened: Any) -> None:
        self._opened = opened

    def __enter__(self) -> Counting:
        return Counting(self._opened.__enter__())

    def __exit__(self, *error: Any) -> Any:
        return self._opened.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)

    def get_tensor(self, name: str) -> torch.Tensor:
        return Counting._count(self._opened.get_tensor(name))

    def get_slice(self, name: str) -> Any:
        return CountingSlice(self._opened.get_slice(name))

    @staticmethod
    def _count(value: torch.Tensor) -> torch.Tensor:
        Counting.read += value.nbytes
        return value


class CountingSlice:
    def __init__(self, opened: Any) -> None:
        self.get_shape, self.get_dtype, self._opened = opened.get_shape, opened.get_dtype, opened

    def __getitem__(self, at: Any) -> torch.Tensor:
        return Counting._count(self._opened[at])


def count_reads() -> None:
    """Count in `Counting.read` from here on."""
    import safetensors
    import transformers.modeling_utils

    opened = safetensors.safe_open
    for module in (safetensors, transformers.modeling_utils):
        module.safe_open = lambda *args, **options: Counting(opened(*args, **options))  # type: ignore[attr-defined]
