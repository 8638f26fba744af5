"""The store's copy of a run's logs: whatever grows, fails and is read when, a reader gets each line once."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.stores import new_store
from trnflow.tasks.errors import ReadOnlyStore, StoreError
from trnflow.tasks.events import log_copy, log_file
from trnflow.tasks.events.log_copy import EVENTS, CopiedLogs, LogCopy, copying
from trnflow.tasks.store import Store
from trnflow.tasks.store.garbage.collect import collect
from trnflow.tasks.store.garbage.mark import Policy
from trnflow.tasks.system.redaction import add_secret

RUN = "20260101T000000Z-abc123"
ATTEMPT = f"{RUN}-train-0001"
DOINGS = ("end of line", "copy", "copy that fails", "copy that is not acknowledged", "read")
STEPS = st.lists(st.one_of(st.integers(0, 60), st.sampled_from(DOINGS)), max_size=40)
"""Bytes to write, or what else happens."""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return new_store(tmp_path)


def write(file: Path, data: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as handle:
        handle.write(data)


def stage_log(store: Store) -> Path:
    return log_file(store.home, RUN).with_name(f"{ATTEMPT}.log")


@given(STEPS)
def test_a_reader_gets_each_line_once(tmp_path_factory: pytest.TempPathFactory, steps: list[int | str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_copy, "PIECE_BYTES", 32)
        patch.setattr(log_copy, "KEPT_PIECES", 10_000)
        patch.setattr(log_copy, "PRINTED_EVERY", 1)
        store = new_store(tmp_path_factory.mktemp("store"))
        copy, reader = LogCopy(store.backend, store.home, RUN), CopiedLogs(store.backend, RUN)
        file, got = stage_log(store), b""
        write(log_file(store.home, RUN), b"")
        write(file, b"")
        replace = store.backend.replace

        def fails(name: str, data: bytes, *, durable: bool = True) -> None:
            raise StoreError("503")

        def is_lost(name: str, data: bytes, *, durable: bool = True) -> None:
            replace(name, data, durable=durable)
            raise StoreError("no answer")

        for number, what in enumerate(steps):
            if isinstance(what, int):
                write(file, (str(number % 10) * what).encode())
            elif what == "end of line":
                write(file, b"\n")
            elif what == "read":
                got += reader.new().get(ATTEMPT, b"")
            else:
                wrong = {"copy": replace, "copy that fails": fails}.get(what, is_lost)
                patch.setattr(store.backend, "replace", wrong)
                copy.copy()
                patch.setattr(store.backend, "replace", replace)
            assert file.read_bytes().startswith(got)
        copy.finish()
        got += reader.new().get(ATTEMPT, b"")
        assert got == file.read_bytes() == CopiedLogs(store.backend, RUN).new().get(ATTEMPT, b"")


def test_a_long_log_is_a_few_files_of_which_the_first_and_the_last_stay(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_copy, "PIECE_BYTES", 100)
    write(log_file(store.home, RUN), b"".join(b'{"n": %d}\n' % number for number in range(1000)))
    write(stage_log(store), b"".join(b"line %04d\n" % number for number in range(1000)))
    written = []
    replace = store.backend.replace

    def count(name: str, data: bytes, *, durable: bool = True) -> None:
        written.append(name)
        replace(name, data, durable=durable)

    monkeypatch.setattr(store.backend, "replace", count)
    LogCopy(store.backend, store.home, RUN).finish()
    numbers = sorted(int(Path(name).stem) for name in store.backend.names(f"logs/{RUN}/{ATTEMPT}"))
    assert numbers[0] == 0 and len(numbers) <= 9 and numbers[1:] == [*range(numbers[1], numbers[1] + 8)]
    assert len([name for name in written if ATTEMPT in name]) < 15, "what would be removed is not written first"
    text = CopiedLogs(store.backend, RUN).new()[ATTEMPT]
    assert text.startswith(b"line 0000\n") and text.endswith(b"line 0998\nline 0999\n") and b"\n(...)\nline" in text
    assert len(CopiedLogs(store.backend, RUN).events()) == 1000, "of events all stay"


def test_a_line_without_end_is_left_out_and_a_progress_bar_is_not(store: Store) -> None:
    write(
        stage_log(store), b"one\n" + b"x" * ((1 << 20) + 100) + b"\ntwo\n" + b"\r".join(b"%d%%" % n for n in range(100))
    )
    LogCopy(store.backend, store.home, RUN).copy()
    text = CopiedLogs(store.backend, RUN).new()[ATTEMPT]
    assert text.startswith(b"one\n(a line of more than 1 MiB") and b"xx" not in text[:200]
    assert b"\ntwo\n0%\r1%\r" in text and text.endswith(b"98%\r")


def test_the_runs_end_comes_last_and_is_tried_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_copy, "AGAIN_SECONDS", 0.0)
    write(log_file(store.home, RUN), b'{"n": 0}\n')
    write(stage_log(store), b"the last words")
    replace, failures = store.backend.replace, iter([True, False, True, False])

    def fails_at_first(name: str, data: bytes, *, durable: bool = True) -> None:
        if next(failures):
            raise StoreError("503")
        assert name.endswith(".log") or store.backend.names(f"logs/{RUN}/{ATTEMPT}")
        replace(name, data, durable=durable)

    monkeypatch.setattr(store.backend, "replace", fails_at_first)
    LogCopy(store.backend, store.home, RUN).finish()
    assert CopiedLogs(store.backend, RUN).new() == {ATTEMPT: b"the last words", EVENTS: b'{"n": 0}\n'}


def test_the_end_does_not_wait_for_a_store_that_is_read_only_nor_for_a_log_that_is_gone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_copy.time, "sleep", lambda seconds: pytest.fail("it waits"))
    LogCopy(store.backend, store.home, RUN).finish()
    write(log_file(store.home, RUN), b'{"n": 0}\n')
    write(stage_log(store), b"the last words")
    tried = []

    def refuse(name: str, data: bytes, *, durable: bool = True) -> None:
        tried.append(name)
        raise ReadOnlyStore("403")

    monkeypatch.setattr(store.backend, "replace", refuse)
    LogCopy(store.backend, store.home, RUN).finish()
    assert len(tried) == 2


def test_a_copy_has_no_secrets(store: Store) -> None:
    add_secret("pa55word-of-test-log_copy")
    write(stage_log(store), b"token pa55word-of-test-log_copy\nhttps://ann:hunter2@host.example/\nnot UTF-8: \xff\n")
    LogCopy(store.backend, store.home, RUN).copy()
    text = CopiedLogs(store.backend, RUN).new()[ATTEMPT]
    assert text == b"token ***\nhttps://***@host.example/\nnot UTF-8: \xff\n"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(log_copy, "COPY_SECONDS", 0.01)
    yield


def test_a_thread_copies_until_the_end_and_a_sign_of_life_replaces_news(
    store: Store, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = CopiedLogs(store.backend, RUN)
    assert not reader.events() and reader.is_silent
    name = f"logs/{RUN}/0.jsonl"
    with copying(store.backend, store.home, RUN):
        write(log_file(store.home, RUN), json.dumps({"n": 0, "time": 1.0, "event": "unknown"}).encode() + b"\n")
        until = time.monotonic() + 30
        while not reader.events() and time.monotonic() < until:
            time.sleep(0.01)
        assert not reader.is_silent
        os.utime(store.backend.local / name, (1, 1))  # type: ignore[operator]
        monkeypatch.setattr(log_copy, "SIGN_SECONDS", 0.1)
        while store.backend.entries(name.rpartition("/")[0])[0].time < 2 and time.monotonic() < until:
            time.sleep(0.01)
        assert store.backend.entries(f"logs/{RUN}")[0].time > 2
        write(log_file(store.home, RUN), b"the last words")
    assert store.backend.read(name).endswith(b"the last words"), "once more at the end"


def test_gc_keeps_the_whole_copy_of_a_run_in_progress(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_copy, "PIECE_BYTES", 10)
    write(log_file(store.home, RUN), b"12345678\n" * 3)
    LogCopy(store.backend, store.home, RUN).copy()
    first, *others = store.backend.names(f"logs/{RUN}")
    os.utime(store.backend.local / first, (1, 1))  # type: ignore[operator]
    collect(store.backend, Policy(grace=3600.0), yes=True)
    assert first in store.backend.names(f"logs/{RUN}")
    for other in others:
        os.utime(store.backend.local / other, (1, 1))  # type: ignore[operator]
    collect(store.backend, Policy(grace=3600.0), yes=True)
    assert not store.backend.names(f"logs/{RUN}")


def test_what_was_added_after_the_listing_is_read_before_the_next_piece(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, (first, second) = CopiedLogs(store.backend, RUN), (f"logs/{RUN}/{n}.jsonl" for n in (0, 1))
    store.backend.replace(first, b'{"n": 0}\n')
    assert len(reader.events()) == 1
    (seen,) = store.backend.entries(f"logs/{RUN}")
    store.backend.replace(first, b'{"n": 0}\n{"n": 1}\n')
    store.backend.replace(second, b'{"n": 2}\n')
    (_, next_one) = sorted(store.backend.entries(f"logs/{RUN}"))
    # a local folder is not listed at one moment
    monkeypatch.setattr(store.backend, "entries", lambda prefix: [seen, next_one])
    assert len(reader.events()) == 2


def test_a_file_that_nobody_of_this_program_wrote_is_not_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_copy, "LONGEST_PIECE", 100)
    for name, data in (
        ("0.jsonl", b"{}\n" * 50),
        ("1.jsonl", b"{}\n"),
        (f"{ATTEMPT}/0.log", b"x\n" * 60),
        ("more.txt", b"x"),
    ):
        store.backend.create(f"logs/{RUN}/{name}", data)
    assert CopiedLogs(store.backend, RUN).new() == {EVENTS: b"{}\n"}


def test_a_run_is_silent_after_three_signs_that_did_not_come(store: Store) -> None:
    copied = CopiedLogs(store.backend, RUN)
    assert copied.is_silent, "it has no copy"
    for seconds, silent in ((170, False), (190, True)):
        copied.signed = time.time() - seconds
        assert copied.is_silent == silent
