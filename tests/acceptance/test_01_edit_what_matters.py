"""1. An edit that can change a result re-runs what it reaches and is named; one that can't re-runs nothing."""

from __future__ import annotations

import os
from pathlib import Path

from tests.acceptance.checkout import Checkout
from tests.acceptance.ending import check_ending

ALL_HIT = {"read": "hit", "sort": "hit", "count": "hit"}


def test_a_helper_two_imports_below_a_stage_is_named(root: str, tmp_path: Path) -> None:
    """mill.sort imports mill.order, which imports mill.compare."""
    checkout = Checkout(tmp_path, root)
    assert set(checkout.run()["actions"].values()) == {"ran"}
    checkout.edit("mill/compare.py", "(word, 0)", "-ord(word)")
    planned = checkout.plan()
    assert planned["actions"] == {"read": "hit", "sort": "run", "count": "maybe"}
    assert planned["why"]["sort"] == "code of mill.compare changed"
    assert checkout.run()["actions"] == {"read": "hit", "sort": "ran", "count": "ran"}
    check_ending(checkout.store(), checkout.again)


def test_what_can_not_change_a_result_reruns_nothing(root: str, tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, root)
    checkout.run()
    checkout.edit("mill/compare.py", "\ndef key", "\n# by letter\n\n\ndef key")
    checkout.edit("mill/order.py", "def ordered(text):\n", "def ordered(text):\n    # sorted\n")
    for path in checkout.folder.rglob("*.*"):
        os.utime(path, (1, 1))
    assert checkout.plan()["actions"] == ALL_HIT
    checkout.edit("mill/wiring.py", "def flow(source, sneaks):", "UNUSED = 1\n\n\ndef flow(source, sneaks='', more=0):")
    checkout.edit("mill/wiring.py", "rows = Node(read", "first = rows = Node(read")
    checkout.move(tmp_path / "elsewhere" / "of another name")
    check_ending(checkout.store(), checkout.again)
