"""The values with which training begins: each rank reads its parts of them from the files, so that no rank holds a whole
model that lies in files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import Parameter

from trnflow.tasks.training.layout.slices import piece_slices
from trnflow.tasks.training.model.lora import BASE
from trnflow.tasks.training.partition_specs import Spec
from trnflow.tasks.training.shared_types import PARAMETER, Built
from trnflow.tasks.training.world import World

if TYPE_CHECKING:
    from trnflow.tasks.training.checkpoint.shards import Reader


class FirstWeights:
    """A model's first values: of the checkpoint `resumed`, else of the model's files, else those it was built with."""

    def __init__(self, built: Built, resumed: Reader | None, world: World, device: torch.device) -> None:
        self._built, self._resumed, self._world, self._device = built, resumed, world, device
        self._trained = built.trained().keys()
        self._shapes = {name: tuple(parameter.shape) for name, parameter in built.parameters().items()}
        self._held = {n: p.detach() for n, p in built.parameters().items() if not self._is_stored(n)}
        self._dtypes: Mapping[str, torch.dtype] = {}

    def part(self, name: str, spec: Spec, dtype: torch.dtype) -> Tensor:
        """Return this rank's part of a parameter, on the device, in memory of its own."""
        at = piece_slices(self._shapes[name], spec, self._world)
        if self._resumed is not None and name in self._trained:
            value = self._resumed.part(PARAMETER + name, at)
        elif name in self._held:
            value = self._held[name][at]
        else:
            value = self._built.stored.part(_stored_name(name), at)  # type: ignore[union-attr]
        # copied: what was read is a view of the mapped file, which would stay open
        return value.to(self._device, dtype, copy=True, memory_format=torch.contiguous_format)

    def blank(self, dtypes: Mapping[str, torch.dtype]) -> None:
        """Replace the model's parameters by ones without values, which are split without memory."""
        self._dtypes = dtypes
        for name, parameter in self._built.parameters().items():
            self._replace(parameter, torch.empty(self._shapes[name], dtype=dtypes[name], device="meta"))

    def place(self, specs: Mapping[str, Spec], known: Mapping[str, Tensor]) -> None:
        """Give the model's parameters, which may be split by now, their values. known: parts that were read before."""
        for name, parameter in self._built.parameters().items():
            dtype = self._dtypes[name]
            value = known[name].to(dtype, copy=True) if name in known else self.part(name, specs[name], dtype)
            # of a model from scratch the whole is freed before the next part is copied
            self._held.pop(name, None)
            self._replace(parameter, _like(parameter, value))

    def _is_stored(self, name: str) -> bool:
        stored = self._built.stored
        return stored is not None and name not in self._built.lacking and stored.has(_stored_name(name))

    def _replace(self, old: Parameter, value: Tensor) -> None:
        """Replace a parameter in all modules that share it."""
        new = Parameter(value, requires_grad=old.requires_grad)
        for module in self._built.model.modules():
            for leaf, parameter in module._parameters.items():
                if parameter is old:
                    module._parameters[leaf] = new


def _stored_name(name: str) -> str:
    """Return the name that a parameter had before peft's layers were put around it."""
    return name.replace(".token_adapter", "").replace(f"{BASE}.", ".")


def _like(parameter: Tensor, value: Tensor) -> Tensor:
    """Return this rank's part as a DTensor if the parameter is one."""
    from torch.distributed.tensor import DTensor

    if not isinstance(parameter, DTensor):
        return value
    # the whole is known: it need not be computed from the part
    return DTensor.from_local(
        value,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
