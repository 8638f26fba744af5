"""Compile and run the graphs of a StableHLO export on the CPU: by jax, which compiles a graph once, or by torch_xla, which
is always installed and compiles a graph again at every call.

A runner reads each weight from its file once and keeps the weight on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trnflow.tasks.artifact import Meta

if TYPE_CHECKING:
    import torch

Read = Callable[[str], "torch.Tensor"]
"""A function that returns the stored tensor of the given name."""


class ProgramRunner(Protocol):
    """Interface of `TorchXlaRunner` and `JaxRunner`: a runner compiles and runs the graphs of one export."""

    def __call__(self, function: Meta, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Run a graph once and return its logits. The graph is compiled first if needed. function: the graph's entry
        under "functions" in export.json; given: {input's name: tensor}."""


class TorchXlaRunner:
    """Runs the graphs of a StableHLO export by torch_xla, which compiles a graph again at every call. folder: the
    folder of the export; read: a function that returns a stored tensor (weight or constant) by name."""

    def __init__(self, folder: Path, read: Read) -> None:
        import torch_xla

        self.folder = folder
        self._device = torch_xla.device()
        self._read = read
        self._weights: dict[str, torch.Tensor] = {}

    def __call__(self, function: Meta, given: Mapping[str, torch.Tensor]) -> torch.Tensor:
        import torch_xla

        arguments = [
            given[item["name"]] if item["kind"] == "input" else self._weight(item["name"])
            for item in function["arguments"]
        ]
        bytecode = (self.folder / function["bytecode"]).read_bytes()
        logits: torch.Tensor = torch_xla._XLAC._run_stablehlo(bytecode, arguments)[0].cpu()
        return logits

    def _weight(self, name: str) -> torch.Tensor:
        if name not in self._weights:
            self._weights[name] = self._read(name).to(self._device)
        return self._weights[name]


class JaxRunner:
    """Runs the graphs of a StableHLO export by jax, which compiles a graph once. folder: the folder of the export;
    read: a function that returns a stored tensor (weight or constant) by name; optimised: compile with XLA's
    optimisation even where XLA_FLAGS turns it off, as in the stages that compile more than they run."""

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
        import torch

        arguments = [
            _jax_array(given[item["name"]]) if item["kind"] == "input" else self._weight(item["name"])
            for item in function["arguments"]
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
    """A tensor as a jax array, which shares its memory where jax can."""
    import jax

    return jax.dlpack.from_dlpack(tensor.contiguous())
