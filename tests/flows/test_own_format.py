"""A user's project in an empty folder: its recipe names a function, whose helper two imports below is edited."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT
from tests.helpers.command_line import InProcessShell


def trnflow(project: Path, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = InProcessShell(project)(*words)
    assert not check or done.returncode == 0, done.stderr
    return done


def planned(project: Path) -> dict[str, dict[str, Any]]:
    document = json.loads(trnflow(project, "plan", "conf/mine.yaml", "--json").stdout)
    return {stage["stage"]: stage for stage in document["stages"]}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "mine").mkdir()
    (tmp_path / "conf").mkdir()
    (tmp_path / "mine/formats.py").write_text(
        "from mine.words import heading\n\n\ndef ticket(row: dict) -> str:\n    return heading(row['subject'])\n"
    )
    (tmp_path / "mine/words.py").write_text(
        "from mine.low import INTRO\n\n\ndef heading(text):\n    return f'{INTRO} {text}'\n"
    )
    (tmp_path / "mine/low.py").write_text('INTRO = "Ticket"\n')
    lines = [json.dumps({"subject": f"subject {n}", "team": ("red", "blue")[n % 2]}) for n in range(100)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    (tmp_path / "conf/mine.yaml").write_text(
        "extends: demo\nname: mine\n"
        "data: {source: ../rows.jsonl, name: null, text: subject, label: team, split: {test: 0.2}}\n"
        "format: {task: classification, make: 'mine.formats:ticket'}\n"
    )
    return tmp_path


@pytest.mark.slow
def test_an_edit_two_imports_below_runs_format_prompts_alone_and_a_comment_nothing(project: Path) -> None:
    trnflow(project, "run", "conf/mine.yaml", "--until", "format_prompts", "--direct", "tracking.enabled=false")
    assert planned(project)["format_prompts"]["action"] == "hit"
    low = project / "mine/low.py"
    low.write_text('# what a ticket begins with\n\nINTRO = "Ticket"\n')
    assert planned(project)["format_prompts"]["action"] == "hit"
    low.write_text('INTRO = "Case"\n')
    after = planned(project)
    assert after["load_data"]["action"] == "hit"
    assert (after["format_prompts"]["action"], after["format_prompts"]["why"]) == (
        "run",
        "INTRO in low.py: Ticket -> Case",
    )
    shown = json.loads(trnflow(project, "preview", "conf/mine.yaml", "1", "--json").stdout)
    assert "case subject" in "".join(span["text"] for span in shown["rows"][0]["spans"]).lower()
    low.write_text('INTRO = open(__file__.replace("low.py", "words.txt")).read()\n')
    (project / "mine/words.txt").write_text("Case")
    refused = trnflow(project, "preview", "conf/mine.yaml", "1", check=False)
    assert "format_prompts read mine/words.txt, and its key does not know that file" in refused.stderr


@pytest.mark.slow
def test_what_reads_a_recipe_runs_none_of_its_code(project: Path) -> None:
    formats, ran = project / "mine/formats.py", project / "ran"
    formats.write_text(f"open({str(ran)!r}, 'w').close()\n{formats.read_text()}")
    for words in (
        ("plan", "conf/mine.yaml"), ("show", "conf/mine.yaml", "format_prompts"), ("config", "conf/mine.yaml"),
        ("explain", "conf/mine.yaml", "format_prompts"), ("deploy", "--help"), ("status", "conf/mine.yaml"),
    ):  # fmt: skip
        trnflow(project, *words, check=False)
        assert not ran.exists(), words


@pytest.mark.slow
def test_an_override_that_names_a_function_is_refused_and_a_wrong_name_has_its_line(project: Path) -> None:
    done = trnflow(project, "plan", "conf/mine.yaml", "format.make=mine.words:heading", check=False)
    assert done.returncode == 2 and "stands in recipe files alone" in done.stderr
    recipe = project / "conf/mine.yaml"
    recipe.write_text(recipe.read_text().replace(":ticket", ":tiket"))
    done = trnflow(project, "plan", "conf/mine.yaml", check=False)
    assert done.returncode == 2 and "did you mean mine.formats:ticket?" in done.stderr
    assert "mine.yaml:4: format.make: formats.py has no function tiket" in done.stderr


def from_page(folder: Path, *names: str) -> None:
    """Write the files of the page's examples into a folder, with a model that needs no hub."""
    page = (PROJECT / "docs/own_code.md").read_text()
    for name in names:
        text = page.partition(f"```{'python' if name.endswith('.py') else 'yaml'}\n# {name}\n")[2].partition("```")[0]
        assert text
        (folder / name).write_text(text.replace("extends: classify", "extends: demo\nname: mine"))


UNTIL = ("--until", "format_prompts", "--direct", "tracking.enabled=false", "data.name=null")


@pytest.mark.slow
def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    from_page(
        tmp_path, "formats.py", "tickets.yaml", "rows.py", "rows.yaml", "losses.py", "focal.yaml",
        "state.py", "state.yaml", "best.yaml", "looks.py", "looks.yaml",
    )  # fmt: skip
    rows = [{"subject": f"s {n}", "body": f"b {n}" if n else "", "team": ("a", "b")[n % 2]} for n in range(60)]
    (tmp_path / "tickets.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done = trnflow(tmp_path, "run", "tickets.yaml", *UNTIL)
    assert "empty_rows_dropped 1" in done.stdout + done.stderr
    assert "train" in trnflow(tmp_path, "plan", "best.yaml", "data.name=null").stdout
    assert "worst" in trnflow(tmp_path, "plan", "looks.yaml", "data.name=null").stdout
    until = ("--until", "precompile", *UNTIL[2:])
    assert "precompile" in trnflow(tmp_path, "run", "focal.yaml", *until).stdout
    with sqlite3.connect(tmp_path / "tickets.db") as database:
        database.execute("CREATE TABLE tickets (id, subject, team)")
        database.executemany("INSERT INTO tickets VALUES (?, ?, ?)", [(n, f"s {n}", "ab"[n % 2]) for n in range(60)])
    place = f"data.arguments.database={tmp_path / 'tickets.db'}"
    done = trnflow(tmp_path, "run", "rows.yaml", *UNTIL, place, "data.source=null")
    assert "train_rows 5" in done.stdout + done.stderr
    done = trnflow(tmp_path, "run", "state.yaml", *UNTIL, place, "data.source=null")
    assert "train_rows 5" in done.stdout + done.stderr
    document = json.loads(
        trnflow(tmp_path, "plan", "rows.yaml", "--json", "data.name=null", "data.source=null", place).stdout
    )
    assert document["stages"][0]["action"] == "hit"
