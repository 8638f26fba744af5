"""Which environment variables modules read when they are imported, in Python and in C.

python -m tests.helpers.read_variables MODULE...    prints {"names", "scans"}: those read in Python
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


class Read(NamedTuple):
    """names: variables that were asked for; scans: files that went through all of them."""

    names: set[str]
    scans: set[str]


def read_on_import(modules: Iterable[str], folder: Path, environ: dict[str, str]) -> Read:
    """Import modules in a process with these variables alone. folder: for the compiled library."""
    library, heard = folder / "read_variables.so", folder / "names"
    source = Path(__file__).with_suffix(".c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    done = subprocess.run(
        [sys.executable, "-m", __name__, *modules],
        env={**environ, "LD_PRELOAD": str(library), "READ_VARIABLES": str(heard)},
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    told = json.loads(done.stdout.splitlines()[-1])
    return Read({*told["names"], *heard.read_text().splitlines()}, {*told["scans"]})


def _main(modules: list[str]) -> None:
    names, scans = set[str](), set[str]()

    class Watched(os._Environ):  # type: ignore[type-arg]
        def __getitem__(self, name: str) -> str:
            names.add(name)
            return super().__getitem__(name)

        def __contains__(self, name: object) -> bool:
            names.add(str(name))
            return super().__contains__(name)

        def __iter__(self) -> Iterator[str]:
            frame = sys._getframe(1)
            while frame.f_back and frame.f_code.co_filename.startswith("<frozen"):
                frame = frame.f_back
            scans.add(frame.f_code.co_filename)
            return super().__iter__()

    os.environ.__class__ = Watched
    for module in modules:
        importlib.import_module(module)
    print("\n" + json.dumps({"names": sorted(names), "scans": sorted(scans)}))


if __name__ == "__main__":
    _main(sys.argv[1:])
