"""A file of packed chunks is made before its values are known."""

from __future__ import annotations

from pathlib import Path

from trnflow.tasks.data.pack.chunk_writer import create_columns


def test_a_column_of_more_tokens_than_32_bits_count_is_a_hole_in_the_file(tmp_path: Path) -> None:
    rows = 2**20 + 1
    columns = create_columns(tmp_path / "chunks.arrow", {"input_ids": (rows, 2048)})
    columns["input_ids"][-1, -1] = 7
    assert columns["input_ids"].shape == (rows, 2048)
    assert columns["input_ids"][-1].tolist() == [0] * 2047 + [7]
    assert (tmp_path / "chunks.arrow").stat().st_blocks * 512 < 1 << 20
