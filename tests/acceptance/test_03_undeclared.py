"""3. A stage that imports a module by name at run time, or reads a file it did not declare: not published, the file named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.checkout import Checkout
from tests.acceptance.ending import check_ending


@pytest.mark.parametrize(
    ("sneaks", "file", "fix"),
    [("module", "mill/other.py", "import mill.other"), ("file", "mill/letter.txt", 'assets=("mill/letter.txt",)')],
)
def test_what_the_key_does_not_know_is_not_published(
    root: str, tmp_path: Path, sneaks: str, file: str, fix: str
) -> None:
    checkout = Checkout(tmp_path, root)
    for _ in range(2):  # the second time as well
        said = checkout.run(sneaks)["error"]
        assert (said["stage"], said["type"]) == ("sort", "CodeError")
        assert file in said["message"]
        assert fix in said["fix"]
        assert checkout.store().records("sort") == []
    assert checkout.run()["actions"] == {"read": "hit", "sort": "ran", "count": "ran"}
    check_ending(checkout.store(), checkout.again)
