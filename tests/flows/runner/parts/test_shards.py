"""A stage that keeps its work in shards makes the same bytes, whatever was made before, and makes only what is new."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.flows.runner.shelf import Shelf, sentences
from tests.helpers.products import sampled
from tests.helpers.s3_server import s3_endpoint, s3_root  # noqa: F401 - fixtures
from trnflow.flows.runner.parts import shards
from trnflow.flows.runner.plan import Step
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import DataError
from trnflow.tasks.keys.key_document import key_of
from trnflow.tasks.store import Store
from trnflow.tasks.store.garbage.collect import collect
from trnflow.tasks.store.garbage.mark import Policy
from trnflow.tasks.store.garbage.pins import add_pin
from trnflow.tasks.store.layout import blob_name
from trnflow.tasks.store.verify import verify

pytestmark = pytest.mark.slow  # one costly fixture for the whole file

PROJECT = Path(__file__).resolve().parents[4]
AT_ONCE = Policy(keep_last=1, grace=0.0)
TRAIN = {"kind": "bpe", "vocab_size": 300}

texts = st.lists(st.text("abcd eé", max_size=60), min_size=1, max_size=30)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(str(tmp_path / "store"), tmp_path)


def counts(step: Step) -> tuple[int, int]:
    """(made, reused)"""
    return step.figures["shards_made"], step.figures["shards_reused"]


def digest(step: Step) -> str:
    assert step.artifact is not None
    return step.artifact.digest


def array(shelf: Shelf, step: Step, name: str) -> list[int]:
    assert step.artifact is not None
    file = next(file for file in step.artifact.files if file.path == f"train/{name}.npy")
    return list(np.load(Path(shelf.root) / blob_name(file.digest)))


def bare(folder: Path, rows: list[Any], **config: Any) -> str:
    """What the stage makes in a store of its own, in one shard."""
    return digest(Shelf(f"memory://{uuid.uuid4().hex}", folder).run(rows, shard_bytes=10**9, **config))


def fourth(shelf: Shelf) -> Meta:
    (made,) = shelf.store().records("tokenize_text")
    (record,) = (shard for shard in shelf.shards() if shard["key"] == made["shards"][3]["key"])
    return record


# --- the bytes


@settings(derandomize=True, max_examples=6, deadline=None)
@given(texts, texts, st.booleans(), st.sampled_from([1, 100, 400]), st.sampled_from(["truncate", "drop", "split"]))
def test_the_bytes_are_the_same_wherever_the_cuts_fall_and_whatever_was_made_before(
    tmp_path_factory: pytest.TempPathFactory, one: list[str], other: list[str], causal: bool, size: int, overlong: str
) -> None:
    folder = tmp_path_factory.mktemp("shelf")
    shelf = Shelf(f"memory://{uuid.uuid4().hex}", folder)
    config = {"shard_bytes": size, "overlong": overlong if causal else overlong.replace("split", "drop")}
    config["max_length"] = 12
    always: list[Any] = [{"parts": [{"text": "a b", "train": True}]}] if causal else [{"text": "a b", "label": 1}]

    def rows(found: list[str]) -> list[Any]:
        made = [
            {"parts": [{"text": text, "train": n % 2 == 0}, {"text": text[:9], "train": True}]}
            if causal
            else {"text": text, "label": n % 3}
            for n, text in enumerate(found)
        ]
        return made + always  # a split that is all dropped is an error

    for given_rows in (rows(one), rows(one + other), rows(other + one)):
        step = shelf.run(given_rows, **config)
        del config["shard_bytes"]
        assert digest(step) == bare(folder, given_rows, **config)
        config["shard_bytes"] = size
    assert shelf.notes == []


def test_tokens_are_those_of_the_rows(shelf: Shelf) -> None:
    """Against a token a letter, counted by hand."""
    rows = sentences(300)
    shelf.run(rows[:280])
    step = shelf.run(rows)
    letters = [row["text"].split() for row in rows]
    assert array(shelf, step, "input_ids") == [ord(letter) - ord("a") + 2 for row in letters for letter in row]
    assert np.diff(array(shelf, step, "offsets")).tolist() == [len(row) for row in letters]
    assert array(shelf, step, "labels") == [row["label"] for row in rows]
    assert counts(step)[1] > 5


# --- what is made


def test_appended_rows_make_the_last_shards_alone(shelf: Shelf, tmp_path: Path) -> None:
    rows = sentences(600)
    made, _ = counts(shelf.run(rows[:594]))
    assert made > 10
    step = shelf.run(rows)
    assert counts(step)[0] <= 2
    assert counts(step)[1] >= made - 1
    assert f"{counts(step)[1]} of {sum(counts(step))} shards were made before" in shelf.heard.said
    assert digest(step) == bare(tmp_path, rows)


def test_rows_taken_out_or_put_in_make_those_next_to_them(shelf: Shelf, tmp_path: Path) -> None:
    rows, at = sentences(600), 300
    made, _ = counts(shelf.run(rows))
    fewer, more = rows[:at] + rows[at + 3 :], rows[:at] + sentences(604)[600:] + rows[at:]
    for changed in (fewer, more):
        step = shelf.run(changed)
        assert counts(step)[0] <= 4
        assert counts(step)[1] >= made - 4
        assert digest(step) == bare(tmp_path, changed)


def test_the_cache_of_a_remote_store_does_not_fill_with_shards(tmp_path: Path) -> None:
    shelf = Shelf(f"memory://{uuid.uuid4().hex}", tmp_path)
    shelf.run(sentences(100))
    store = shelf.store()
    shards = [file.digest for record in shelf.shards() for file in store.artifact(record["artifact"]).files]
    assert len(shards) > 3
    assert not [digest for digest in shards if (store.cache / blob_name(digest)).exists()]


def test_a_small_input_is_one_shard(shelf: Shelf) -> None:
    assert counts(shelf.run(sentences(600), shard_bytes=2 << 20)) == (1, 0)


def test_what_changes_tokens_changes_every_shard_and_nothing_else_does(shelf: Shelf) -> None:
    rows = sentences(200)
    made, _ = counts(shelf.run(rows))
    assert counts(shelf.run(rows, max_length=20)) == (made, 0)
    assert counts(shelf.run(rows, overlong="drop")) == (made, 0)
    trained = shelf.run(rows, train=TRAIN)
    assert counts(trained) == (made, 0)
    # there is nothing more to learn, so training for more entries comes to the same tokenizer
    again = shelf.run(rows, train={**TRAIN, "vocab_size": 3000})
    assert counts(again) == (0, made)
    assert again.key != trained.key
    assert counts(shelf.run(rows, train={**TRAIN, "vocab_size": 262})) == (made, 0)
    documents = [record["document"] for record in shelf.shards()]
    assert {*documents[0]["params"]} == {"task", "framed", "max_length", "overlong", "add_eos"}
    assert {*documents[0]["inputs"]} == {"tokenizer", "rows"}
    assert "trnflow.tasks.data.tokenization.encoders" in documents[0]["code"]
    assert all(record["key"] == key_of(record["document"]) for record in shelf.shards())


def test_a_forced_stage_makes_its_shards_anew(shelf: Shelf) -> None:
    rows = sentences(200)
    first = shelf.run(rows)
    forced = shelf.run(rows, force=True)
    assert counts(forced) == counts(first)
    assert digest(forced) == digest(first)
    assert verify(shelf.store().backend).ok
    assert counts(shelf.run(sentences(203)))[1] >= counts(first)[0] - 1


def test_a_failed_stage_leaves_what_it_made(shelf: Shelf) -> None:
    rows = sentences(300)
    with pytest.raises(DataError, match="split train row 291: 100 tokens"):
        shelf.run([*rows[:290], {"text": "a " * 100, "label": 0}, *rows[290:]], overlong="error", max_length=80)
    left = len(shelf.shards())
    assert left > 5
    step = shelf.run(rows, overlong="error", max_length=80)
    assert counts(step)[1] == left
    assert 1 <= counts(step)[0] <= 3


def test_shards_in_a_bucket(s3_root: str, tmp_path: Path) -> None:  # noqa: F811
    shelf = Shelf(s3_root, tmp_path)
    made, _ = counts(shelf.run(sentences(100)))
    step = shelf.run(sentences(102))
    assert counts(step)[1] >= made - 1 > 0
    assert digest(step) == bare(tmp_path, sentences(102))
    assert [record["stage"] for record in shelf.store().records("tokenize_text")] == ["tokenize_text"] * 2
    assert verify(shelf.store().backend).ok


# --- damage, kills, company


@sampled("what, how", ["file", "manifest", "record"], ["flip", "truncate", "delete"])
def test_a_damaged_shard_is_made_again(shelf: Shelf, tmp_path: Path, what: str, how: str) -> None:
    made, _ = counts(shelf.run(sentences(200)))
    record = fourth(shelf)
    artifact = shelf.store().artifact(record["artifact"])
    name = {"file": blob_name(artifact.files[0].digest), "manifest": blob_name(artifact.digest)}
    path = Path(shelf.root) / name.get(what, f"records/tokenize_text.shard/{record['key']}.json")
    data = path.read_bytes()
    path.unlink()
    if how != "delete":
        path.write_bytes(data[:-1] if how == "truncate" else bytes([data[0] ^ 1]) + data[1:])
    if (what, how) != ("record", "delete"):
        assert not verify(shelf.store().backend).ok
    step = shelf.run(sentences(203))
    assert counts(step)[0] <= 3
    assert counts(step)[1] >= made - 2
    assert digest(step) == bare(tmp_path, sentences(203))
    assert verify(shelf.store().backend).problems == []
    assert shelf.store().missing(artifact) is None


def test_what_verify_takes_out_of_the_way_is_made_again(shelf: Shelf) -> None:
    made, _ = counts(shelf.run(sentences(200)))
    artifact = shelf.store().artifact(fourth(shelf)["artifact"])
    (Path(shelf.root) / blob_name(artifact.files[0].digest)).unlink()
    assert verify(shelf.store().backend, repair=True).ok
    assert len(shelf.shards()) == made - 1
    assert counts(shelf.run(sentences(200), force=True)) == (made, 0)
    assert len(shelf.shards()) == made


def process(shelf: Shelf, run: str, count: int, kill_at: int = 0) -> subprocess.Popen[str]:
    arguments = [shelf.root, str(shelf.folder), run, str(count), str(kill_at)]
    command = [sys.executable, "-m", "tests.flows.runner.shelf", *arguments]
    return subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True)


def test_a_killed_run_has_left_the_shards_it_made(shelf: Shelf, tmp_path: Path) -> None:
    assert process(shelf, "killed", 400, 1203).wait() == -9
    left = len(shelf.shards())
    assert left > 0
    assert shelf.store().records("tokenize_text") == []
    step = shelf.run(sentences(400))
    assert counts(step)[1] == left
    assert counts(step)[0] > 0
    assert digest(step) == bare(tmp_path, sentences(400))
    assert verify(shelf.store().backend).ok


def test_two_processes_at_once_on_data_that_overlaps(shelf: Shelf, tmp_path: Path) -> None:
    sides = [process(shelf, "one", 500), process(shelf, "two", 503)]
    assert [side.wait() for side in sides] == [0, 0]
    for count in (500, 503):
        step = shelf.run(sentences(count))
        assert step.action == "hit"
        assert digest(step) == bare(tmp_path, sentences(count))
    assert verify(shelf.store().backend).ok
    assert counts(shelf.run(sentences(506)))[0] <= 2


# --- garbage


def test_a_kept_record_keeps_its_shards_and_others_go(shelf: Shelf, tmp_path: Path) -> None:
    old, new = shelf.run(sentences(290), run="r1"), shelf.run(sentences(293), run="r2")
    for run, step in (("20260101T000000Z-a", old), ("20260102T000000Z-a", new)):
        shelf.record_run(run, step)
    before = {record["key"] for record in shelf.shards()}
    done = collect(shelf.store().backend, AT_ONCE, yes=True)
    after = {record["key"] for record in shelf.shards()}
    assert len(before - after) == 1  # the last one, which ended with the old data
    assert done.swept.files["records"] == 2
    record = shelf.store().record("tokenize_text", str(new.key))
    assert record is not None
    assert {shard["key"] for shard in record["shards"]} == after
    assert verify(shelf.store().backend).ok
    assert verify(shelf.store().backend).unreferenced == 0
    again = shelf.run(sentences(290))
    assert counts(again) == (1, len(after) - 1)
    assert digest(again) == digest(old)


def test_a_pinned_artifact_keeps_its_shards(shelf: Shelf) -> None:
    step = shelf.run(sentences(300))
    maker = {"stage": "tokenize_text", "key": step.key}
    add_pin(shelf.store().backend, "tokens", {"artifact": digest(step), "records": [maker]})
    collect(shelf.store().backend, Policy(keep_last=0, grace=0.0), yes=True)
    assert len(shelf.shards()) == counts(step)[0]
    shutil.rmtree(shelf.folder / "home")
    assert counts(shelf.run(sentences(303)))[0] <= 2


def test_shards_collected_while_they_are_used_cost_work_and_no_result(shelf: Shelf, tmp_path: Path) -> None:
    """Nothing but the texts is held between the runs, and collections follow one another with no grace at all."""
    expected = {count: digest(shelf.run(sentences(count))) for count in (290, 293, 296)}
    done, collected = threading.Event(), []

    def collecting() -> None:
        while not done.is_set():
            collected.append(collect(shelf.store().backend, Policy(keep_last=0, grace=0.0), yes=True).swept)

    collector = threading.Thread(target=collecting)
    collector.start()
    try:
        for count in (290, 296, 293, 290):
            assert digest(shelf.run(sentences(count))) == expected[count]
    finally:
        done.set()
        collector.join()
    assert sum(tally.files["records"] for tally in collected) > 10
    assert {note.rpartition("; ")[2] for note in shelf.notes} <= {"made anew"}  # none tells of other bytes
    # without grace a record may be left that names what was purged: a miss, made anew by whoever needs it
    assert {count: digest(shelf.run(sentences(count))) for count in expected} == expected
    assert {count: digest(shelf.run(sentences(count), force=True)) for count in expected} == expected
    assert verify(shelf.store().backend).problems == []


def test_the_journal_is_written_now_and_then_and_not_for_each_shard(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Meta] = []
    write = Store.write_attempt

    def counting(store: Store, key: str, attempt: str, document: Meta) -> None:
        written.append({"shards": len(document.get("shards", []))})
        write(store, key, attempt, document)

    monkeypatch.setattr(Store, "write_attempt", counting)
    monkeypatch.setattr(shards, "JOURNAL_SECONDS", 1e9)
    made, reused = counts(shelf.run(sentences(300)))
    assert made > 3 and reused == 0
    assert [one["shards"] for one in written if one["shards"]] == [1, made]
