"""A worker whose libraries are not the flow's makes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
