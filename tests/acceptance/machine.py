"""A run of the toy pipeline in a process of its own.

python -m tests.acceptance.machine ROOT FOLDER [LEAST]     prints what became of each stage, in JSON
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.acceptance.toy_runs import Machine

if __name__ == "__main__":
    root, folder, *least = sys.argv[1:]
    print(json.dumps(Machine(root, Path(folder)).actions(*map(int, least))))
