"""2. Code that changed and makes the bytes it made before: its stage runs, everything below hits."""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.checkout import Checkout
from tests.acceptance.ending import check_ending


def test_equal_bytes_stop_the_rerun(root: str, tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, root)
    assert set(checkout.run()["actions"].values()) == {"ran"}
    checkout.edit("mill/compare.py", "(word, 0)", "(word, 1)")  # it sorts as before
    assert checkout.plan()["actions"] == {"read": "hit", "sort": "run", "count": "maybe"}
    assert checkout.run()["actions"] == {"read": "hit", "sort": "ran", "count": "hit"}
    (checkout.folder / "rows.txt").write_text("c b a")  # other bytes, which sort into the same
    assert checkout.run()["actions"] == {"read": "ran", "sort": "ran", "count": "hit"}
    check_ending(checkout.store(), checkout.again)
