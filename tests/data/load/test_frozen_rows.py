"""Training rows whose text is among the frozen rows, on which models are compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.data_stages import Bench, files, table
from trnflow.tasks.artifact import Input
from trnflow.tasks.errors import DataError
from trnflow.tasks.load_data import DataConfig, load_data
from trnflow.tasks.promotion.freeze_rows import FreezeConfig, freeze_rows

TEXT = {"text": "text", "label": "label"}
CHAT: dict[str, str] = {}


def rows(numbers: range, kind: dict[str, str]) -> list[dict[str, Any]]:
    if kind is TEXT:
        return [{"text": f"row {number}", "label": "ab"[number % 2]} for number in numbers]
    return [{"messages": [{"role": "user", "content": f"row {number}"}], "n": {"of": number}} for number in numbers]


def write(folder: Path, train: range, kind: dict[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    for split, numbers in {"train": train, "test": range(100, 110)}.items():
        (folder / f"{split}.jsonl").write_text("\n".join(json.dumps(row) for row in rows(numbers, kind)))


def load(bench: Bench, folder: Path, kind: dict[str, str], frozen: Input | None) -> Input:
    config = DataConfig(source=str(folder), **kind)
    more = {"frozen": frozen} if frozen else {}
    return bench.made(load_data, config, source=bench.source(config), **more)


@pytest.mark.parametrize("kind", [TEXT, CHAT], ids=["text", "chat"])
def test_they_are_counted_and_dropped_and_without_any_the_artifact_is_the_same(
    bench: Bench, tmp_path: Path, kind: dict[str, str]
) -> None:
    write(tmp_path / "data", range(50), kind)
    before = load(bench, tmp_path / "data", kind, None)
    frozen = bench.made(freeze_rows, FreezeConfig(), rows=before)
    again = load(bench, tmp_path / "data", kind, frozen)
    assert again.meta == before.meta and files(again.path) == files(before.path)

    write(tmp_path / "data", range(103), kind)  # 100, 101 and 102 are test rows
    leaky = load(bench, tmp_path / "data", kind, frozen)
    assert leaky.meta["dropped"] == {"frozen": 3} and leaky.meta["splits"] == {"train": 100, "test": 10}
    kept = table(leaky, "train")
    assert len(next(iter(kept.values()))) == 100 and "row 100" not in json.dumps(kept)
    assert load(bench, tmp_path / "data", kind, None).meta["splits"]["train"] == 103


def test_frozen_rows_without_a_text_column_are_refused(bench: Bench, tmp_path: Path) -> None:
    write(tmp_path / "chats", range(5), CHAT)
    frozen = bench.made(freeze_rows, FreezeConfig(), rows=load(bench, tmp_path / "chats", CHAT, None))
    write(tmp_path / "texts", range(5), TEXT)
    with pytest.raises(DataError, match="frozen rows have no column text"):
        load(bench, tmp_path / "texts", TEXT, frozen)
