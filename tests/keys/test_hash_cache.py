from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers.command_line import Shell, write_project
from trnflow.tasks.keys.hash_cache import Memo, in_threads, sha256_file, sha256_files, stamp

SIZES = (0, 1, (1 << 17) - 1, 1 << 17, (1 << 17) + 1, (1 << 20) + (1 << 17), 3_000_001)


def hashed(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@pytest.mark.parametrize("size", SIZES)
def test_the_hash_of_a_file_of_any_size(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    (tmp_path / "file").write_bytes(data)
    assert sha256_file(tmp_path / "file") == hashed(data)


@pytest.mark.parametrize("count", [0, 1, 63, 64, 5000])
def test_threads_keep_the_order(count: int) -> None:
    assert in_threads(lambda number: number * 2, range(count), 4) == [number * 2 for number in range(count)]


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("x")
    with pytest.raises(FileNotFoundError):
        sha256_files([tmp_path / "there", tmp_path / "gone"])


def test_what_is_remembered_follows_the_bytes_and_outlives_the_process(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}" for number in range(200)]
    for path in paths:
        path.write_text(path.name)
    before = [(hashed(path.name.encode()), stamp(path)) for path in paths]
    assert Memo(tmp_path / "memo.db").stamped(paths) == before
    again = Memo(tmp_path / "memo.db")
    assert [again.get("digest", path, now) for path, (_, now) in zip(paths, before, strict=True)] == [
        digest for digest, _ in before
    ]
    paths[7].write_text("x")  # in place, as many bytes
    assert again.digests(paths) == [hashed(path.read_bytes()) for path in paths]


def test_text_and_documents_come_back_as_they_were(tmp_path: Path) -> None:
    values = ["sha256:0", "", '"', "{}", {"a": [1, None]}, [], 1, 1.5, True]
    memo = Memo(tmp_path / "memo.db")
    for number, value in enumerate(values):
        memo.put("kind", f"{number}", "now", value)
    memo.save()
    again = Memo(tmp_path / "memo.db")
    assert [again.get("kind", f"{number}", "now") for number in range(len(values))] == values
    assert again.get("kind", "0", "later") is None


def test_threads_that_ask_first_all_find_what_is_known(tmp_path: Path) -> None:
    memo = Memo(tmp_path / "memo.db")
    for number in range(5000):
        memo.put("blob", f"{number}", "now", f"{number}")
    memo.save()
    again = Memo(tmp_path / "memo.db")
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: again.get("blob", f"{number}", "now"), range(5000)))
    assert found == [f"{number}" for number in range(5000)]


def test_a_broken_memo_only_costs_time(tmp_path: Path) -> None:
    (tmp_path / "memo.db").write_text("not a database, and longer than a header of one hundred bytes " * 9)
    (tmp_path / "file").write_text("x")
    assert Memo(tmp_path / "memo.db").digest(tmp_path / "file") == hashed(b"x")


@contextmanager
def switching_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def test_threads_may_go_on_remembering_while_it_is_saved(tmp_path: Path) -> None:
    memo, numbers = Memo(tmp_path / "memo.db"), range(30_000)
    with switching_often(), ThreadPoolExecutor(1) as pool:
        put = pool.submit(lambda: [memo.put("kind", f"{number}", "now", f"{number}") for number in numbers])
        while not put.done():
            for number in range(20_000):  # so that saving takes a while
                memo.put("other", f"{number}", "now", "")
            memo.save()
    put.result()
    assert [memo.get("kind", f"{number}", "now") for number in numbers] == [f"{number}" for number in numbers]


@pytest.mark.slow
def test_a_home_without_a_hash_cache_makes_the_keys_that_this_sessions_gives(tmp_path: Path) -> None:
    """Homes of tests begin with a cache that holds each stage's code: this one begins without, in a process of its own."""

    def keys(folder: Path, *, warm: bool) -> list[str | None]:
        shell = Shell(write_project(folder))
        shell.warm = warm
        done = shell.json("run", "mine.yaml", "--until", "format_prompts", "--direct", "tracking.enabled=false")
        return [stage["key"] for stage in done["stages"]]

    warm = keys(tmp_path / "warm", warm=True)
    assert keys(tmp_path / "cold", warm=False) == warm and None not in warm[:2]
