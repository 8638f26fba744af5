"""What differs between the kinds of device that train: a class each, entered in `KINDS`. torch is imported where it is
asked.

Neuron is driven through the device that AWS's PyTorch registers as "neuron"; that has not run on a chip.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trnflow.tasks.errors import ModelError

if TYPE_CHECKING:
    import torch

GIB = 1 << 30


class Cpu:
    """The processor; what differs on other devices is in the subclasses."""

    name = "cpu"
    backend = "gloo"
    """torch.distributed's."""

    runtime = 0.7 * GIB  # torch and transformers take 0.73 GiB (measured); on other devices rules of thumb
    """Bytes that are taken before the model is built."""

    chunk = 1 << 18
    """How many numbers are converted to fp32 at once: few enough for a processor's cache, enough to keep a GPU busy."""

    logits = 32 << 20
    """Bytes of the fp32 logits that are computed at once, but for wide layers; about four times as much is held."""

    positions = 1
    """To whose multiple a trimmed batch's length is rounded up."""

    has_offset = False
    """Whether the random generator is a seed and an offset, which are set without waiting for the device."""

    peaks: dict[str, float] = {}
    """{part of a device's name: FLOPs per second at half precision, dense}; the first match counts."""

    def check(self, count: int) -> None:
        pass  # other devices raise ModelError when torch finds fewer

    def join(self) -> None:
        pass  # other devices make that of this rank the current one

    def torch_device(self) -> torch.device:
        """Return the current device."""
        import torch

        return torch.device(self.name)

    def generator(self, device: torch.device) -> torch.Generator:
        """Return the generator of dropout."""
        import torch

        return torch.default_generator

    def supports(self, dtype: str) -> bool:
        """Return whether the device computes in `dtype`, rather than emulate it."""
        return True

    def memory(self) -> int | None:
        """Return the bytes of memory that torch reports of a device, or None."""
        return None

    def peak_memory(self) -> int | None:
        """Return the most bytes that this process had on the device; None for a device without its own memory."""
        return None

    def label(self) -> str:
        """Return the device's name, such as "NVIDIA H200" or "cpu"."""
        return self.name

    def peak_flops(self, label: str) -> float | None:
        """Return the FLOPs per second at half precision of the device with this `label`; None for an unknown one."""
        # an L40S is no L4
        return next((peak for part, peak in self.peaks.items() if re.search(rf"{part}\b", label)), None)

    def sent(self, host: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copy tensors to the device without waiting for earlier steps."""
        device = self.torch_device()
        return [tensor.to(device, non_blocking=True) for tensor in host]


class Accelerator(Cpu):
    """A device with memory of its own, by torch's module of its name."""

    called = "device"
    logits = 256 << 20

    def check(self, count: int) -> None:
        import torch

        # a device that a package adds has a module only where the package is installed
        module = getattr(torch, self.name, None)
        if module is None or not module.is_available():
            raise ModelError(
                f"train.device is {self.name}, and torch finds no {self.called} here",
                "set train.device=cpu, or check the driver",
            )
        if module.device_count() < count:
            raise ModelError(
                f"train.devices is {count}, and torch finds {module.device_count()} {self.called}s here",
                "lower train.devices",
            )

    def join(self) -> None:
        self._module().set_device(int(os.environ["LOCAL_RANK"]))

    def torch_device(self) -> torch.device:
        import torch

        return torch.device(self.name, self._module().current_device())

    def generator(self, device: torch.device) -> torch.Generator:
        generator: torch.Generator = self._module().default_generators[device.index]
        return generator

    def peak_memory(self) -> int | None:
        return int(self._module().max_memory_allocated())

    def _module(self) -> Any:
        import torch

        return torch.get_device_module(self.name)


class Cuda(Accelerator):
    """NVIDIA's GPUs."""

    name, called = "cuda", "GPU"
    backend = "cpu:gloo,cuda:nccl"
    runtime = 0.6 * GIB
    chunk = 1 << 24
    positions = 8  # tensor cores take groups of eight
    has_offset = True
    # NVIDIA's data sheets of H200 (989, SXM and NVL 835), H100 (989 SXM, 835 NVL, 756 PCIe), A100 (312), A10G (70), L4
    # (121), T4 (65, fp16) and V100 (125 SXM2), which quote sparse figures for Hopper, A10G and L4, halved here
    peaks = {
        "H200 NVL": 835e12,
        "H200": 989e12,
        "H100 PCIe": 756e12,
        "H100 NVL": 835e12,
        "H100": 989e12,
        "A100": 312e12,
        "A10G": 70e12,
        "L4": 121e12,
        "T4": 65e12,
        "V100-SXM2": 125e12,
    }

    def supports(self, dtype: str) -> bool:
        return dtype != "bfloat16" or self._module().get_device_capability() >= (8, 0)

    def memory(self) -> int | None:
        return int(self._module().get_device_properties(0).total_memory)

    def label(self) -> str:
        return str(self._module().get_device_name())

    def sent(self, host: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        # a copy from memory that is not pinned would wait
        return super().sent([tensor.pin_memory() for tensor in host])


class Neuron(Accelerator):
    """NeuronCores of AWS's Trainium."""

    name, called = "neuron", "NeuronCore"
    backend = "cpu:gloo,neuron:neuron"
    runtime = 1.0 * GIB
    chunk = 1 << 24
    peaks = {"trn1": 95e12}  # AWS Neuron, "Trainium Architecture": 190 a chip of two cores

    def label(self) -> str:
        """Return the EC2 instance type, or "neuron"."""
        try:
            return Path("/sys/devices/virtual/dmi/id/product_name").read_text().strip() or self.name
        except OSError:
            return self.name


KINDS: dict[str, Cpu] = {kind.name: kind for kind in (Cpu(), Cuda(), Neuron())}
"""{`train.device`: its kind}."""
