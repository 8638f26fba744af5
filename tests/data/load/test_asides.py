"""The places of rows in the user's files, against these files as pandas reads them; keys count none of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from tests.helpers.data_stages import Bench
from trnflow.tasks.artifact import ASIDE
from trnflow.tasks.data.load.asides import LONGEST, MOST, batches_with
from trnflow.tasks.data.load.readers import RowReader
from trnflow.tasks.errors import DataError
from trnflow.tasks.keys.key_document import counted
from trnflow.tasks.store import Store

WRITERS = {
    "csv": lambda rows, file: rows.to_csv(file, index=False),
    "tsv": lambda rows, file: rows.to_csv(file, index=False, sep="\t"),
    "jsonl": lambda rows, file: rows.to_json(file, orient="records", lines=True),
    "parquet": lambda rows, file: rows.to_parquet(file),
}


def frame(count: int, name: str = "a") -> pd.DataFrame:
    numbers = pd.Series(range(count))
    texts = [f"text {number} of {name}" for number in numbers]
    texts[3::10] = [texts[0]] * len(texts[3::10])  # repeated
    return pd.DataFrame(
        {"id": numbers * 7, "body": texts, "label": [f"c{number % 3}" for number in numbers], "seen": numbers % 2 == 0,
         "weight": numbers / 4, "note": [f"{name}{number} " + "long " * 100 for number in numbers]}
    )  # fmt: skip


def aside(rows: Any, split: str) -> pd.DataFrame:
    return pd.read_parquet(rows.path / f"{ASIDE}{split}.parquet")


@pytest.mark.parametrize("kind", WRITERS)
def test_each_row_has_its_number_in_the_file_and_the_columns_left_out(kind: str, bench: Bench, tmp_path: Path) -> None:
    given = frame(9_000)  # more than a batch
    WRITERS[kind](given, file := tmp_path / f"mine.{kind}")
    choice = {"split": {"test": 0.2, "validation": 0.1}, "dedupe": True, "limit": {"train": 500}}
    rows = bench.rows(source=str(file), text="body", label="label", **choice)
    for split in ("train", "validation", "test"):
        written, places = pd.read_parquet(rows.path / f"{split}.parquet"), aside(rows, split)
        assert len(written) == len(places) > 0 and set(places["file"]) == {file.name}
        mine = given.iloc[places["row"].to_numpy() - 1]
        assert mine["body"].tolist() == written["body"].tolist()
        assert places["column id"].astype(int).tolist() == mine["id"].tolist()
        assert places["column note"].tolist() == mine["note"].str[: LONGEST + 1].tolist()
        assert places["column seen"].str.lower().tolist() == mine["seen"].astype(str).str.lower().tolist()
        assert places["column weight"].astype(float).tolist() == mine["weight"].tolist()


def test_of_a_mixture_with_repeated_rows_each_keeps_its_file(bench: Bench, tmp_path: Path) -> None:
    frames = {"a": frame(300, "a"), "b": frame(40, "b").rename(columns={"body": "said", "id": "code"})}
    for name, rows in frames.items():
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
    mix: dict[str, Any] = {
        "a": {"source": str(tmp_path / "a.csv"), "weight": 0.5},
        "b": {"source": str(tmp_path / "b.csv"), "text": "said", "weight": 0.5},
    }
    found = bench.rows(
        source=None, mix=mix, text="body", label="label", split={"test": 0.1}, stopping_strategy="all_exhausted"
    )
    written, places = pd.read_parquet(found.path / "train.parquet"), aside(found, "train")
    assert set(places["file"]) == {"a.csv", "b.csv"} and places.duplicated(["file", "row"]).any()
    texts = {"a.csv": frames["a"]["body"], "b.csv": frames["b"]["said"]}
    assert [texts[row.file].iloc[row.row - 1] for row in places.itertuples()] == written["body"].tolist()
    assert places["column id"].isna().tolist() == (places["file"] == "b.csv").tolist()
    assert places["column code"].notna().tolist() == (places["file"] == "b.csv").tolist()


def test_documents_lists_and_bytes_are_not_kept_aside(bench: Bench, tmp_path: Path) -> None:
    rows = frame(30).assign(
        page=[f"{number}" * 5_000 for number in range(30)], tags=[["x", "y"]] * 30, image=[b"\x00"] * 30
    )
    rows["when"] = pd.Timestamp("2026-01-02")
    rows = rows.assign(**{f"further {number}": "x" for number in range(30)})
    rows.to_parquet(tmp_path / "mine.parquet")
    places = aside(bench.rows(source=str(tmp_path / "mine.parquet"), text="body", label="label"), "train")
    kept = [name.removeprefix("column ") for name in places.columns if name.startswith("column ")]
    assert kept[:5] == ["id", "seen", "weight", "note", "when"] and len(kept) == MOST
    assert not {"page", "tags", "image"} & {*kept} and places["column when"][0].startswith("2026-01-02")


def test_keys_count_the_artifact_without_its_files_aside(bench: Bench, tmp_path: Path) -> None:
    """The digest is that of an artifact which never had them, so results of earlier versions stay."""
    frame(50).to_csv(tmp_path / "mine.csv", index=False)
    rows = bench.rows(source=str(tmp_path / "mine.csv"), text="body", label="label", split={"test": 0.2})
    store = Store(str(tmp_path / "store"), tmp_path / "home")
    store.prepare()
    shutil.copytree(rows.path, copy := tmp_path / "copy")
    shutil.rmtree(copy / ASIDE)
    whole, without = (store.ingest(folder, "rows", rows.meta) for folder in (rows.path, copy))
    assert counted(whole) == without and whole.digest != without.digest
    assert counted(without) is without
    names = ["aside/test.parquet", "aside/train.parquet", "test.parquet", "train.parquet"]
    assert [file.path for file in whole.files] == names and [file.path for file in without.files] == names[2:]


def test_a_column_beside_the_rows_that_can_t_be_read_costs_no_row_and_repeats_none() -> None:
    """With fewer columns the batches are larger: 5 of the 12 rows were read before."""
    numbers = pa.table({"read": range(12), "aside": range(12)})

    def batches(names: list[str]) -> Iterator[pa.RecordBatch]:
        whole = numbers.select(names).combine_chunks()
        for start, size in ((0, 2), (2, 3)) if "aside" in names else ((0, 4), (4, 4), (8, 4)):
            yield whole.slice(start, size).to_batches()[0]
        if "aside" in names:
            raise DataError("broken", "")

    rows = RowReader("a", numbers.schema, batches)
    found = [number for batch in batches_with(rows, ["read"], ["aside"]) for number in batch.column("read").to_pylist()]
    assert found == [*range(12)]
