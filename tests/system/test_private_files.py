"""What lies in a home is its user's alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from trnflow.tasks.system.private_files import is_private, lookup_name, make_home


@pytest.fixture(autouse=True)
def usual_mask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_new_home_and_its_secret_are_open_to_nobody_else(tmp_path: Path) -> None:
    home = tmp_path / "folder" / "home"
    make_home(home)
    name = lookup_name(home, "s3://KEY:secret@bucket")
    assert (mode(home), mode(home / "secret")) == (0o700, 0o600) and is_private(home)
    assert name == lookup_name(home, "s3://KEY:secret@bucket") != lookup_name(home, "s3://bucket")
    assert name != lookup_name(tmp_path / "other", "s3://KEY:secret@bucket"), "each home has a secret of its own"
    home.chmod(0o750)
    make_home(home)
    assert mode(home) == 0o750 and not is_private(home), "an existing home keeps its mode"
