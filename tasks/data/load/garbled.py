"""Texts in UTF-8 that some program before took for Latin-1 or Windows-1252: "cafÃ©" for "café". They train as they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

NEXT = "\u0080-\u00bf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ"
"""What the second and later bytes of a letter become: in Latin-1, then in Windows-1252."""
GARBLED = "|".join(
    (
        "Ã[\u0080-\u009f\u00a1-\u00ba\u00bc-\u00bf€ƒ„…†‡ˆ‰Š‹ŒŽ–—œžŸš]",  # é, Ö; not quotes and blanks, which may follow MAÇÃ
        "Â[\u00a0-\u00bf]",  # £
        "â€|â\u0080",  # dashes and quotation marks
        f"(?:[ÐÑ][{NEXT}]){{2}}",  # Cyrillic
        f"(?:[à-ï][{NEXT}][{NEXT}]){{2}}",  # Chinese, Japanese, Korean, scripts of India
    )
)
FEWEST, SHARE = 3, 0.005
"""How many rows with such signs, and which share of a split's rows, are remarked."""


class GarbledTexts:
    """Counts a split's rows whose texts look garbled.

    count: those rows; first: what the first of them has, such as "Ã©".
    """

    def __init__(self) -> None:
        self.count, self.first = 0, ""

    def look_at(self, columns: Iterable[Any]) -> None:
        """Count the rows of a batch. columns: Arrow arrays, of which those of strings are looked at."""
        import pyarrow as pa
        import pyarrow.compute as compute

        for column in columns:
            if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
                continue
            found = compute.match_substring_regex(column, GARBLED)
            here = compute.sum(found).as_py() or 0
            if here and not self.first:
                text = column.filter(found)[0].as_py()
                self.first = compute.extract_regex(text, f"(?P<signs>{GARBLED})").as_py()["signs"]
            self.count += here

    def remark(self, split: str, rows: int) -> str | None:
        """Return what to say of a split of so many rows; None where there is nothing, or a few rows."""
        if self.count < max(FEWEST, SHARE * rows):
            return None
        return (
            f"{split}: {self.count:,} of {rows:,} rows hold signs such as {self.first!r}, UTF-8 that some program before read "
            "in another encoding: they train as they are; write the file anew in UTF-8, or repair it (Python's package ftfy)"
        )
