"""The page docs/python.md, executed as one notebook by Jupyter's client and by marimo: every cell runs, and the metrics are
those that `trnflow runs --json` lists."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import RunClient
from tests.conftest import PROJECT
from tests.helpers.products import few

pytestmark = pytest.mark.slow  # each notebook trains three small models

CELLS = re.findall(r"```python\n(.*?)```", (PROJECT / "docs" / "python.md").read_text(), re.DOTALL)
LAST = "import json\nprint('METRICS', json.dumps({one.id: one.metrics for one in (run, fast)}))"

JUPYTER = """
import json, sys
import nbformat
from nbclient import NotebookClient
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in json.loads(sys.argv[1])])
NotebookClient(notebook, timeout=900).execute()
print(json.dumps([cell["outputs"] for cell in notebook.cells]))
"""
MARIMO = """
import json, subprocess, sys
from pathlib import Path
import nbformat
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in json.loads(sys.argv[1])])
Path("page.ipynb").write_text(nbformat.writes(notebook))
for arguments in (["convert", "page.ipynb", "-o", "page.py"],
                  ["export", "ipynb", "page.py", "--include-outputs", "-o", "done.ipynb"]):
    done = subprocess.run([sys.executable, "-m", "marimo", *arguments], capture_output=True, text=True, input="y\\n")
    assert done.returncode == 0, done.stdout + done.stderr
print(json.dumps([cell.get("outputs", []) for cell in json.loads(Path("done.ipynb").read_text())["cells"]]))
"""


@pytest.mark.parametrize("program", few(["jupyter", "marimo"], 1))
def test_the_page_runs_as_a_notebook(program: str, run_client: RunClient, tmp_path: Path) -> None:
    home = {"TRNFLOW_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    outputs = run_client(
        "notebook", {"jupyter": JUPYTER, "marimo": MARIMO}[program], json.dumps([*CELLS, LAST]), **home
    )
    shown = json.dumps(outputs)
    assert '"output_type": "error"' not in shown
    texts = "".join(_texts(outputs))
    there: dict[str, Any] = json.loads(texts.partition("METRICS ")[2].splitlines()[0])
    listed = subprocess.run(
        [sys.executable, "-m", "trnflow", "runs", "--json"], env={**os.environ, **home}, capture_output=True, text=True
    )
    metrics = {one["run"]: one["metrics"] for one in json.loads(listed.stdout)["runs"]}
    assert there and all(metrics[run] == found for run, found in there.items())
    assert "<svg" in shown and "evaluate_model" in shown  # the block that updates, and the run's table
    assert "srcdoc" in shown  # the report


def _texts(outputs: list[list[dict[str, Any]]]) -> list[str]:
    """Return what the cells printed."""
    found = [one["text"] for cell in outputs for one in cell if one["output_type"] == "stream"]
    return ["".join(text) for text in found]
