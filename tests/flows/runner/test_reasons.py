"""Why a stage runs again, in the user's words: rows that a file gained or lost, constants and functions that changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.command_line import DATA, InProcessShell

ROWS = [
    f"ticket number {n} about {'a bill' if n % 2 else 'a parcel'},{'money' if n % 2 else 'post'}" for n in range(60)
]
RECIPE = (
    "extends: demo\nname: mine\ndata: {source: tickets.csv, name: null, text: text, label: team, split: {test: 0.2}}\n"
    "format: {make: 'formats:shown'}\ntokenize: {max_length: 32, train: {vocab_size: 200}}\npack: {chunk_length: 32}\n"
)
CODE = '''"""Rows as the model reads them."""
PREFIX = "News"
DB_PASSWORD = "swordfish-1"
SERVER = "https://me:hunter22@host/x"
LOGIN = {"user": "me", "password": "marlin-1"}
KEPT = frozenset({"a", "b"})


def shown(row):
    return f"{PREFIX}: {row['text']}"
'''


@pytest.fixture
def house(tmp_path: Path) -> InProcessShell:
    write_rows(tmp_path, ROWS)
    (tmp_path / "mine.yaml").write_text(RECIPE)
    (tmp_path / "formats.py").write_text(CODE)
    shell = InProcessShell(tmp_path)
    done = shell("run", "mine.yaml", "--until", *DATA)
    assert done.returncode == 0, done.stderr
    return shell


def write_rows(folder: Path, rows: list[str]) -> None:
    (folder / "tickets.csv").write_text("\n".join(["text,team", *rows]) + "\n")


def why(shell: InProcessShell, stage: str) -> str:
    """The reason in `plan`, which `explain` gives too."""
    stages = shell.json("plan", "mine.yaml", "tracking.enabled=false")["stages"]
    (reason,) = (each["why"] for each in stages if each["stage"] == stage)
    explained = shell("explain", "mine.yaml", stage, "tracking.enabled=false").stdout
    assert reason.split("; ")[0] in explained.splitlines()[-1] or reason in explained
    return str(reason)


def test_rows_of_a_file(house: InProcessShell) -> None:
    extra = [f"another ticket {n},post" for n in range(100)]
    write_rows(house.folder, ROWS + extra)
    assert why(house, "load_data") == "tickets.csv: 100 rows more"
    write_rows(house.folder, ROWS[:-1])
    assert why(house, "load_data") == "tickets.csv: 1 row fewer"
    write_rows(house.folder, [*ROWS[:-1], "an edited ticket,post"])
    assert why(house, "load_data") == "tickets.csv: rows changed, as many as before"
    write_rows(house.folder, ['"a ticket\nof two lines",post', *ROWS])
    assert why(house, "load_data") == "tickets.csv: 1 row more"
    (house.folder / "tickets.csv").write_text('text,team\n"never closed')
    assert why(house, "load_data") == "tickets.csv changed"  # how, the stage says in its error


def test_another_recipe_of_the_home_is_no_reason(house: InProcessShell) -> None:
    (house.folder / "other.yaml").write_text(RECIPE.replace("name: mine", "name: other"))

    def planned(*overrides: str) -> dict[str, str]:
        stages = house.json("plan", "other.yaml", *overrides)["stages"]
        return {stage["stage"]: stage["why"] for stage in stages if stage["action"] == "run"}

    longer = "tokenize.max_length=48"
    assert planned(longer)["tokenize_text"] == "never ran for other"
    assert "compared with" not in house("explain", "other.yaml", "tokenize_text", longer).stdout
    # what it has found is its own
    assert house("run", "other.yaml", "--until", *DATA).returncode == 0
    assert planned(longer)["tokenize_text"] == "params.max_length: 32 -> 48"
    assert house("run", "mine.yaml", longer, "--until", *DATA).returncode == 0
    assert planned("tokenize.max_length=49")["tokenize_text"] == "params.max_length: 32 -> 49"
    explained = house("explain", "other.yaml", "tokenize_text", "tokenize.max_length=49").stdout
    assert "params.max_length: 32 -> 49" in explained and "compared with the record of" in explained


def test_rows_that_were_dropped_count_and_settings_stand_beside_them(house: InProcessShell) -> None:
    limited = ("run", "mine.yaml", "data.limit={train: 20}", "data.dedupe=true", "--until", *DATA)
    assert house(*limited).returncode == 0
    write_rows(house.folder, [*ROWS, "one more,post", ROWS[0]])
    (stage, *_) = house.json("plan", "mine.yaml", "data.limit={train: 20}", "data.dedupe=true")["stages"]
    assert stage["why"] == "tickets.csv: 2 rows more"
    (stage, *_) = house.json("plan", "mine.yaml", "data.limit={train: 30}", "data.dedupe=true")["stages"]
    assert stage["why"] in (
        "params.limit.train: 20 -> 30; tickets.csv: 2 rows more", "tickets.csv: 2 rows more; params.limit.train: 20 -> 30",
    )  # fmt: skip


def test_files_of_several_splits(house: InProcessShell) -> None:
    folder = house.folder / "rows"
    folder.mkdir()
    for name in ("train", "test"):
        (folder / f"{name}.csv").write_text("\n".join(["text,team", *ROWS]))
    source = ("data.source=rows", "data.split=null")
    assert house("run", "mine.yaml", *source, "--until", *DATA).returncode == 0
    (folder / "test.csv").write_text("\n".join(["text,team", *ROWS[:50]]))
    (stage, *_) = house.json("plan", "mine.yaml", *source)["stages"]
    assert stage["why"] == "test.csv: 10 rows fewer"


def test_a_constant_and_a_function_of_own_code(house: InProcessShell) -> None:
    file = house.folder / "formats.py"
    file.write_text(CODE.replace('"News"', '"Wire"'))
    assert why(house, "format_prompts") == "PREFIX in formats.py: News -> Wire"
    file.write_text(CODE.replace("{row['text']}", "{row['text']}!"))
    assert why(house, "format_prompts") == "shown in formats.py changed"
    file.write_text(CODE.replace('"News"', '"Wire"').replace("{row['text']}", "{row['text']}!"))
    assert why(house, "format_prompts") == "PREFIX in formats.py: News -> Wire; shown in formats.py changed"
    file.write_text(CODE + "LIMIT = 5\n")
    assert why(house, "format_prompts") == "LIMIT in formats.py is new"
    file.write_text(CODE.replace('KEPT = frozenset({"a", "b"})\n', ""))
    assert why(house, "format_prompts") == "KEPT in formats.py is gone"
    file.write_text(CODE.replace('"News"', f'"{"long " * 50}"'))
    assert len(why(house, "format_prompts")) < 120
    file.write_text("import string\n" + CODE)
    assert why(house, "format_prompts") == "code of formats changed"


def test_secrets_are_neither_shown_nor_kept(house: InProcessShell) -> None:
    edited = CODE.replace("swordfish-1", "swordfish-2").replace("hunter22", "hunter33").replace("marlin-1", "marlin-2")
    (house.folder / "formats.py").write_text(edited + 'CLIENT = "hf_abcdefghijklmnopqrstuvwx0123456789"\n')
    told = house("plan", "mine.yaml").stdout + house("explain", "mine.yaml", "format_prompts").stdout
    assert "CLIENT in formats.py is new; code of formats changed" in told
    for secret in ("swordfish", "hunter", "hf_abc", "marlin"):
        assert secret not in told
        for file in house.folder.rglob(".trnflow/memo.db*"):
            assert secret.encode() not in file.read_bytes()
