"""Each planted fault can still be planted: an edit that rewords its line moves it along."""

from __future__ import annotations

from tests.golden.faults import every_fault
from tests.golden.planting import why_not
from tests.words import PROJECT


def test_the_text_of_each_fault_stands_once_in_its_file() -> None:
    assert [f"{fault.name}: {why}" for fault in every_fault() if (why := why_not(fault, PROJECT))] == []
