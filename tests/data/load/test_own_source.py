"""`data.make`: a function of the user's gives the rows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from tests.helpers.data_stages import Bench, new_bench
from trnflow.tasks.artifact import Input, Source
from trnflow.tasks.data.load.own_identity import with_state
from trnflow.tasks.errors import ConfigError, TrnflowError
from trnflow.tasks.keys.hash_cache import Memo
from trnflow.tasks.keys.hooks import code_source
from trnflow.tasks.load_data import DataConfig, data_source, load_data
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.stage import stage_of

FUNCTIONS = """
import os, random
def tickets(config, split):
    if split == "validation":
        return None
    return ({"text": f"{split} {n}", "label": "ab"[n % 2], "tags": [n]} for n in range(config[split]))
def secret(config, split):
    return [{"text": os.environ.get("OF_DB", "") + os.environ.get("OTHER_SECRET", ""), "label": l} for l in "ab"] * 9
def nothing(config, split): return None
def texts(config, split): return ["a", "b"]
def objects(config, split):
    yield {"text": "a", "label": "a"}
    yield {"text": "b", "label": object()}
def raises(config, split):
    yield {"text": "a", "label": "a"}
    raise LookupError("no such table")
def draws(config, split): return [{"text": str(random.random()), "label": "a"}]
"""


def loaded(bench: Bench, name: str, **data: Any) -> Input:
    (bench.root / "own_source_rows.py").write_text(FUNCTIONS)
    hooks = {"data.make": (f"own_source_rows:{name}", bench.root)}
    code = code_source(hooks, bench.root / "home", Memo(bench.root / "memo.db"))
    given = {"text": "text", "label": "label", "version": "1", "split": {}, **data}
    config = DataConfig(make=hooks["data.make"][0], **given)
    source = data_source(config, Resolver(bench.root / "home"))
    assert source.identity == {"make": {"version": "1", "arguments": config.arguments}}
    return bench.made(load_data, config, source=source, code=code)


def test_rows_are_read_as_those_of_a_file(tmp_path: Path) -> None:
    rows = loaded(new_bench(tmp_path), "tickets", arguments={"train": 70, "test": 5}, columns={"tags": "tags"})
    assert rows.meta["splits"] == {"train": 70, "test": 5} and rows.meta["nested"] == ["tags"]
    first = pq.read_table(rows.path / "train.parquet").to_pylist()[1]
    assert first == {"tags": "[1]", "text": "train 1", "label": 1}


@pytest.mark.slow
def test_only_the_variables_that_are_named_are_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_SECRET", "hush")
    with pytest.raises(ConfigError, match="data.variables names OF_DB, which is not set"):
        loaded(new_bench(tmp_path), "secret", variables=("OF_DB",))
    monkeypatch.setenv("OF_DB", "told")
    (tmp_path / "b").mkdir()
    rows = loaded(new_bench(tmp_path / "b"), "secret", variables=("OF_DB",), splits={"train": "train"})
    assert {*pq.read_table(rows.path / "train.parquet").column("text").to_pylist()} == {"told"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "gives no train split"),
        ("texts", "train row 1: own_source_rows:texts gave str, no dict"),
        ("objects", "train row 2: own_source_rows:objects gave a column 'label' that is no JSON"),
        ("raises", "in raises: LookupError no such table at train row 2: `raise LookupError"),
        ("draws", "own_source_rows:draws makes two things of train row 1"),
    ],
)
def test_what_it_may_not_give_is_named_with_its_row(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(TrnflowError) as caught:
        loaded(new_bench(tmp_path), name)
    assert message in caught.value.message and caught.value.fix


def test_rows_of_a_function_have_no_other_source() -> None:
    with pytest.raises(ValidationError, match="both give rows"):
        DataConfig(make="rows:tickets", version="1", source="x.csv")


def test_the_state_of_rows_is_that_of_their_arguments_and_their_folder() -> None:
    asked: list[str] = []
    resolver: Any = SimpleNamespace(offline=False, ask_or_recall=lambda name, ask: asked.append(name) or ("7 rows", ""))

    def told(arguments: dict[str, Any], folder: str = "/mine") -> Any:
        code = Source("code", {}, {"functions": {"own.identity": "mine:state"}, "search": [folder], "files": {}})
        config = DataConfig(make="mine:rows", arguments=arguments)
        source = Source("data", {"make": {"version": None, "arguments": arguments}}, {})
        return with_state(source, code, config, stage_of(load_data), resolver)

    assert told({"table": "a", "since": 1}).identity["make"]["state"] == "7 rows"
    told({"since": 1, "table": "a"})
    told({"table": "b", "since": 1})
    told({"table": "a", "since": 1}, "/other")
    assert asked[0] == asked[1] and len({*asked}) == 3, "offline the state of other rows would be recalled"
