"""Only people run the benches. What these need of the pipeline must still be there: each bench can be imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT

PROGRAMS = sorted(file.stem for file in Path(__file__).parent.glob("*.py") if not file.stem.startswith(("_", "test_")))
IMPORTS = """
import importlib, json, os, sys
import torch, transformers  # once for all
failed = {}
for name in json.loads(sys.argv[1]):
    if (child := os.fork()) == 0:
        importlib.import_module(f"tests.bench.{name}")
        os._exit(0)
    failed[name] = os.waitpid(child, 0)[1]
print(json.dumps({name: status for name, status in failed.items() if status}))
"""


@pytest.mark.slow
def test_each_bench_can_be_imported() -> None:
    command = [sys.executable, "-c", IMPORTS, json.dumps(PROGRAMS)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=300)
    assert json.loads(done.stdout) == {}, done.stderr
