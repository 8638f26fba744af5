"""A worker whose libraries are not the flow's makes nothing; what another makes is on record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.flows.runner.shelf import Shelf, sentences
from tests.helpers.inline_calls import inline_calls  # noqa: F401 - a fixture
from trnflow.flows.runner.parts.worker_process import make_part_apart
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import CodeError
from trnflow.tasks.launch.call import Call


class OtherLibrary:
    """Workers of a flow whose key was made with another version of a library."""

    def make(self, calls: Iterable[Call]) -> Iterator[Meta]:
        for call in calls:
            document = call.to_json()
            document["document"]["env"]["tokenizers"] = "0.0.1"
            yield make_part_apart(document)


def test_a_part_of_another_librarys_version_is_refused(tmp_path: Path, inline_calls: None) -> None:  # noqa: F811
    shelf = Shelf(str(tmp_path / "store"), tmp_path)
    with pytest.raises(CodeError, match=r"this worker has tokenizers .*, the flow 0\.0\.1"):
        shelf.run(sentences(20), part_maker=OtherLibrary())
    assert not shelf.shards()


class Asked:
    """Workers that keep what they are asked."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def make(self, calls: Iterable[Call]) -> Iterator[Meta]:
        for call in calls:
            self.calls.append(call)
            yield make_part_apart(call.to_json())


@pytest.mark.parametrize("replaces", [False, True])
def test_a_part_that_is_forced_replaces_the_one_on_record(tmp_path: Path, inline_calls: None, replaces: bool) -> None:  # noqa: F811
    shelf, asked = Shelf(str(tmp_path / "store"), tmp_path), Asked()
    shelf.run(sentences(5), part_maker=asked)
    store, (call,), (record,) = shelf.store(), asked.calls, shelf.shards()
    (tmp_path / "other").mkdir()
    other = store.ingest(tmp_path / "other", "tokens.shard", {})
    store.publish({**record, "artifact": other.digest}, replace=True)  # type: ignore[arg-type]
    made = make_part_apart(replace(call, phase=replace(call.phase, replace=replaces)).to_json())
    assert made["made"] == record["artifact"] and made["artifact"] == (made["made"] if replaces else other.digest)
