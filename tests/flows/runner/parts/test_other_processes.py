"""Parts that other processes make: what passes through S3, through the work folder, and what the cache keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests.flows.runner.parts.test_shards import counts, digest
from tests.flows.runner.shelf import Shelf, sentences
from tests.helpers.s3_server import downloads, s3_endpoint, s3_root  # noqa: F401 - fixtures
from trnflow.flows.runner.parts.worker_process import make_part_apart
from trnflow.tasks.artifact import Meta
from trnflow.tasks.keys.hash_cache import sha256_file
from trnflow.tasks.launch.call import Call
from trnflow.tasks.store import Store
from trnflow.tasks.store.layout import blob_name

pytestmark = pytest.mark.slow


class OtherProcesses:
    def make(self, calls: Iterable[Call]) -> Iterator[Meta]:
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
            yield from pool.map(make_part_apart, (call.to_json() for call in calls))


def test_shards_of_other_processes_are_handed_over_and_those_of_earlier_runs_are_not_cached(
    s3_root: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    def blobs(artifacts: Iterable[str]) -> set[str]:
        return {Path(blob_name(file.digest)).name for digest in artifacts for file in store.artifact(digest).files}

    def cached() -> set[str]:
        return {path.name for path in store.cache.rglob("*") if path.is_file()}

    shelf = Shelf(s3_root, tmp_path)
    first = shelf.run(sentences(100), part_maker=OtherProcesses())
    store = shelf.store()
    read = Counter(Path(name).name for name in downloads(s3_root))
    parts, output = blobs(record["artifact"] for record in shelf.shards()), blobs([digest(first)])
    assert counts(first) == (len(shelf.shards()), 0)
    assert len(parts - output) > 10
    assert not read.keys() & (parts | output)
    assert output <= cached()
    assert not cached() & (parts - output)

    (record,) = store.records("tokenize_text")
    store.backend.remove(f"records/tokenize_text/{record['key']}.json")
    again = shelf.run(sentences(100), part_maker=OtherProcesses())
    assert counts(again) == (0, counts(first)[0])
    assert digest(again) == digest(first)
    read = Counter(Path(name).name for name in downloads(s3_root))
    users = Counter(name for record in shelf.shards() for name in blobs([record["artifact"]]))
    assert {name: read[name] for name in parts - output} == {name: users[name] for name in parts - output}
    assert not read.keys() & output
    assert not cached() & (parts - output)
    assert shelf.run(sentences(100)).action == "hit"

    elsewhere = Store(s3_root, tmp_path / "another machine")
    elsewhere.copy_files(elsewhere.artifact(digest(first)), tmp_path / "copy", cache=False)
    assert not elsewhere.cache.exists()
    assert {sha256_file(path).removeprefix("sha256:") for path in (tmp_path / "copy").rglob("*.npy")} <= output
