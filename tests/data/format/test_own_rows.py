"""A function of the user's makes the texts: what it returns is checked, and what it may not do ends in one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.helpers.data_stages import Bench, loaded_rows, new_bench
from trnflow.tasks.artifact import Input, Source
from trnflow.tasks.data.format.config import FormatConfig
from trnflow.tasks.errors import CodeError, DataError, TrnflowError
from trnflow.tasks.format_prompts import format_prompts
from trnflow.tasks.keys.hash_cache import Memo
from trnflow.tasks.keys.hooks import code_source

FUNCTIONS = """
import datetime, os, random, sys, time

SEEN = []

def plain(row): return f"{row['label']}: {row['body']}" + os.environ.get("AWS_SECRET_ACCESS_KEY", "")
def both(row): return {"text": row["body"], "label": "blue"}
def some(row): return None if row["body"] == "body 3" else row["body"] if row["body"] != "body 4" else "  "
def talks(row): return {"messages": [{"role": "user", "content": row["body"]}, {"role": "assistant", "content": "yes"}]}
def asks(row): return f"Q: {row['body']} {row['tags'][0]} "

def misses(row):
    return row["boddy"]
def counts(row): return 3
def names(row): return {"txt": row["body"]}
def labels(row): return {"text": "x", "label": "green"}
def pops(row):
    row.pop("body")
    return "x"
def appends(row):
    row["tags"].append("x")
    return "x"
def broken(row): return "\\ud800"
def exits(row): sys.exit(3)

def dies(row): os._exit(0)
def sleeps(row): time.sleep(60)
def prints(row):
    print("x" * 2_000_000)
    return "x"

def day(row): return f"{datetime.date.today()} {row['body']}"
def moment(row): return f"{time.time() // 3600} {row['body']}"
def draws(row): return f"{random.random()} {row['body']}"
def keeps(row):
    SEEN.append(0)
    return f"{len(SEEN)} {row['body']}"
def orders(row): return " ".join({row["body"], "a", "b", "c", "d", "e"})
def zone(row): return f"{time.localtime(0).tm_hour} {row['body']}"
def place(row): return f"{os.getcwd()} {row['body']}"
"""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    (tmp_path / "own_rows_formats.py").write_text(FUNCTIONS)
    yield new_bench(tmp_path)


def rows(root: Path) -> Input:
    columns: dict[str, list[Any]] = {
        "body": [f"body {n}" for n in range(8)],
        "tags": ['["t"]'] * 8,
        "response": ["yes"] * 8,
    }
    columns |= {"label": [0, 1] * 4}
    return loaded_rows(root, columns, labels=["red", "blue"], text=["body"], nested=["tags"])


def made(bench: Bench, name: str, task: Any = "classification", **more: Any) -> list[dict[str, Any]]:
    hooks = {"format.make": (f"own_rows_formats:{name}", bench.root)}
    code = code_source(hooks, bench.root / "home", Memo(bench.root / "memo.db"))
    given: dict[str, Input | Source] = {
        "rows": rows(bench.root),
        "model": bench.model({"config": {"model_type": "llama"}}),
    }
    config = FormatConfig(task=task, make=f"own_rows_formats:{name}", **more)
    texts = bench.made(format_prompts, config, **given, code=code)
    assert texts.meta["rows"]["own"] == code.identity["code"] and "make" not in texts.meta["rows"]["settings"]
    return list(pq.read_table(texts.path / "train.parquet").to_pylist())


def test_each_task_takes_what_its_function_returns(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    assert made(bench, "plain")[:2] == [{"text": "red: body 0", "label": 0}, {"text": "blue: body 1", "label": 1}]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "task", "first"),
    [
        ("both", "classification", {"text": "body 0", "label": 1}),
        ("plain", "text", {"parts": [{"text": "red: body 0", "train": True, "ends_prompt": None}]}),
        (
            "asks",
            "instruction",
            {
                "parts": [
                    {"text": "Q: body 0 t ", "train": False, "ends_prompt": True},
                    {"text": "yes", "train": True, "ends_prompt": None},
                ]
            },
        ),
    ],
)
def test_what_other_tasks_make(bench: Bench, name: str, task: str, first: dict[str, Any]) -> None:
    assert made(bench, name, task)[0] == first


@pytest.mark.slow
def test_a_conversation_goes_through_the_chat_template_and_none_leaves_a_row_out(bench: Bench) -> None:
    parts = made(bench, "talks", "chat", chat_template="sections")[0]["parts"]
    assert "".join(part["text"] for part in parts) == "### User\nbody 0\n\n### Assistant\nyes"
    assert [part["text"] or part["token"] for part in parts if part["train"]] == ["yes", "eos_token"]


@pytest.mark.slow
def test_none_and_blank_texts_leave_rows_out(bench: Bench) -> None:
    assert [row["text"] for row in made(bench, "some")] == [f"body {n}" for n in (0, 1, 2, 5, 6, 7)]
    assert {"info": "rows own_rows_formats:some leaves out dropped: 2"} in bench.said


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("misses", "own_rows_formats.py:13 in misses: KeyError 'boddy' at train row 1: `return row[\"boddy\"]`"),
        ("counts", "train row 1: own_rows_formats:counts returned int"),
        pytest.param("names", "returned a dict with txt", marks=pytest.mark.slow),
        pytest.param("labels", "returned the label 'green'", marks=pytest.mark.slow),
        pytest.param("pops", "own_rows_formats:pops changes its row (body)", marks=pytest.mark.slow),
        pytest.param("appends", "own_rows_formats:appends changes its row (tags)", marks=pytest.mark.slow),
        pytest.param("broken", "is no UTF-8", marks=pytest.mark.slow),
        pytest.param("exits", "in exits: SystemExit 3 at train row 1", marks=pytest.mark.slow),
        pytest.param("dies", "train row 1: format.make ended its process: status 0", marks=pytest.mark.slow),
        pytest.param("sleeps", "train row 1: format.make takes longer than format.row_seconds", marks=pytest.mark.slow),
        pytest.param("prints", "printed more than 1,000,000 characters at train row 1", marks=pytest.mark.slow),
    ],
)
def test_what_a_function_may_not_do_ends_in_one_line(bench: Bench, name: str, message: str) -> None:
    with pytest.raises(DataError) as caught:
        made(bench, name, row_seconds=0.5)
    assert message in caught.value.message and "\n" not in str(caught.value) and caught.value.fix


@pytest.mark.slow
@pytest.mark.parametrize("name", ["day", "moment", "draws", "keeps", "orders", "zone", "place"])
def test_the_proof_finds_what_a_row_does_not_decide(bench: Bench, name: str) -> None:
    with pytest.raises(CodeError, match=rf"own_rows_formats:{name} makes two things of train row 1: ") as caught:
        made(bench, name)
    assert isinstance(caught.value, TrnflowError) and "depend on its row alone" in caught.value.fix
    assert not (bench.root / "home/proofs").exists()
