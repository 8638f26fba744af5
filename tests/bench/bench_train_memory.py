"""The memory estimate beside what training takes: on the CPU, engine native, each run in processes of its own.

    python -m tests.bench.bench_train_memory [--only NAME,...] [--heap]

held: by how much a process's peak of resident memory, over two updates, exceeds what was resident before the model was built
(torch, transformers and their threads are up by then); of the ranks the largest. Every tensor is a mapping of its own.
heap: the same under the worker's allocator, which keeps what is freed and can't fill every hole again: what a machine must have.
traced: the estimate of `plan --trace` and precompile, without its part `runtime`. ratio: traced / held; above 1 it is too large.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.training.memory.measured_memory import CASES, figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--heap", action="store_true", help="measure that too")
    arguments = parser.parse_args()
    print(f"{'':22} {'held':>8} {'traced':>8} {'ratio':>6} {'heap':>8}   MiB")
    for name in arguments.only.split(","):
        with tempfile.TemporaryDirectory() as folder:
            found = figures(CASES[name], Path(folder), with_heap=arguments.heap)
        held, traced, heap = ((size or 0) / 2**20 for size in found)
        print(f"{name:22} {held:8.0f} {traced:8.0f} {traced / held:6.2f} {heap:8.0f}", flush=True)


if __name__ == "__main__":
    main()
