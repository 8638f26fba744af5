"""Data files made for a test, and what a failed stage said."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from tests.helpers.data_stages import Bench

REVIEWS = {"text": ["good", "bad, really", 'so "so"\nfine', "good again"], "stars": [5, 1, 3, 4]}
PACKS = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": partial(pa.compress, codec="zstd", asbytes=True),
}


def write(path: Path, columns: dict, kind: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = pa.table(columns)
    match kind or path.suffix[1:]:
        case "parquet":
            pq.write_table(data, path)
        case "csv":
            pyarrow.csv.write_csv(data, path)
        case "tsv":
            pyarrow.csv.write_csv(data, path, pyarrow.csv.WriteOptions(delimiter="\t"))
        case "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in data.to_pylist()))
        case "json":
            path.write_text(json.dumps(data.to_pylist()))
        case "arrow":
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, data.schema) as writer:
                writer.write_table(data)
        case "feather":
            pyarrow.feather.write_feather(data, path)
    return path


def failure(bench: Bench, kind: type[Exception], **data) -> str:
    with pytest.raises(kind) as caught:
        bench.rows(**data)
    assert "\n" not in str(caught.value)
    return str(caught.value)
