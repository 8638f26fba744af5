"""A further process of a stage, which calls own code, is held to the stage's permit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import PROJECT

WATCHED = """
import sys
from trnflow.tasks.errors import CodeError
from trnflow.tasks.launch.watched import watched
try:
    with watched():
        for name in sys.argv[1:]:
            open(name).close()
except CodeError as error:
    print(error.message)
"""


def test_own_code_in_a_further_process_reads_no_file_that_the_key_does_not_know(tmp_path: Path) -> None:
    known, other = (tmp_path / name for name in ("known.csv", "other.csv"))
    for file in (known, other):
        file.write_text("a\n")
    permit = {"stage": "format_prompts", "roots": [[f"{tmp_path}/", f"{tmp_path}/"]], "files": [str(known)]}
    permit |= {"exempt": [], "code": {}, "elsewhere": [], "held": False}
    (tmp_path / "permit").write_text(json.dumps(permit))
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, str(known), str(other)], cwd=PROJECT, capture_output=True, text=True,
        env={**os.environ, "TRNFLOW_PERMIT": str(tmp_path / "permit")}, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("format_prompts read other.csv")
