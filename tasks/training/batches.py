"""Which rows make up which batch, and the batches themselves, read from a packed artifact.

A batch is a pure function of (seed, epoch, step in the epoch): the state of the data is one integer, the number of steps
done. A batch has one length: the rows of a length that fill no batch go into one of the next longer length. Every row of a
split appears exactly once an epoch; the last rows of all, if they fill no batch, make a smaller one padded to full size with
masked rows, or are left out of that epoch (`last_batch`). An engine whose graphs fix no shape takes batches trimmed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

from tasks.artifact import Input
from tasks.chunks import COLUMNS, open_chunks
from tasks.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tasks.chunks import Columns

    Ints = NDArray[np.int32]
    Rows = NDArray[np.int64]

IGNORED = -100


WINDOW = 50
"""Batches, as many as are sorted by their rows' tokens together: enough to pad little, few enough to mix from epoch to epoch."""


class Address(NamedTuple):
    """Where a batch's rows lie: `rows` of the arrays of `lengths`, one each (None: all of `length`, which none exceeds); -1
    stands for a masked row."""

    length: int
    rows: Rows
    lengths: Rows | None = None

    def held(self) -> dict[int, list[int]]:
        """The rows that are not masked, by the length of their array."""
        found: dict[int, list[int]] = {}
        lengths = [self.length] * len(self.rows) if self.lengths is None else self.lengths.tolist()
        for length, row in zip(lengths, self.rows.tolist(), strict=True):
            if row >= 0:
                found.setdefault(length, []).append(row)
        return found


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

    def trimmed(self, rows: int, positions: int) -> Batch:
        """Without the masked rows and the positions that are padding in every row, as far as what stays is a multiple of `rows`
        and `positions`, and not nothing."""
        held = self.segment_ids != 0
        height = _up(int(held.any(1).nonzero()[0].max(initial=0)) + 1, rows, len(held))
        width = _up(int(held.any(0).nonzero()[0].max(initial=0)) + 1, positions, held.shape[1])
        part = (slice(height), slice(width))
        targets = self.targets[part[: self.targets.ndim]]
        return replace(
            self,
            input_ids=self.input_ids[part],
            targets=targets,
            segment_ids=self.segment_ids[part],
            position_ids=self.position_ids[part],
        )


class Split:
    """One split of a packed artifact, memory-mapped. `rows` maps each length that has any to its number of rows.
    unit: (rows, positions) whose multiples batches are trimmed to; None: they have the shape of their address."""

    def __init__(self, packed: Input, name: str, unit: tuple[int, int] | None = None) -> None:
        counts = packed.meta["rows"].get(name, {})
        self.rows = {int(length): int(count) for length, count in counts.items() if count}
        self._unit = unit
        self._shifted = packed.meta["task"] == "causal_lm"
        self._padding = {"input_ids": packed.meta["pad_id"], "labels": IGNORED}
        self._columns = {length: open_chunks(packed, name, length) for length in sorted(self.rows)}

    def read(self, address: Address) -> Batch:
        """The batch at `address`. A masked row is some row as padding alone, with no target."""
        import numpy as np

        masked = address.rows < 0
        found = self._gather(address._replace(rows=np.where(masked, 0, address.rows)))
        ids, labels, segments, positions = (found[name] for name in COLUMNS)
        targets = shifted(labels, segments) if self._shifted else labels
        targets[masked] = IGNORED
        segments[masked] = 0
        batch = Batch(address.length, ids, targets, segments, positions, samples=int((~masked).sum()))
        return batch if self._unit is None else batch.trimmed(*self._unit)

    def sizes(self) -> dict[int, Rows]:
        """Tokens of each row, by length. Reads all of them."""
        import numpy as np

        return {length: np.count_nonzero(columns["segment_ids"], axis=1) for length, columns in self._columns.items()}

    def _gather(self, address: Address) -> Columns:
        """The columns of the rows at `address`, each row padded to its length."""
        import numpy as np

        if address.lengths is None or (address.lengths == address.length).all():
            return {name: np.array(column[address.rows]) for name, column in self._columns[address.length].items()}
        found: Columns = {}
        for length in sorted(set(address.lengths.tolist())):
            here = np.flatnonzero(address.lengths == length)
            for name, column in self._columns[length].items():
                shape = (len(address.rows), address.length)[: column.ndim]
                whole = found.setdefault(name, np.full(shape, self._padding.get(name, 0), np.int32))
                whole[(here, slice(length))[: column.ndim]] = column[address.rows[here]]
        return found

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
    """The order of the training rows. rows: by length; batch: rows per step; sizes: tokens of each row by length, so that rows
    of about as many share a batch (None: any rows of a length do). DataError when there is not one batch."""

    def __init__(
        self, rows: dict[int, int], batch: int, *, seed: int, last_batch: str, sizes: dict[int, Rows] | None = None
    ) -> None:
        self._rows, self._batch, self._seed, self._pad = dict(sorted(rows.items())), batch, seed, last_batch == "pad"
        self._sizes, total = sizes, sum(rows.values())
        self.steps_per_epoch = -(-total // batch) if self._pad else total // batch
        if not self.steps_per_epoch:
            raise DataError(
                f"the train split holds {total} rows, not one whole batch of {batch}",
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
        pool = np.empty((0, 3), np.int64)
        for length in self._rows:
            pool = self._grouped(np.concatenate([pool, self._shuffled(length, order)]))
            whole = len(pool) - len(pool) % self._batch
            found += [Address(*_address(pool[start : start + self._batch])) for start in range(0, whole, self._batch)]
            pool = pool[whole:]
        if len(pool) and self._pad:
            length, rows, lengths = _address(pool)
            found.append(Address(length, _padded(rows, self._batch), _padded(lengths, self._batch, length)))
        return [found[index] for index in order.permutation(len(found))]

    def _shuffled(self, length: int, order: np.random.Generator) -> Rows:
        """[rows, (row, length, tokens)]"""
        import numpy as np

        rows = order.permutation(self._rows[length])
        lengths = np.full_like(rows, length)
        return np.stack([rows, lengths, lengths if self._sizes is None else self._sizes[length][rows]], axis=1)

    def _grouped(self, pool: Rows) -> Rows:
        """Each window sorted by tokens; in a pool of equals nothing moves."""
        import numpy as np

        size = WINDOW * self._batch
        windows = [pool[start : start + size] for start in range(0, len(pool), size)]
        return np.concatenate([window[window[:, 2].argsort(kind="stable")] for window in windows])


def _address(pool: Rows) -> tuple[int, Rows, Rows]:
    return int(pool[:, 1].max()), pool[:, 0], pool[:, 1]


def shifted(labels: Ints, segments: Ints) -> Ints:
    """labels, segments: [rows, length] -> the target of each position: the next token's label, if it continues the segment."""
    import numpy as np

    targets = np.full_like(labels, IGNORED)
    same = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] != 0)
    targets[:, :-1] = np.where(same, labels[:, 1:], IGNORED)
    return targets


def _padded(rows: Rows, size: int, value: int = -1) -> Rows:
    import numpy as np

    return np.concatenate([rows, np.full(size - len(rows), value, dtype=rows.dtype)])


def _up(size: int, unit: int, most: int) -> int:
    """The next multiple of `unit`, or `most`."""
    return min(-(-size // unit) * unit, most)
