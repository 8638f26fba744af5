"""What data, store and logs hold is shown without a control character that a terminal obeys, or a line that looks like ours."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
from pathlib import Path

import pytest
import yaml

from tests.helpers.command_line import InProcessShell, Shell, artifacts, write_project
from tests.store.test_ledger import add
from trnflow.tasks.store import Store
from trnflow.tasks.system.terminal import one_line, printable

FAKED = "+ train ran"
EVIL = f"\x1b]52;c;ZXZpbA==\x07\x9b31m\r{FAKED}\n{FAKED} \u202e\u2028\x00"
"""Writes the clipboard, colours what follows, and twice begins what looks like a line of a run."""
DATA = EVIL.replace("\x00", "")  # a NUL is refused in data, and in names
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def assert_harmless(text: str, *, planted: bool = True) -> None:
    assert not OBEYED.search(text), repr(text)
    assert not [line for line in text.splitlines() if line.startswith(FAKED)], text
    assert not planted or r"\x1b]52;c" in text, f"nothing of what was planted is shown: {text}"


def test_a_text_is_shown_with_what_a_terminal_obeys_as_escapes() -> None:
    assert one_line(EVIL) == rf"\x1b]52;c;ZXZpbA==\x07\x9b31m\r{FAKED}\n{FAKED} \u202e\u2028\x00"
    assert printable("a\tb\nc\rd\x85\ud800") == "a\tb\nc\\rd\\x85\\ud800"
    assert one_line(kept := "Grüße, שלום 👩‍👩‍👧 \\x1b") == kept


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Rows with planted labels and a planted column."""
    write_project(tmp_path)
    for split in ("train", "validation", "test"):
        rows = [{"text": f"{split} {n} {DATA}", "label": ("pos", DATA)[n % 2], DATA: n} for n in range(40)]
        (tmp_path / f"rows/{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def test_labels_texts_columns_and_files_of_the_data_are_shown_escaped(project: Path) -> None:
    shell = InProcessShell(project)
    until = ("--until", "pack_chunks", "--direct", "tracking.enabled=false")
    ran = shell("run", "mine.yaml", *until)
    assert ran.returncode == 0, ran.stderr
    assert_harmless(ran.stdout + ran.stderr, planted=False)
    assert_harmless(shell("preview", "mine.yaml").stdout)
    no_column = shell("run", "mine.yaml", *until, "data.text=other")
    assert no_column.returncode != 0
    assert_harmless(no_column.stdout + no_column.stderr)
    shutil.copy(project / "rows/train.jsonl", project / f"{DATA.replace('/', '')}.jsonl")
    new = shell("new", f"{DATA}.jsonl")
    assert_harmless(new.stdout + new.stderr)


def test_a_name_in_the_data_begins_no_setting_of_the_recipe_that_new_writes(tmp_path: Path) -> None:
    """Before, such a column gave the recipe an environment, or a hook: code of whoever wrote the data."""
    column = "note\nlaunch: {environment: {PLANTED: '1'}} #"
    rows = [{"text": f"text {n}", "label": ("pos", "neg")[n % 2], column: n} for n in range(40)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    new = InProcessShell(tmp_path)("new", "rows.jsonl", "name=mine")
    assert new.returncode == 0, new.stderr
    written = (tmp_path / "mine.yaml").read_text()
    assert "launch" not in yaml.safe_load(written) and r"note\nlaunch" in written


def test_a_name_begins_no_setting_where_the_recipe_names_it_as_another_choice(tmp_path: Path) -> None:
    """Of two columns that may be the label one is written as a comment."""
    column = "x\nsplits: {train: /etc/passwd} #"
    rows = [{"text": f"text {n}", "label": ("pos", "neg")[n % 2], column: ("a", "b")[n % 2]} for n in range(40)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert InProcessShell(tmp_path)("new", "rows.jsonl", "name=mine").returncode == 0
    written = (tmp_path / "mine.yaml").read_text()
    uncommented = "\n".join(line.replace("  # label:", "  other:") for line in written.splitlines())
    data = yaml.safe_load(uncommented)["data"]
    assert "splits" not in data and data["other"] == column


def test_what_the_store_and_logs_hold_is_shown_escaped(past: Shell, tmp_path: Path) -> None:
    shutil.copytree(past.folder, tmp_path / "house", symlinks=True)
    shell = InProcessShell(tmp_path / "house")
    home = shell.folder / ".trnflow"
    store = Store(str(home / "store"), home)
    run = shell.json("runs")["runs"][0]["run"]
    model = artifacts(shell, run)["tokenize_text"]
    add(store, "mine", why=EVIL, champion=model, challenger=model, by="retrain", run=run)
    add(store, EVIL, why="better", champion=model)
    record = json.loads((home / f"store/runs/{run}.json").read_text())
    record["recipe"], record["notes"] = EVIL, [EVIL]
    record["stages"][0]["metrics"] = {EVIL: EVIL}
    store.write_run(run, record)
    lease = store.waiter("1" * 64, run=run, attempt="a", ttl=60.0).acquire()
    assert lease is not None
    store.write_attempt("1" * 64, "a", {"stage": EVIL, "recipe": EVIL})
    log = home / "runs" / run / f"{run}-train-1.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(EVIL.replace(f"\n{FAKED}", ""))
    for command in (
        "runs",
        "status",
        "logs last",
        "history mine",
        "champions",
        "champions mine",
        "health",
        "diff last~1 last",
    ):
        done = shell(*command.split())
        assert done.returncode in (0, 1), done.stderr
        assert_harmless(done.stdout + done.stderr)


def test_an_error_s_further_lines_are_no_lines_of_ours(past: Shell) -> None:
    said = past("runs", "--store", f"there\n{FAKED}\x1b[2J").stderr
    assert_harmless(said, planted=False)
    assert rf"{FAKED}\x1b[2J" in said


def test_on_a_terminal_progress_and_rows_are_shown_escaped(project: Path) -> None:
    """Through a pty, where rich draws: its own escapes pass, none of the data's does."""
    shell = Shell(project)
    shell.environ |= {"TERM": "xterm-256color"}
    for command in (
        "run mine.yaml --until pack_chunks --direct tracking.enabled=false",
        "preview mine.yaml",
        "history mine",
    ):
        ours, theirs = pty.openpty()
        process = shell.start(*command.split(), stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        shown = b""
        try:
            while data := os.read(ours, 1 << 16):
                shown += data
        except OSError:  # the last process that had it open has ended
            pass
        os.close(ours)
        assert process.wait() == 0, shown
        text = shown.decode()
        assert "\x1b]" not in text and "\x07" not in text and "\x9b" not in text, text
        if command.startswith("preview"):
            assert "\\x1b]52" in text, text
