"""Find this machine's NVIDIA GPUs and what the installed PyTorch can do with them, without importing torch.

The driver's library NVML is asked by ctypes, else the program nvidia-smi. Nothing here has run beside a GPU.
"""

from __future__ import annotations

import csv
import ctypes
import mmap
import os
import re
import subprocess
from collections import Counter
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

NVML = ("libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1")
SMI = ("nvidia-smi", "/usr/lib/wsl/lib/nvidia-smi")
ROCM = Path("/dev/kfd")
WSL = Path("/dev/dxg")
FIELDS = "name,uuid,memory.total,compute_cap,driver_version,mig.mode.current"


class Gpu(NamedTuple):
    """A GPU, or a MIG device.

    memory: bytes; capability: CUDA's, such as (8, 6); parts: the MIG devices of a GPU in MIG mode, else None.
    """

    name: str
    uuid: str
    memory: int
    capability: tuple[int, int]
    parts: tuple[Gpu, ...] | None = None

    @property
    def gib(self) -> float:
        """The memory in GiB, rounded down to a tenth."""
        return self.memory * 10 // 2**30 / 10


class Driver(NamedTuple):
    """NVIDIA's driver: its version, such as "550.54.14", the newest CUDA that it knows, and its GPUs by PCI address."""

    gpus: tuple[Gpu, ...] = ()
    version: str = ""
    cuda: tuple[int, int] = (0, 0)


class Torch(NamedTuple):
    """The installed PyTorch: version; CUDA and ROCm that it was built with, or ""; its architectures, as "sm_80"."""

    version: str
    cuda: str = ""
    hip: str = ""
    architectures: tuple[str, ...] = ()

    def runs(self, capability: tuple[int, int]) -> bool:
        """Return whether the build has code for GPUs of this capability, or code that the driver can translate."""
        for kind, digits in (name.rstrip("a").split("_") for name in self.architectures):
            built = int(digits[:-1]), int(digits[-1])
            if built <= capability and (kind == "compute" or built[0] == capability[0]):
                return True
        return False


class Usable(NamedTuple):
    """The GPUs that training can use, all of one kind; without any, `why`."""

    gpus: tuple[Gpu, ...] = ()
    why: str = ""
    driver: str = ""

    def __str__(self) -> str:
        if not self.gpus:
            return self.why
        count = f"{len(self.gpus)} x " if len(self.gpus) > 1 else ""
        each = " each" if len(self.gpus) > 1 else ""
        where = ", WSL" if WSL.exists() else ""
        return f"{count}{self.gpus[0].name} ({self.gpus[0].gib:g} GiB{each}, driver {self.driver}{where})"


def usable_gpus(environ: Mapping[str, str] = os.environ) -> Usable:
    """Return the GPUs that training can use here, in a process with these variables."""
    driver = by_nvml() or by_smi()
    if not driver or not driver.gpus:
        amd = ROCM.exists()
        return Usable(why="the AMD GPU here needs ROCm, which is not supported" if amd else "no NVIDIA GPU was found")
    return usable(driver, installed_torch(), environ)


def usable(driver: Driver, torch: Torch, environ: Mapping[str, str]) -> Usable:
    """Return those of the GPUs that CUDA shows to a process, and that the driver and PyTorch fit."""
    gpus = visible(driver.gpus, environ)
    if not gpus:
        names = Counter(gpu.name for gpu in driver.gpus)
        shown = environ.get("CUDA_VISIBLE_DEVICES")
        hidden = f"CUDA_VISIBLE_DEVICES={shown} hides" if shown is not None else "MIG mode has no device on"
        return Usable(why=f"{hidden} {', '.join(f'{count} x {name}' for name, count in names.items())}")
    if torch.hip:
        return Usable(why=f"torch {torch.version} is built for ROCm, which is not supported")
    if not torch.cuda:
        return Usable(why=f"{gpus[0].name} is here, but torch {torch.version} is built without CUDA")
    if driver.cuda[0] < int(torch.cuda.partition(".")[0]):
        knows = f"driver {driver.version} knows CUDA {driver.cuda[0]}.{driver.cuda[1]}"
        return Usable(
            why=f"{gpus[0].name}: {knows}, and torch {torch.version} needs CUDA {torch.cuda}: update the driver"
        )
    fitting = [gpu for gpu in gpus if torch.runs(gpu.capability)]
    if not fitting:
        has = " ".join(torch.architectures)
        number = "{}.{}".format(*gpus[0].capability)
        return Usable(why=f"{gpus[0].name} has capability {number}, and torch {torch.version} has code for {has}")
    # torch numbers the visible GPUs from 0: those that train are the first ones, and of one kind
    first = gpus[: next((at for at, gpu in enumerate(gpus) if gpu[2:4] != gpus[0][2:4]), len(gpus))]
    if fitting[0] != gpus[0]:
        return Usable(
            why=f"{gpus[0].name}, the first of several, is too old for torch: name others in CUDA_VISIBLE_DEVICES"
        )
    return Usable(first, driver=driver.version)


def visible(gpus: tuple[Gpu, ...], environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA shows to a process, in CUDA's order; of MIG devices one."""
    # CUDA's own order, unless told otherwise, is by speed
    by_address = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    ordered = gpus if by_address else tuple(sorted(gpus, key=lambda gpu: (gpu.capability, gpu.memory), reverse=True))
    shown = _named(ordered, environ["CUDA_VISIBLE_DEVICES"]) if "CUDA_VISIBLE_DEVICES" in environ else ordered
    whole = tuple(gpu for gpu in shown if gpu.parts is None and not gpu.uuid.startswith("MIG"))
    parts = [part for gpu in shown for part in ((gpu,) if gpu.uuid.startswith("MIG") else gpu.parts or ())]
    return whole or tuple(parts[:1])


def _named(gpus: tuple[Gpu, ...], names: str) -> tuple[Gpu, ...]:
    """Return the GPUs and MIG devices that CUDA_VISIBLE_DEVICES names by index or beginning of the UUID."""
    shown: list[Gpu] = []
    everything = [*gpus, *(part for gpu in gpus for part in gpu.parts or ())]
    for name in (text.strip() for text in names.split(",")):
        if name.isdecimal():
            match = list(gpus[int(name) : int(name) + 1])
        else:
            match = [gpu for gpu in everything if name.startswith(("GPU-", "MIG-")) and gpu.uuid.startswith(name)]
        if len(match) != 1:
            break  # CUDA shows none behind a name that is none
        shown += match
    return () if len({*shown}) < len(shown) else tuple(shown)  # nor any if one is named twice


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class _Nvml:
    """The functions of NVML; a call raises OSError where NVML returns an error."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, f"nvml{name}", lambda *_: 13)(*arguments)  # 13: function not found
        if code:
            raise OSError(f"nvml{name}: {code}")

    def text(self, name: str, *arguments: Any) -> str:
        buffer = ctypes.create_string_buffer(96)
        self.call(name, *arguments, buffer, 96)
        return buffer.value.decode(errors="replace")

    def number(self, name: str, *arguments: Any) -> int:
        value = ctypes.c_int()
        self.call(name, *arguments, ctypes.byref(value))
        return value.value

    def handle(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.byref(handle))
        return handle

    def gpu(self, device: ctypes.c_void_p, capability: tuple[int, int] | None = None) -> Gpu:
        memory, major, minor = _Memory(), ctypes.c_int(), ctypes.c_int()
        self.call("DeviceGetMemoryInfo", device, ctypes.byref(memory))
        if capability is None:
            self.call("DeviceGetCudaComputeCapability", device, ctypes.byref(major), ctypes.byref(minor))
        known = capability or (major.value, minor.value)
        name, uuid = self.text("DeviceGetName", device), self.text("DeviceGetUUID", device)
        parts = None if capability else self._parts(device, known)
        return Gpu(name, uuid, memory.total, known, parts)

    def _parts(self, device: ctypes.c_void_p, capability: tuple[int, int]) -> tuple[Gpu, ...] | None:
        """Return the MIG devices of a GPU, None if it is not in MIG mode."""
        mode, pending, parts = ctypes.c_int(), ctypes.c_int(), []
        try:
            self.call("DeviceGetMigMode", device, ctypes.byref(mode), ctypes.byref(pending))
            most = self.number("DeviceGetMaxMigDeviceCount", device) if mode.value else 0
        except OSError:  # a GPU or a driver without MIG
            return None
        for index in range(most):
            try:
                parts.append(self.gpu(self.handle("DeviceGetMigDeviceHandleByIndex", device, index), capability))
            except OSError:  # places without a device
                continue
        return tuple(parts) if mode.value else None


def by_nvml() -> Driver | None:
    """Return the driver and its GPUs as NVML describes them; None where there is no driver."""
    for path in NVML:
        try:
            nvml = _Nvml(ctypes.CDLL(path))
            nvml.call("Init_v2")
        except OSError:
            continue
        try:
            cuda = nvml.number("SystemGetCudaDriverVersion_v2")
            handles = [
                nvml.handle("DeviceGetHandleByIndex_v2", index) for index in range(nvml.number("DeviceGetCount_v2"))
            ]
            driver = nvml.text("SystemGetDriverVersion")
            return Driver(tuple(map(nvml.gpu, handles)), driver, (cuda // 1000, cuda % 1000 // 10))
        except OSError:
            continue
        finally:
            nvml.call("Shutdown")
    return None


def by_smi() -> Driver | None:
    """Return what nvidia-smi prints; None if it can't be run."""
    for program in SMI:
        try:
            rows = _printed(program, f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits")
            listed, about = _printed(program, "-L"), _printed(program)
        except (OSError, subprocess.SubprocessError):
            continue
        cuda = re.search(r"CUDA Version: (\d+)\.(\d+)", about)
        parts = re.split(r"^GPU .*$", listed, flags=re.MULTILINE)[1:]
        gpus, driver = [], ""
        for number, row in enumerate(csv.reader(rows.splitlines(), skipinitialspace=True)):
            name, uuid, memory, capability, driver, mig = row
            major, minor = map(int, capability.split("."))
            inside = re.findall(r"MIG \S*?(\d+)gb\S*.*?UUID: (MIG-[^)]+)", parts[number]) if mig == "Enabled" else None
            of = None if inside is None else tuple(
                Gpu(f"{name} MIG {size}gb", part, int(size) << 30, (major, minor)) for size, part in inside
            )  # fmt: skip
            gpus.append(Gpu(name, uuid, int(memory) << 20, (major, minor), of))
        return Driver(tuple(gpus), driver, (int(cuda[1]), int(cuda[2])) if cuda else (0, 0))
    return None


def _printed(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout


def installed_torch() -> Torch:
    """Return what the files of the installed PyTorch say of its build."""
    spec = find_spec("torch")
    return torch_in(Path(str(spec.origin)).parent) if spec and spec.origin else Torch("(not installed)")


def torch_in(folder: Path) -> Torch:
    """Return the build of a PyTorch, read from the package's files: nothing is imported."""
    known = dict(re.findall(r"^(__version__|cuda|hip)\b[^=]*= '([^']+)'", (folder / "version.py").read_text(), re.M))
    architectures: list[str] = []
    library = folder / "lib/libtorch_python.so"
    if "cuda" in known and library.is_file():
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            # as `torch.cuda.get_arch_list()` has them: one text, such as "sm_70 sm_75 sm_80"
            match = re.search(rb"(?:sm|compute)_\d+a?(?: (?:sm|compute)_\d+a?)*\0", data)
            architectures = match[0][:-1].decode().split() if match else []
    return Torch(known.get("__version__", "?"), known.get("cuda", ""), known.get("hip", ""), tuple(architectures))
