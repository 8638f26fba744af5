"""Functions of a script or notebook as hooks: taken by their source when that is complete, else refused by name."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest

import trnflow as tr
from tests.conftest import PROJECT
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.keys.notebook_functions import _module_of

SCRIPT = '''
import json
import textwrap as wrap

import trnflow as tr

PREFIX = ["Ticket", "of"]  # of teams
FRAME = object()


def joined(words):
    return wrap.shorten(" ".join(words), 200)


def ticket(row):
    """What the model reads."""
    return {"text": joined([*PREFIX, row["text"]]), "label": row["label"]}


def framed(row):
    return str(FRAME) + row["text"]


rows = [{"text": f"word {i} of {i % 7}", "label": "ab"[i % 2]} for i in range(64)]
recipe = tr.recipe({"name": "mine", "extends": "demo", "export": {"target": "none"}, "tracking": {"enabled": False}})
recipe = recipe.set(data=rows, on="cpu", data__label="label", data__split={"test": 0.2}, format__make=ticket)
due = recipe.plan().due
run = recipe.run(until="format_prompts")
import pyarrow.parquet as pq
text = pq.read_table(run.stage("format_prompts").path / "train.parquet")["text"][0].as_py()
try:
    recipe.set(format__make=framed)
except Exception as error:
    print(json.dumps([due[:2], text, str(error)]))
'''


def ran(folder: Path, source: str) -> tuple[list[str], str, str]:
    (folder / "cells.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "cells.py"], cwd=folder, capture_output=True, text=True, timeout=300,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(PROJECT), "TRNFLOW_HOME": str(folder / "home")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    due, text, error = json.loads(done.stdout.splitlines()[-1])
    return due, text, error


@pytest.mark.slow
def test_a_function_of_a_script_is_keyed_by_all_that_it_uses(tmp_path: Path) -> None:
    due, text, error = ran(tmp_path, SCRIPT)
    assert due[0] == "load_data" and text.startswith("Ticket of word ")
    assert "format.make: framed uses FRAME, which is a value of type object" in error
    assert ran(tmp_path, SCRIPT.replace("# of teams", "# of all teams"))[0][0] == "tokenize_text", "a comment"
    other = SCRIPT.replace('"of"]', '"for"]')
    due, text, _ = ran(tmp_path, other)
    assert due[0] == "format_prompts" and text.startswith("Ticket for word "), "a constant"
    assert ran(tmp_path, other.replace("200", "9"))[0][0] == "format_prompts", "a function two below"


STAGE = """
import json

import trnflow as tr
from trnflow.tasks.stage import stage

SIZE = 3


@stage(kind="sizes")
def sizes(config, rows, out):
    (out.path / "sizes.json").write_text(json.dumps([SIZE, rows.meta["splits"]["train"]]))
    return {"metrics": {"size": SIZE}}


rows = [{"text": f"word {i}", "label": "ab"[i % 2]} for i in range(64)]
recipe = tr.recipe({"name": "mine", "extends": "demo", "export": {"target": "none"}, "tracking": {"enabled": False}})
recipe = recipe.set(data=rows, on="cpu", data__label="label", data__split={"test": 0.25})
recipe = recipe.set(stages={"counted": {"function": sizes, "after": "load_data"}})
made = recipe.run(until="counted").stage("counted")
print(json.dumps([recipe.plan().due[:1], (made.path / "sizes.json").read_text(), str(made.meta)]))
"""


@pytest.mark.slow
def test_a_stage_of_a_script_has_its_artifact(tmp_path: Path) -> None:
    due, made, meta = ran(tmp_path, STAGE)
    size, train_rows = json.loads(made)
    assert due == ["format_prompts"] and size == 3 and 40 < train_rows < 56 and meta == "{'metrics': {'size': 3}}"


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda row: row["text"], "format.make is a lambda"),
        (functools.partial(str), "format.make is a partial, whose arguments are in no file"),
        (Path("a").joinpath, "format.make is an object of method, no function"),
    ],
)
def test_what_has_no_name_is_refused_with_where_to_put_it(function: object, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        tr.recipe("demo").set(format__make=function)
    assert "at the top of a file" in caught.value.fix

    def local(row: dict[str, str]) -> str:
        return row["text"]

    with pytest.raises(ConfigError, match=r"local, which is inside a function or class"):
        tr.recipe("demo").set(format__make=local)


def joined_words(row):
    return " ".join(row)


other_name = joined_words


def by_another_name(row):
    return other_name(row)


def test_a_function_s_second_name_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module that is made of a notebook's cell would have the function by its first name alone."""
    monkeypatch.setattr(joined_words, "__module__", "__main__")
    monkeypatch.setattr(by_another_name, "__module__", "__main__")
    with pytest.raises(ConfigError, match="by_another_name uses other_name, which is a value of type function"):
        _module_of(by_another_name, "format.make")
    monkeypatch.setitem(by_another_name.__globals__, "other_name", len)
    assert "def by_another_name" in _module_of(by_another_name, "format.make")
