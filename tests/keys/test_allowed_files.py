"""Which files a stage may read although no key knows them."""

from __future__ import annotations

from pathlib import Path

from trnflow.tasks.artifact import CODE, Source
from trnflow.tasks.keys.allowed_files import _locations, _sorted_out


def test_only_what_lies_below_a_root_is_permitted_and_never_the_root_itself(tmp_path: Path) -> None:
    root = tmp_path / "project"
    (root / "store").mkdir(parents=True)
    (root / "rows.csv").touch()
    (tmp_path / "project-2").mkdir()
    paths = [tmp_path, root, root / "store", root / "rows.csv", tmp_path / "project-2"]
    assert _sorted_out(paths, ((f"{root}/", f"{root}/"),)) == ({f"{root}/rows.csv"}, {f"{root}/store/"})


def test_the_files_of_sources_are_permitted_and_those_of_code_only_by_its_key() -> None:
    rows = Source("data", {}, {"files": [{"path": "/rows/a.csv", "name": "a.csv"}], "deep": {"more": ("/b", 3, None)}})
    assert sorted(_locations([rows, Source(CODE, {}, {"files": {"mine": "/mine.py"}})])) == ["/b", "/rows/a.csv"]
