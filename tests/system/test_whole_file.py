"""A text file is replaced at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from trnflow.tasks.system.whole_file import write_whole


def test_a_write_that_fails_leaves_the_old_text_and_nothing_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "new folder" / "page.html"
    write_whole(file, "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(file, "\ud800")
    assert [(left, left.read_text()) for left in file.parent.iterdir()] == [(file, "old")]
