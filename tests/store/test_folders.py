from __future__ import annotations

from pathlib import Path

from trnflow.tasks.store.folders import files_below

NAMES = ("b", "a/z", "a.txt", "a-b/x", "a/b/c", "a/b.c", "a b/y", ".hidden", "a/\x01", "ä/é")


def test_files_are_sorted_folder_by_folder_and_links_to_files_are_files(tmp_path: Path) -> None:
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").symlink_to(tmp_path / "b")
    found = sorted(path for path in tmp_path.rglob("*") if not path.is_dir())
    assert files_below(tmp_path) == [path.relative_to(tmp_path).as_posix() for path in found]
    assert {*files_below(tmp_path)} == {*NAMES, "file"}
