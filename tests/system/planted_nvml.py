"""A shared library with the functions of NVML that we call, which answers for a made-up machine."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

SOURCE = r"""
#include <stdio.h>
#include <string.h>
struct gpu { const char *name, *uuid; unsigned long long mib; int major, minor, of; };
static struct gpu gpus[] = { %s };
static const int count = %d, all = sizeof gpus / sizeof *gpus;
#define GPU(device) ((struct gpu *) device)
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { return snprintf(text, size, "%s") < 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = %d; return 0; }
int nvmlDeviceGetCount_v2(unsigned *number) { *number = count; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = gpus + index; return 0; }
int nvmlDeviceGetName(void *device, char *text, unsigned size) { return snprintf(text, size, "%%s", GPU(device)->name) < 0; }
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) { return snprintf(text, size, "%%s", GPU(device)->uuid) < 0; }
int nvmlDeviceGetMemoryInfo(void *device, unsigned long long *memory) { memory[0] = GPU(device)->mib << 20; return 0; }
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) {
  *major = GPU(device)->major; *minor = GPU(device)->minor; return GPU(device)->of >= 0 ? 2 : 0;
}
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *pending) {
  if (GPU(device)->major < 8) return 3;  /* not supported */
  *now = *pending = 0;
  for (int part = count; part < all; part++) if (gpus + gpus[part].of == GPU(device)) *now = 1;
  return 0;
}
int nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *number) { *number = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **part) {
  for (int at = count; at < all; at++)
    if (gpus + gpus[at].of == GPU(device) && index-- == 0) { *part = gpus + at; return 0; }
  return 6;  /* not found */
}
"""


class Card(NamedTuple):
    """A GPU; of a MIG device, `of` is the index of its GPU, and MIG devices come last."""

    name: str
    mib: int
    capability: tuple[int, int]
    of: int = -1


class Machine(NamedTuple):
    cards: tuple[Card, ...]
    driver: str = "570.86.15"
    cuda: tuple[int, int] = (12, 8)

    def uuid(self, index: int) -> str:
        return f"{'GPU' if self.cards[index].of < 0 else 'MIG'}-{index:08d}-aaaa"

    def library(self, folder: Path) -> Path:
        """Compile the library and return its file."""
        rows = ", ".join(
            f'{{"{card.name}", "{self.uuid(index)}", {card.mib}, {card.capability[0]}, {card.capability[1]}, {card.of}}}'
            for index, card in enumerate(self.cards)
        )
        whole = sum(card.of < 0 for card in self.cards)
        source, library = folder / "nvml.c", folder / "libnvidia-ml.so.1"
        source.write_text(SOURCE % (rows, whole, self.driver, self.cuda[0] * 1000 + self.cuda[1] * 10))
        subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", library, source], check=True)
        return library


T4, A10G = Card("Tesla T4", 15360, (7, 5)), Card("NVIDIA A10G", 23028, (8, 6))
H100, V100 = Card("NVIDIA H100 80GB HBM3", 81559, (9, 0)), Card("Tesla V100-SXM2-16GB", 16384, (7, 0))
K80 = Card("Tesla K80", 11441, (3, 7))
GTX = Card("NVIDIA GeForce GTX 1080 Ti", 11264, (6, 1))
PART = Card("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9984, (9, 0), of=0)

MACHINES = {
    "no GPU": None,
    "T4": Machine((T4,)),
    "A10G": Machine((A10G,)),
    "8 x H100": Machine((H100,) * 8),
    "V100": Machine((V100,)),
    "H100 with two MIG devices": Machine((H100, PART, PART)),
    "driver too old": Machine((A10G,), "470.82.01", (11, 4)),
    "K80": Machine((K80,)),
    "GTX 1080 Ti": Machine((GTX,)),
    "GTX 1080 Ti and A10G": Machine((GTX, A10G)),
}
