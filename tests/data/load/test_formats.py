"""The registry of file formats."""

from __future__ import annotations

import re

import pytest

from trnflow.tasks.data.load.readers import READERS, reads
from trnflow.tasks.errors import CodeError
from trnflow.tasks.sources.data_files import FORMATS


def test_each_format_has_a_reader() -> None:
    assert READERS.keys() == set(FORMATS.values())


def test_a_second_reader_is_refused_with_both_places() -> None:
    first = READERS["csv"]
    with pytest.raises(CodeError) as error:
        reads("csv")(lambda path, name: first(path, name))
    here = re.escape(__file__)
    assert re.search(rf"the format csv has two readers: \S+load/readers\.py:\d+ and {here}:\d+", error.value.message)
    assert READERS["csv"] is first
