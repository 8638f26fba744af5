"""How many rows files have, by the first ones."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from trnflow.flows.runner.expected_time import _rows_in, _Seen, spoken

PART = _Seen(rows=10, tokens=30.0, bytes=100, is_whole=False, outputs=0)


def test_rows_are_counted_or_follow_from_bytes_but_not_from_compressed_ones(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl", "c.jsonl.gz"):
        (tmp_path / name).write_bytes(b"x" * 150)
    pq.write_table(pa.table({"a": range(7)}), tmp_path / "d.parquet")
    plain, other, packed, parquet = sorted(tmp_path.iterdir())
    assert _rows_in([plain, other], PART) == 30
    assert _rows_in([plain, packed], PART) is None
    assert _rows_in([parquet, parquet], PART) == 14
    assert _rows_in([packed], PART._replace(is_whole=True)) == 10


def test_a_time_is_told_in_the_largest_unit_that_it_has_one_and_a_half_of() -> None:
    said = {
        1.0: "1 second",
        89.0: "90 seconds",
        90.0: "2 minutes",
        5399.0: "90 minutes",
        5400.0: "2 hours",
        200_000.0: "2 days",
    }
    assert {seconds: spoken(seconds) for seconds in said} == said
