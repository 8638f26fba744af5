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


def test_a_link_to_a_file_stays(tmp_path: Path) -> None:
    """Such as a user's to a sweep's best recipe, or to a page."""
    (tmp_path / "best.yaml").symlink_to("kept.yaml")
    write_whole(tmp_path / "best.yaml", "new")
    assert (tmp_path / "best.yaml").is_symlink() and (tmp_path / "kept.yaml").read_text() == "new"
