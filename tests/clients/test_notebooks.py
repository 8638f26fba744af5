"""Notebooks, executed by Jupyter's client and by marimo: the page docs/python.md, whose metrics are those that
`trnflow runs --json` lists, and functions of cells as hooks."""

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


OWN = [
    """
import json
import trnflow as tr

PREFIX = ["Ticket"]

def joined(words):
    return " ".join(words)

def ticket(row):
    return {"text": joined([*PREFIX, row["text"]]), "label": row["label"]}
""",
    """
rows = [{"text": f"word {i} of {i % 7}", "label": "ab"[i % 2]} for i in range(64)]
base = tr.recipe({"name": "mine", "extends": "demo", "export": {"target": "none"}, "tracking": {"enabled": False}})
base = base.set(data=rows, on="cpu", data__label="label", data__split={"test": 0.2})

def texts(make):
    recipe = base.set(format__make=make)
    due = recipe.plan().due[0]
    folder = recipe.run(until="format_prompts").stage("format_prompts").path
    import pyarrow.parquet as pq
    return due, pq.read_table(folder / "train.parquet")["text"][0].as_py()
""",
    "first, same = texts(ticket), texts(ticket)",
    "CHANGE\nagain = texts(ticket)",
    "print('FOUND', json.dumps([first, same, again]))",
]
CHANGE = {"jupyter": "PREFIX = ['Case']", "marimo": "first and PREFIX.__setitem__(0, 'Case')"}
"""A constant reassigned in a later cell; marimo, where a name belongs to one cell, changes it."""


@pytest.mark.parametrize("program", few(["marimo", "jupyter"], 1))  # the page below is Jupyter's
def test_a_function_of_a_cell_is_keyed_by_all_that_it_uses(program: str, run_client: RunClient, tmp_path: Path) -> None:
    cells = json.dumps([cell.replace("CHANGE", CHANGE[program]) for cell in OWN])
    home = {"TRNFLOW_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    outputs = run_client("notebook", {"jupyter": JUPYTER, "marimo": MARIMO}[program], cells, **home)
    assert '"output_type": "error"' not in json.dumps(outputs), outputs
    first, same, again = json.loads("".join(_texts(outputs)).partition("FOUND ")[2].splitlines()[0])
    assert first[0] == "load_data" and first[1].startswith("Ticket word ")
    assert same == ["tokenize_text", first[1]], "a hit"
    assert again == ["format_prompts", first[1].replace("Ticket", "Case")]


def _texts(outputs: list[list[dict[str, Any]]]) -> list[str]:
    """Return what the cells printed."""
    found = [one["text"] for cell in outputs for one in cell if one["output_type"] == "stream"]
    return ["".join(text) for text in found]
