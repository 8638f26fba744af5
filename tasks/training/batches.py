"""Which rows make up which batch, and the batches themselves, read from a packed artifact.

A batch is a pure function of (seed, epoch, step in the epoch): the state of the data is one integer, the number of steps
done. A batch holds rows of one length. Every row of a split appears exactly once an epoch; a length's last rows, if they
fill no batch, make a smaller one padded to full size with masked rows, or are left out of that epoch (`last_batch`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

from tasks.artifact import Input
from tasks.chunks import open_chunks
from tasks.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int32]
    Rows = NDArray[np.int64]

IGNORED = -100


class Address(NamedTuple):
    """Where a batch's rows lie: `rows` of the arrays of `length`; -1 stands for a masked row."""

    length: int
    rows: Rows


@dataclass(frozen=True)
class Batch:
    """input_ids, segment_ids (0 is padding), position_ids: int32 [rows, length]; targets: int32 [rows] for classification,
    else [rows, length], the token to predict at each position; -100 where none is. samples: rows that are not masked."""

    length: int
    input_ids: Ints
    targets: Ints
    segment_ids: Ints
    position_ids: Ints
    samples: int

    @cached_property
    def supervised(self) -> int:
        """Targets that count: the loss is a mean over them."""
        return int((self.targets != IGNORED).sum())

    @cached_property
    def real(self) -> int:
        """Tokens that are not padding."""
        return int((self.segment_ids != 0).sum())

    def micros(self, rows: int) -> Iterator[Batch]:
        """The batch cut into batches of `rows`."""
        for start in range(0, len(self.input_ids), rows):
            part = slice(start, start + rows)
            columns = (self.input_ids[part], self.targets[part], self.segment_ids[part], self.position_ids[part])
            yield Batch(self.length, *columns, samples=self.samples)


class Split:
    """One split of a packed artifact, memory-mapped. `rows` maps each length that has any to its number of rows."""

    def __init__(self, packed: Input, name: str) -> None:
        counts = packed.meta["rows"].get(name, {})
        self.rows = {int(length): int(count) for length, count in counts.items() if count}
        self._shifted = packed.meta["task"] == "causal_lm"
        self._columns = {length: open_chunks(packed, name, length) for length in sorted(self.rows)}

    def read(self, address: Address) -> Batch:
        """The batch at `address`. A masked row is some row as padding alone, with no target."""
        import numpy as np

        masked = address.rows < 0
        rows = np.where(masked, 0, address.rows)
        columns = self._columns[address.length].values()
        ids, labels, segments, positions = (np.array(column[rows]) for column in columns)
        targets = shifted(labels, segments) if self._shifted else labels
        targets[masked] = IGNORED
        segments[masked] = 0
        return Batch(address.length, ids, targets, segments, positions, samples=int((~masked).sum()))

    def class_counts(self, classes: int) -> list[int]:
        """Rows of each class, 0 to `classes` - 1."""
        import numpy as np

        labels = [np.asarray(columns["labels"][:]) for columns in self._columns.values()]
        return [int(count) for count in np.bincount(np.concatenate(labels), minlength=classes)]

    def in_order(self, rows: int) -> Iterator[Address]:
        """Every row once, in order, `rows` to a batch, the last of each length padded: for evaluation."""
        import numpy as np

        for length, count in sorted(self.rows.items()):
            for start in range(0, count, rows):
                yield Address(length, _padded(np.arange(start, min(start + rows, count)), rows))


class Schedule:
    """The order of the training rows. rows: by length; batch: rows per step. DataError when there is not one batch."""

    def __init__(self, rows: dict[int, int], batch: int, *, seed: int, last_batch: str) -> None:
        self._rows, self._batch, self._seed, self._pad = dict(sorted(rows.items())), batch, seed, last_batch == "pad"
        self.steps_per_epoch = sum(-(-n // batch) if self._pad else n // batch for n in self._rows.values())
        if not self.steps_per_epoch:
            raise DataError(
                f"the train split holds {sum(rows.values())} rows, not one whole batch of {batch} of one length",
                "lower train.global_batch, or set train.last_batch=pad",
            )
        self.epoch = lru_cache(maxsize=2)(self._epoch)

    def address(self, step: int) -> Address:
        """The rows of update `step`, counted from 0 over all epochs."""
        epoch, position = divmod(step, self.steps_per_epoch)
        return self.epoch(epoch)[position]

    def _epoch(self, epoch: int) -> list[Address]:
        import numpy as np

        order = np.random.Generator(np.random.PCG64([self._seed, epoch]))
        found: list[Address] = []
        for length, count in self._rows.items():
            rows = order.permutation(count)
            stop = count if self._pad else count - count % self._batch
            starts = range(0, stop, self._batch)
            found += [Address(length, _padded(rows[start : start + self._batch], self._batch)) for start in starts]
        return [found[index] for index in order.permutation(len(found))]


def shifted(labels: Ints, segments: Ints) -> Ints:
    """labels, segments: [rows, length] -> the target of each position: the next token's label, if it continues the segment."""
    import numpy as np

    targets = np.full_like(labels, IGNORED)
    same = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] != 0)
    targets[:, :-1] = np.where(same, labels[:, 1:], IGNORED)
    return targets


def _padded(rows: Rows, size: int) -> Rows:
    import numpy as np

    return np.concatenate([rows, np.full(size - len(rows), -1, dtype=rows.dtype)])
