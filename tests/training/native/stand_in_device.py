"""A stand-in for a chip: a device "neuron" that PyTorch takes for one (PrivateUse1). No chip is involved: its tensors lie in
the processor's memory, and each of its operators is the processor's."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves, tree_map

COPY_FROM, COPY_TO = torch.ops.aten._copy_from.default, torch.ops.aten._to_copy.default


class StandInTensor(torch.Tensor):
    """raw: the values, a tensor of the processor; operators: how many this process has run."""

    raw: torch.Tensor
    operators = 0

    @staticmethod
    def __new__(cls, raw: torch.Tensor) -> StandInTensor:
        layout = {"strides": raw.stride(), "storage_offset": raw.storage_offset(), "dtype": raw.dtype}
        made = torch.Tensor._make_wrapper_subclass(cls, raw.shape, **layout, device="neuron:0")  # type: ignore
        made.raw = raw
        return made

    @classmethod
    def __torch_dispatch__(cls, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(operator, *args, **(kwargs or {}))


def run(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator on the processor. What it changes in place stays the tensor that it was."""
    StandInTensor.operators += 1
    if operator is COPY_FROM:
        _raw(args[1]).copy_(_raw(args[0]))
        return args[1]
    result = operator(*tree_map(_raw, args), **tree_map(_raw, kwargs))
    if operator is COPY_TO and kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cpu":
        return result
    known = {id(value.raw): value for value in tree_leaves((args, kwargs)) if isinstance(value, StandInTensor)}
    return tree_map(lambda value: _wrapped(value, known), result)


def _raw(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "neuron" else value
    return value.raw if isinstance(value, StandInTensor) else value


def _wrapped(value: Any, known: dict[int, StandInTensor]) -> Any:
    if not isinstance(value, torch.Tensor) or isinstance(value, StandInTensor):
        return value
    return known[id(value)] if id(value) in known else StandInTensor(value)


def register() -> torch.library.Library:
    """Make "neuron" a device of this process, with gloo between the ranks; it lasts as long as what is returned."""
    from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

    module = _DummyBackendModule()
    module.default_generators = [torch.default_generator]  # type: ignore[attr-defined]
    module.max_memory_allocated = lambda: 0  # type: ignore[attr-defined]
    module.device_count = lambda: 2  # type: ignore[method-assign]
    module.set_device = lambda index: None  # type: ignore[attr-defined]
    _setup_privateuseone_for_python_backend("neuron", module)
    library = torch.library.Library("_", "IMPL")
    library.fallback(run, "PrivateUse1")
    dist.Backend.register_backend("neuron", _gloo, devices=["neuron"])
    return library


def _gloo(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
    return dist.ProcessGroupGloo(store, rank, size, timeout)
