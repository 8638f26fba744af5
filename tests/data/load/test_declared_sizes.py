"""What a small file says of its own parts is added up before anything is decompressed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trnflow.tasks.data.load.readers import open_file
from trnflow.tasks.errors import DataError

MB = 1 << 20


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound of 2 MB instead of 64."""
    monkeypatch.setattr("trnflow.tasks.sources.data_files.ALWAYS_UNPACKED", 2 * MB)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_footer_that_says_less_than_pages_of_each_version_is_not_believed(version: str, tmp_path: Path) -> None:
    numbers = pa.ListArray.from_arrays([0, 2_000_000], pa.array([0] * 2_000_000, pa.int64()))
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a"], "numbers": numbers}), file, data_page_version=version)
    content = file.read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    honest, lie = b"\x80\x92\xf4\x01", b"\x94\x80\x80\x00"  # 2,000,000 and 10, in as many bytes
    assert honest in content[footer:]
    file.write_bytes(content[:footer] + content[footer:].replace(honest, lie))
    with pytest.raises(DataError, match="to more than 16,0"):
        next(open_file(file, "parquet", "a.parquet").batches(["numbers"]))


def test_a_compressed_dictionary_of_an_arrow_file_counts(tmp_path: Path) -> None:
    texts = pa.array([f"{number} " + "a" * 100_000 for number in range(50)])
    data = pa.table({"text": texts.dictionary_encode()})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), data.schema, options=options) as writer:
        writer.write_table(data)
    with pytest.raises(DataError, match=r"a\.arrow grows from .* to more than 5,0"):
        open_file(tmp_path / "a.arrow", "arrow", "a.arrow")
