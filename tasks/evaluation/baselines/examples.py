"""The rows from which a baseline learns, and those that it predicts: the packed ones, as format_prompts wrote them."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from trnflow.tasks.artifact import Input
from trnflow.tasks.evaluation.baselines.result import LeftOut
from trnflow.tasks.evaluation.row_losses import source_rows
from trnflow.tasks.kinds.kind import Row

BYTES = 80_000_000
"""The most bytes of rows, unpacked. 65 MB of film reviews take 28 to 40 s of one core, and 0.8 GB of memory."""


class Examples:
    """Rows of the splits. Each is read at most once.

    packed: says which rows, in which order; split: the evaluated one. Raises LeftOut for more than BYTES.
    """

    def __init__(self, texts: Input, packed: Input, split: str) -> None:
        self.texts, self.packed, self.split = texts, packed, split
        size = sum(self._bytes(name) for name in {split, "train"} if self._has(name))
        if size > BYTES:
            raise LeftOut(f"the rows have {size / 1e6:,.0f} MB, more than {BYTES // 10**6}")

    @cached_property
    def train(self) -> list[Row]:
        """The rows of train, sorted: their order decides nothing. Raises LeftOut without any."""
        if not self._has("train"):
            raise LeftOut("there are no rows of train")
        return sorted(self.of("train"), key=str)

    @cached_property
    def evaluated(self) -> list[Row]:
        return self.of(self.split)

    @property
    def validation(self) -> list[Row]:
        return self.of("validation") if self._has("validation") else []

    def of(self, split: str) -> list[Row]:
        return read_examples(self.texts, self.packed, split)

    def _has(self, split: str) -> bool:
        return any(self.packed.meta["rows"].get(split, {}).values()) and self._file(split).exists()

    def _bytes(self, split: str) -> int:
        from pyarrow.parquet import ParquetFile

        with ParquetFile(self._file(split)) as file:
            return sum(file.metadata.row_group(at).total_byte_size for at in range(file.num_row_groups))

    def _file(self, split: str) -> Any:
        return self.texts.path / f"{split}.parquet"


def read_examples(texts: Input, packed: Input, split: str) -> list[Row]:
    """Return the rows of a split that are packed, in the order of `source_rows`."""
    from pyarrow.parquet import read_table

    rows: list[Row] = read_table(texts.path / f"{split}.parquet").take(source_rows(packed, split)).to_pylist()
    return rows
