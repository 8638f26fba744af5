"""`own.files` and `own.identity`: what own functions read beside rows, and the state of rows that a database holds."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from tests.flows.champions.conftest import RECIPE
from tests.helpers.command_line import InProcessShell
from trnflow.flows.runner.run import UNHELD
from trnflow.tasks.launch import landlock

FORMATS = """from pathlib import Path


def priced(row):
    prices = dict(line.split(",") for line in Path(__file__).with_name("prices.csv").read_text().split())
    return f"{row['text']} {prices[row['label']]}"
"""
ROWS = """import sqlite3


def tickets(config, split):
    if split != "train":
        return None
    with sqlite3.connect(config["database"]) as database:
        return [{"text": text, "label": label} for text, label in database.execute("SELECT * FROM tickets")]


def state(config):
    with sqlite3.connect(config["database"]) as database:
        return str(database.execute("SELECT count(*) FROM tickets").fetchone()[0])
"""


@pytest.fixture
def shell(tmp_path: Path) -> InProcessShell:
    (tmp_path / "formats.py").write_text(FORMATS)
    (tmp_path / "own_rows_of_tickets.py").write_text(ROWS)
    (tmp_path / "prices.csv").write_text("pos,1\nneg,2\n")
    with sqlite3.connect(tmp_path / "tickets.db") as database:
        database.execute("CREATE TABLE tickets (text, label)")
        database.executemany(
            "INSERT INTO tickets VALUES (?, ?)", [(f"a {n}", ("pos", "neg")[n % 2]) for n in range(40)]
        )
    arguments = f"{{database: {tmp_path / 'tickets.db'}}}"
    made = f"data: {{make: 'own_rows_of_tickets:tickets', arguments: {arguments}, text: text, label: label}}"
    recipe = RECIPE.replace("data: {source: rows, text: text, label: label}", made)
    recipe = recipe.replace("format: {task: classification}", "format: {task: classification, make: 'formats:priced'}")
    (tmp_path / "own.yaml").write_text(f"{recipe}own: {{files: [prices.csv], identity: 'own_rows_of_tickets:state'}}\n")
    return InProcessShell(tmp_path)


def ran(shell: InProcessShell) -> set[str]:
    """The stages that a run to format_prompts makes."""
    stages = shell.json("run", "own.yaml", "--direct", "--until", "format_prompts")["stages"]
    return {stage["stage"] for stage in stages if stage["action"] == "ran"}


@pytest.mark.slow
def test_a_changed_file_and_a_changed_state_run_what_reads_them(shell: InProcessShell) -> None:
    assert "this command runs no code of yours" in shell.error("plan", "own.yaml", code=2)
    assert ran(shell) == {"load_data", "format_prompts"} and ran(shell) == set()
    (shell.folder / "prices.csv").write_text("pos,1\nneg,3\n")
    plan = {stage["stage"]: stage["why"] for stage in shell.json("plan", "own.yaml")["stages"]}
    assert "own.files: prices.csv" in plan["format_prompts"]
    assert ran(shell) == {"format_prompts"}
    with sqlite3.connect(shell.folder / "tickets.db") as database:
        database.execute("INSERT INTO tickets VALUES ('more', 'pos')")
    assert ran(shell) == {"load_data", "format_prompts"} and ran(shell) == set()
    (shell.folder / "prices.csv").unlink()
    assert "own.files: there is no file prices.csv in" in shell.error("plan", "own.yaml", code=2)


@pytest.mark.slow
def test_an_undeclared_file_and_a_bad_state_are_one_line(shell: InProcessShell) -> None:
    rows = shell.folder / "own_rows_of_tickets.py"
    for body, told in {
        "return 1": "own_rows_of_tickets:state returned int, no text of 1 to 1000 characters",
        "return config['query']": "own_rows_of_tickets.py:12 in state: KeyError 'query' when it was asked for the state",
        "return open(__file__.replace('own_rows_of_tickets.py', 'own.yaml')).read()": "its key does not know that file",
    }.items():
        head, _, _ = ROWS.partition('    with sqlite3.connect(config["database"]) as database:\n        return str')
        rows.write_text(f"{head}    {body}\n")
        assert told in shell.error("run", "own.yaml", "--direct", code=1), body
    rows.write_text(ROWS)
    recipe = shell.folder / "own.yaml"
    recipe.write_text(recipe.read_text().replace("files: [prices.csv], ", ""))
    assert "format_prompts read prices.csv" in shell.error("run", "own.yaml", "--direct", code=1)
    recipe.write_text(recipe.read_text().replace("{identity: 'own_rows_of_tickets:state'}", "{files: [../up.csv]}"))
    assert "is no path below the recipe's folder" in shell.error("plan", "own.yaml", code=2)


def test_rows_of_a_function_need_a_state(shell: InProcessShell) -> None:
    recipe = shell.folder / "own.yaml"
    recipe.write_text(recipe.read_text().replace(", identity: 'own_rows_of_tickets:state'", ""))
    assert "`data.make` needs a version" in shell.error("plan", "own.yaml", code=2)


NATIVE = """from pathlib import Path

import pyarrow.parquet as pq

PRICES = dict(zip(*pq.read_table(str(Path(__file__).with_name("prices.parquet"))).to_pydict().values()))


def priced(row):
    return f"{row['text']} {PRICES[row['label']]}"
"""


@pytest.fixture
def native(shell: InProcessShell) -> InProcessShell:
    """A recipe whose format reads a file by pyarrow, which calls no audit hook."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"label": ["pos", "neg"], "price": [1, 2]}), shell.folder / "prices.parquet")
    (shell.folder / "formats.py").write_text(NATIVE)
    recipe = shell.folder / "own.yaml"
    recipe.write_text(recipe.read_text().replace("files: [prices.csv], ", ""))
    return shell


@pytest.mark.slow
@pytest.mark.skipif(not landlock.is_there(), reason="this kernel has no Landlock")
def test_a_file_that_a_native_reader_opens_must_be_declared(native: InProcessShell) -> None:
    refused = native.error("run", "own.yaml", "--direct", "--until", "format_prompts", code=1)
    assert "formats.py:5 in <module>: PermissionError [Errno 13] Failed to open local file" in refused
    assert "format_prompts's key does not know that file" in refused
    assert "fix: put it below the recipe's folder, and declare it: own: {files: [prices.parquet]}" in refused
    recipe = native.folder / "own.yaml"
    recipe.write_text(recipe.read_text().replace("own: {", "own: {files: [prices.parquet], "))
    assert ran(native) == {"format_prompts"}
    assert not any(
        UNHELD in note for note in native.json("run", "own.yaml", "--direct", "--until", "load_data")["notes"]
    )


@pytest.mark.slow
def test_a_kernel_without_landlock_is_named(native: InProcessShell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "is_there", lambda: False)
    notes = native.json("run", "own.yaml", "--direct", "--until", "load_data")["notes"]
    assert [note for note in notes if UNHELD in note] == [f"{UNHELD}: this kernel has no Landlock (docs/own_code.md)"]
    assert UNHELD in Path(native.json("report")["path"]).read_text()
