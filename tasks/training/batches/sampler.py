"""Choose the rows of each batch, and read batches from a packed artifact.

A row here is one chunk that `pack_chunks` wrote: a padded sequence of token ids, with one or several texts. Which rows
are in a batch depends only on the seed, the epoch and the step in the epoch. A resumed training therefore needs one
integer to continue with the right rows: the number of steps done. All rows of a batch are padded to one length. Rows of
a length that do not fill a batch go into a batch of the next longer length. Each row of a split occurs exactly once an
epoch, with one exception: the last rows of an epoch, if they do not fill a batch, are left out with `train.last_batch:
drop`. With `pad`, masked rows (all padding, no targets) fill up their batch. For engines whose graphs have no fixed
shapes, batches are trimmed: rows and positions at the end that are all padding are cut off.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

from trnflow.tasks.artifact import Input
from trnflow.tasks.data.chunks import COLUMNS, open_chunks
from trnflow.tasks.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trnflow.tasks.data.chunks import Columns

    Ints = NDArray[np.int32]
    Rows = NDArray[np.int64]

IGNORED = -100


WINDOW = 50
"""Number of batches in a window: `group_by_length` sorts the rows of one window by tokens. A larger window needs less
padding; a smaller one mixes rows better from epoch to epoch."""


class BatchAddress(NamedTuple):
    """Which rows (packed token sequences) make up one batch, before the rows are read.

    Attributes:
        length: the length in tokens to which all rows are padded.
        rows: int64 [batch], each the index of a row among the packed rows of its own length; -1 stands for a masked row
            (all padding, no targets), which only fills up the batch.
        lengths: int64 [batch], each row's own length; None where every row has `length`.
    """

    length: int
    rows: Rows
    lengths: Rows | None = None

    def unmasked_rows(self) -> dict[int, list[int]]:
        """Return which rows the batch has, without masked rows (all padding, which only fill up a batch), as {length in
        tokens: indices among the packed rows of this length}."""
        found: dict[int, list[int]] = {}
        lengths = [self.length] * len(self.rows) if self.lengths is None else self.lengths.tolist()
        for length, row in zip(lengths, self.rows.tolist(), strict=True):
            if row >= 0:
                found.setdefault(length, []).append(row)
        return found


@dataclass(frozen=True)
class Batch:
    """One batch of rows (packed token sequences) on the host, as numpy arrays.

    Attributes:
        length: the length in tokens to which the rows were padded, before positions were trimmed.
        input_ids: int32 [rows, length], the token ids.
        targets: for classification int32 [rows], the class of each row; for a language model int32 [rows, length], the
            token to predict at each position. -100: no target.
        segment_ids: int32 [rows, length], the number of the text in its row, from 1; 0 for padding.
        position_ids: int32 [rows, length], the token's position in its text, from 0.
        samples: the number of rows of the batch that are not masked (a masked row is all padding and only fills up the
            batch); in a part made by `micro_batches`, the number for the whole batch.
    """

    length: int
    input_ids: Ints
    targets: Ints
    segment_ids: Ints
    position_ids: Ints
    samples: int

    @cached_property
    def supervised(self) -> int:
        """The number of targets, that is of entries of `targets` that are not -100."""
        return int((self.targets != IGNORED).sum())

    @cached_property
    def real(self) -> int:
        """The number of tokens that are not padding."""
        return int((self.segment_ids != 0).sum())

    def micro_batches(self, rows: int) -> Iterator[Batch]:
        """Yield the batch in parts of `rows` rows each, one part for each forward pass, in order. The last part has
        fewer rows if `rows` does not divide the batch's number of rows."""
        for start in range(0, len(self.input_ids), rows):
            part = slice(start, start + rows)
            columns = (self.input_ids[part], self.targets[part], self.segment_ids[part], self.position_ids[part])
            yield Batch(self.length, *columns, samples=self.samples)

    def trimmed(self, rows: int, positions: int) -> Batch:
        """Return a smaller batch: without the masked rows (all padding, which only fill up a batch) at the batch's end,
        and without the positions at the rows' end that are padding in every row.

        rows, positions: numbers to whose next multiple the result's number of rows and number of positions are rounded
        up, but never beyond the sizes of this batch."""
        held = self.segment_ids != 0
        height = _round_up(int(held.any(1).nonzero()[0].max(initial=0)) + 1, rows, len(held))
        width = _round_up(int(held.any(0).nonzero()[0].max(initial=0)) + 1, positions, held.shape[1])
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
    """One split ("train", "validation") of the packed rows (token sequences) that `pack_chunks` wrote, memory-mapped,
    from which batches are read.

    Args:
        packed: the artifact (output) of the stage `pack_chunks`.
        name: the split's name. If the artifact lacks the split, the `Split` has no rows.
        unit: (rows, positions). Batches are trimmed: rows and positions at the end that are all padding are cut off,
            except those that fill up a multiple of `unit`. With None, batches are not trimmed.

    Attribute `rows`: {length in tokens: number of rows of this length}.
    """

    def __init__(self, packed: Input, name: str, unit: tuple[int, int] | None = None) -> None:
        counts = packed.meta["rows"].get(name, {})
        self.rows = {int(length): int(count) for length, count in counts.items() if count}
        self._unit = unit
        self._shifted = packed.meta["task"] == "causal_lm"
        self._padding = {"input_ids": packed.meta["pad_id"], "labels": IGNORED}
        self._columns = {length: open_chunks(packed, name, length) for length in sorted(self.rows)}

    def read(self, address: BatchAddress) -> Batch:
        """Read the rows that `address` names from the files, and return them as a batch. If the split has a `unit`,
        rows and positions at the end that are all padding are cut off. A masked row (index -1 in the address) is all
        padding and has no target."""
        import numpy as np

        masked = address.rows < 0
        found = self._gather(address._replace(rows=np.where(masked, 0, address.rows)))
        ids, labels, segments, positions = (found[name] for name in COLUMNS)
        targets = shift_targets(labels, segments) if self._shifted else labels
        targets[masked] = IGNORED
        segments[masked] = 0
        batch = Batch(address.length, ids, targets, segments, positions, samples=int((~masked).sum()))
        return batch if self._unit is None else batch.trimmed(*self._unit)

    def sizes(self) -> dict[int, Rows]:
        """Return {padded length of rows: int64 [rows], the number of tokens without padding of each row of this
        length}. Reads the split's file of every length."""
        import numpy as np

        return {length: np.count_nonzero(columns["segment_ids"], axis=1) for length, columns in self._columns.items()}

    def _gather(self, address: BatchAddress) -> Columns:
        """Return the columns of the rows at `address`, each row padded to the batch's length."""
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
        """Return the number of rows of the split in each class, as a list with one entry for each class from 0 to
        `classes` - 1."""
        import numpy as np

        labels = [np.asarray(columns["labels"][:]) for columns in self._columns.values()]
        return [int(count) for count in np.bincount(np.concatenate(labels), minlength=classes)]

    def in_order(self, rows: int) -> Iterator[BatchAddress]:
        """Yield the addresses of batches of `rows` rows each for an evaluation. Together the batches have every row of
        the split once, sorted by padded length; rows of one length are in the order of the file. The last batch of each
        length is filled up with masked rows (all padding, no targets). `read` reads the rows of an address."""
        import numpy as np

        for length, count in sorted(self.rows.items()):
            for start in range(0, count, rows):
                yield BatchAddress(length, _pad_rows(np.arange(start, min(start + rows, count)), rows))


class Schedule:
    """Which rows each update (optimizer step) trains on: a new random order in each epoch, computed from the seed.

    Args:
        rows: {length in tokens: number of rows of this length}.
        batch: rows per update.
        seed: the seed of the order; each epoch's order depends on the seed and the epoch's number.
        last_batch: what is done with the last rows of an epoch when they do not fill a batch: "pad" adds masked rows
            (all padding, no targets), "drop" leaves them out.
        sizes: {length: int64 [rows], the number of tokens of each row of this length}, used to put rows with similar
            numbers of tokens into one batch; None to choose the rows of a batch at random.

    Attribute `steps_per_epoch`: the number of updates in an epoch. Raises DataError when there is no batch in an epoch,
    that is with "drop" and fewer rows than one batch, or without any row.
    """

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

    def address(self, step: int) -> BatchAddress:
        """Return which rows make up the batch of update `step`, counted from 0 over all epochs. `Split.read` reads
        them."""
        epoch, position = divmod(step, self.steps_per_epoch)
        return self.epoch(epoch)[position]

    def _epoch(self, epoch: int) -> list[BatchAddress]:
        import numpy as np

        order = np.random.Generator(np.random.PCG64([self._seed, epoch]))
        found: list[BatchAddress] = []
        pool = np.empty((0, 3), np.int64)
        for length in self._rows:
            pool = self._grouped(np.concatenate([pool, self._shuffled(length, order)]))
            whole = len(pool) - len(pool) % self._batch
            found += [
                BatchAddress(*_batch_address(pool[start : start + self._batch]))
                for start in range(0, whole, self._batch)
            ]
            pool = pool[whole:]
        if len(pool) and self._pad:
            length, rows, lengths = _batch_address(pool)
            found.append(BatchAddress(length, _pad_rows(rows, self._batch), _pad_rows(lengths, self._batch, length)))
        return [found[index] for index in order.permutation(len(found))]

    def _shuffled(self, length: int, order: np.random.Generator) -> Rows:
        """Return int64 [rows, 3] in random order: (row, length, tokens)."""
        import numpy as np

        rows = order.permutation(self._rows[length])
        lengths = np.full_like(rows, length)
        return np.stack([rows, lengths, lengths if self._sizes is None else self._sizes[length][rows]], axis=1)

    def _grouped(self, pool: Rows) -> Rows:
        """Return the pool with each window sorted by tokens. Rows with equally many tokens keep their order."""
        import numpy as np

        size = WINDOW * self._batch
        windows = [pool[start : start + size] for start in range(0, len(pool), size)]
        return np.concatenate([window[window[:, 2].argsort(kind="stable")] for window in windows])


def _batch_address(pool: Rows) -> tuple[int, Rows, Rows]:
    return int(pool[:, 1].max()), pool[:, 0], pool[:, 1]


def shift_targets(labels: Ints, segments: Ints) -> Ints:
    """Return the target of each position in packed rows (token sequences with one or several texts): the label of the
    next token if it belongs to the same segment (text), else -100.

    labels: int32 [rows, length], the token ids, -100 where not trained on; segments: int32 [rows, length], the number
    of each position's text in its row."""
    import numpy as np

    targets = np.full_like(labels, IGNORED)
    same = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] != 0)
    targets[:, :-1] = np.where(same, labels[:, 1:], IGNORED)
    return targets


def _pad_rows(rows: Rows, size: int, value: int = -1) -> Rows:
    import numpy as np

    return np.concatenate([rows, np.full(size - len(rows), value, dtype=rows.dtype)])


def _round_up(size: int, unit: int, most: int) -> int:
    """Return the next multiple of `unit`, at most `most`."""
    return min(-(-size // unit) * unit, most)
