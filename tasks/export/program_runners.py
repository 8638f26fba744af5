"""Run the graphs of a StableHLO export on the CPU: by jax, or by torch_xla, which compiles a graph at every call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from trnflow.tasks.artifact import Meta

Read = Callable[[str], "torch.Tensor"]
"""Returns the stored tensor of a name."""


class ProgramRunner(Protocol):
    """Compiles and runs the graphs of one export."""

    def __call__(self, function: Meta, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return a graph's logits. function: its entry in export.json."""


class TorchXlaRunner:
    """Runs graphs by torch_xla."""

    def __init__(self, folder: Path, read: Read) -> None:
        import torch_xla

        self.folder = folder
        self._device = torch_xla.device()
        self._read = read
        self._weights: dict[str, torch.Tensor] = {}

    def __call__(self, function: Meta, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
        import torch_xla

        arguments = [
            given[argument["name"]] if argument["kind"] == "input" else self._weight(argument["name"])
            for argument in function["arguments"]
        ]
        bytecode = (self.folder / function["bytecode"]).read_bytes()
        logits: torch.Tensor = torch_xla._XLAC._run_stablehlo(bytecode, arguments)[0].cpu()
        return logits

    def _weight(self, name: str) -> torch.Tensor:
        if name not in self._weights:
            # each weight is read once and kept on the device
            self._weights[name] = self._read(name).to(self._device)
        return self._weights[name]


class JaxRunner:
    """Runs graphs by jax, which compiles each once.

    optimised: Compile with XLA's optimisation even where XLA_FLAGS turns it off.
    """

    def __init__(self, folder: Path, read: Read, *, optimised: bool = False) -> None:
        import jax

        jax.config.update("jax_enable_x64", True)  # else input_ids become int32
        self.folder = folder
        self._device = jax.local_devices(backend="cpu")[0]
        self._read = read
        self._optimised = optimised
        self._weights: dict[str, Any] = {}
        self._compiled: dict[str, Any] = {}

    def __call__(self, function: Meta, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
        arguments = [
            _jax_array(given[argument["name"]]) if argument["kind"] == "input" else self._weight(argument["name"])
            for argument in function["arguments"]
        ]
        results = self._executable(function["bytecode"]).execute_sharded(arguments)
        logits: torch.Tensor = torch.utils.dlpack.from_dlpack(results.disassemble_into_single_device_arrays()[0][0])
        return logits

    def _executable(self, name: str) -> Any:
        if name not in self._compiled:
            from jaxlib.xla_client import CompileOptions, DeviceList

            devices, options = DeviceList((self._device,)), CompileOptions()
            if self._optimised:
                options.executable_build_options.debug_options.xla_backend_optimization_level = 3
            bytecode = (self.folder / name).read_bytes()
            self._compiled[name] = self._device.client.compile_and_load(bytecode, devices, options)
        return self._compiled[name]

    def _weight(self, name: str) -> Any:
        if name not in self._weights:
            self._weights[name] = _jax_array(self._read(name))
        return self._weights[name]


def _jax_array(tensor: torch.Tensor) -> Any:
    """Return a tensor as a jax array, sharing memory where jax can."""
    import jax

    return jax.dlpack.from_dlpack(tensor.contiguous())
