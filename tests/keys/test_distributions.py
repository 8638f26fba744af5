"""The versions of installed distributions, as keys have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from trnflow.tasks.keys.distributions import installed_versions
from trnflow.tasks.keys.hash_cache import Memo


def test_a_version_on_a_path_of_its_own_is_cached_for_that_path_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in ("1.0", "2.0"):
        about = tmp_path / version / f"mine_alone-{version}.dist-info/METADATA"
        about.parent.mkdir(parents=True)
        about.write_text(f"Metadata-Version: 2.1\nName: mine-alone\nVersion: {version}\n")
    memo, found = Memo(tmp_path / "memo.db"), []
    for version in ("1.0", "2.0", "none"):
        with monkeypatch.context() as patched:
            patched.syspath_prepend(str(tmp_path / version))
            found.append(installed_versions({"mine-alone"}, memo)["mine-alone"])
    assert found == ["1.0", "2.0", None]
