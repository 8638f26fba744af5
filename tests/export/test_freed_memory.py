"""Memory that an export has freed goes back to the system."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from tests.conftest import PROJECT

# glibc counts the blocks that it has mapped apart, and takes larger and larger ones from the heap as those are freed
LOOK = """
import ctypes
from trnflow.tasks.export_neuron import _free_large_tensors

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
                ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes, libc.mallinfo2.restype = ctypes.c_void_p, [ctypes.c_void_p], Info
libc.malloc.argtypes = [ctypes.c_size_t]

def mapped(size):
    before = libc.mallinfo2().hblks
    block = libc.malloc(size)
    apart = libc.mallinfo2().hblks - before
    libc.free(block)
    return apart

libc.free(libc.malloc(16 << 20))
first = mapped(4 << 20)
_free_large_tensors()
print(first, mapped(12 << 20))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="asks glibc 2.33 or newer")
def test_a_large_tensor_is_mapped_apart_and_so_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", LOOK], cwd=PROJECT, capture_output=True, text=True)
    assert done.stdout.split() == ["0", "1"], done.stderr
