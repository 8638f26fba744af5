"""Choose the rows (chunks) of each batch, and read batches.

A batch depends on seed, epoch and step alone, and has one length. Each row occurs once an epoch, but the last rows with
`last_batch: drop`; with `pad`, masked rows fill the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from trnflow.tasks.artifact import Input
from trnflow.tasks.data.chunks import COLUMNS, open_chunks, open_marks, open_reference
from trnflow.tasks.errors import DataError
from trnflow.tasks.kinds.registry import kind_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trnflow.tasks.data.chunks import Columns
    from trnflow.tasks.metadata import PackedMeta

    Ints = NDArray[np.int32]
    Rows = NDArray[np.int64]

IGNORED = -100
"""The target of a position or row that has none."""

BLOCK = 1 << 16
"""Rows whose targets are read at once."""
WINDOW = 50
"""Batches whose rows `group_by_length` sorts together: larger needs less padding, smaller mixes better."""


class BatchAddress(NamedTuple):
    """Which rows make up a batch.

    Attributes:
        length: To which all rows are padded.
        rows: int64 [batch], index among the rows of its own length; -1 is a masked row.
        lengths: int64 [batch], own lengths; None where all have `length`.
    """

    length: int
    rows: Rows
    lengths: Rows | None = None

    def unmasked_rows(self) -> dict[int, list[int]]:
        """Return {length: indices} without masked rows."""
        rows_by_length: dict[int, list[int]] = {}
        lengths = [self.length] * len(self.rows) if self.lengths is None else self.lengths.tolist()
        for length, row in zip(lengths, self.rows.tolist(), strict=True):
            if row >= 0:
                rows_by_length.setdefault(length, []).append(row)
        return rows_by_length


@dataclass(frozen=True)
class Batch:
    """A batch on the host, as numpy arrays.

    Attributes:
        length: Before positions were trimmed.
        input_ids: int32 [rows, length].
        targets: int32 [rows] (class) or [rows, length] (next token, or tag), -100 for none; float32 [rows, outputs], NaN for
            none.
        segment_ids: int32 [rows, length], from 1; 0 for padding. Of two texts token types plus 1.
        position_ids: int32 [rows, length], from 0 in each segment.
        samples: Rows that are not masked; in a micro-batch of the whole batch.
        reference: Of pairs float32 [rows, documents], summed log-probabilities of the reference; 0 without one, and where a
            row has fewer documents.
        surprise_share: Pairs for each token of their prompts and chosen answers; in a micro-batch of the whole batch.
        marks: Of marked answers float32 [rows, pairs], above 0 for a desirable one, below 0 for another. Times numbers, the
            mean over all answers of the batch is the mean of desirable ones less that of others.
        kl: Of objectives that read it, where the whole split's is known.
    """

    length: int
    input_ids: Ints
    targets: NDArray[Any]
    segment_ids: Ints
    position_ids: Ints
    samples: int
    reference: NDArray[np.float32] | None = None
    surprise_share: float = 0.0
    marks: NDArray[np.float32] | None = None
    kl: float = 0.0

    @property
    def by_row(self) -> bool:
        """Whether a row has one target, or one for each output; then it is one document."""
        # the second dimension of float targets is no position
        return self.targets.ndim == 1 or self.targets.dtype.kind == "f"

    @cached_property
    def supervised(self) -> int:
        """The number of targets; of pairs their number."""
        import numpy as np

        if self.reference is not None:
            return int(((self.segment_ids.max(1) + 1) // 2).sum())
        there = ~np.isnan(self.targets) if self.targets.dtype.kind == "f" else self.targets != IGNORED
        return int(there.sum())

    @cached_property
    def surprising(self) -> int:
        """The number of tokens of prompts and chosen answers, of pairs, that something comes before."""
        return int(((self.segment_ids % 2 == 1) & (self.position_ids > 0)).sum())

    @cached_property
    def real(self) -> int:
        """The number of tokens that are not padding."""
        return int((self.segment_ids != 0).sum())

    def micro_batches(self, rows: int) -> Iterator[Batch]:
        """Yield the batch in parts of `rows` rows, one for each forward pass; the last may have fewer."""
        for start in range(0, len(self.input_ids), rows):
            yield self._part(slice(start, start + rows), slice(None))

    def trimmed(self, rows: int, positions: int) -> Batch:
        """Return the batch without masked rows and padding at its end, in multiples of `rows` and `positions`."""
        held = self.segment_ids != 0
        height = _round_up(int(held.any(1).nonzero()[0].max(initial=0)) + 1, rows, len(held))
        width = _round_up(int(held.any(0).nonzero()[0].max(initial=0)) + 1, positions, held.shape[1])
        return self._part(slice(height), slice(width))

    def documents(self, which: int, unit: tuple[int, int] | None) -> Batch:
        """Return the batch with one document of each pair alone, moved to the front. which: 0 or 1; unit: as of `Split`."""
        import numpy as np

        kept = (self.segment_ids % 2 == 1 - which) & (self.segment_ids != 0)
        order = np.argsort(~kept, axis=1, kind="stable")

        def moved(values: Ints, blank: int) -> Ints:
            return np.take_along_axis(np.where(kept, values, np.int32(blank)), order, axis=1)

        assert self.reference is not None
        reference = self.reference.copy()
        reference[:, 1 - which :: 2] = 0
        part = replace(
            self, input_ids=moved(self.input_ids, 0), targets=moved(self.targets, IGNORED),
            segment_ids=moved(self.segment_ids, 0), position_ids=moved(self.position_ids, 0), reference=reference,
        )  # fmt: skip
        return part if unit is None else part.trimmed(*unit)

    def _part(self, rows: slice, positions: slice) -> Batch:
        ids, segments = self.input_ids[rows, positions], self.segment_ids[rows, positions]
        targets = self.targets[rows] if self.by_row else self.targets[rows, positions]
        reference, marks = (None if of is None else of[rows] for of in (self.reference, self.marks))
        return Batch(
            self.length, ids, targets, segments, self.position_ids[rows, positions], self.samples, reference,
            self.surprise_share, marks, self.kl,
        )  # fmt: skip


class Split:
    """A split of packed rows, memory-mapped; a missing one has no rows.

    unit: (rows, positions) to whose multiples batches are trimmed, or None. reference: of `reference_logps`. rows:
    {length: rows}.
    """

    def __init__(
        self, packed: Input[PackedMeta], name: str, unit: tuple[int, int] | None = None, reference: Input | None = None
    ) -> None:
        counts = packed.meta["rows"].get(name, {})
        self.rows = {int(length): int(count) for length, count in counts.items() if count}
        self._unit = unit
        # one shape for compiled graphs
        self._documents = packed.meta.get("documents", 2) if unit is None else 2
        kind = kind_of(packed.meta["task"])
        self._kind, self._none = kind, float("nan") if kind.target_type == "float32" else IGNORED
        self._padding = {"input_ids": packed.meta["pad_id"], "labels": IGNORED}
        self._columns = {length: open_chunks(packed, name, length) for length in sorted(self.rows)}
        lengths = self.rows if reference else ()
        self._marks = {length: open_marks(packed, name, length) for length in self.rows} if kind.marked else {}
        self._reference = {length: open_reference(cast("Input", reference), name, length) for length in lengths}

    def read(self, address: BatchAddress) -> Batch:
        """Read the rows of an address as a batch, trimmed if there is a `unit`."""
        import numpy as np

        masked = address.rows < 0
        columns = self._gather(address._replace(rows=np.where(masked, 0, address.rows)))
        ids, labels, segments, positions = (columns[name] for name in COLUMNS)
        targets = labels if self._kind.per_row else shift_targets(labels, segments)
        targets[masked] = self._none
        segments[masked] = 0
        batch = Batch(address.length, ids, targets, segments, positions, samples=int((~masked).sum()))
        if self._kind.pairs:
            documents = max(int(segments.max()), self._documents)  # even: a pair at least
            batch = replace(batch, reference=self._by_chunk(self._reference, address, documents))
            batch = replace(batch, surprise_share=batch.supervised / max(batch.surprising, 1))
            if self._kind.marked:
                marks = self._by_chunk(self._marks, address, documents // 2)
                batch = replace(batch, marks=weighed(marks, [marks]))
        # where shapes are free, the ends that are padding in all rows cost nothing
        return batch if self._unit is None else batch.trimmed(*self._unit)

    def of_whole(self, batch: Batch) -> Batch:
        """Return a batch whose shares are those of the whole split, so that evaluations do not depend on batches."""
        marks = None if batch.marks is None else weighed(batch.marks, self._marks.values())
        return replace(batch, surprise_share=self.surprise_share, marks=marks)

    @cached_property
    def surprise_share(self) -> float:
        """`Batch.surprise_share` of the whole split. Reads all files."""
        pairs = tokens = 0
        for columns in self._columns.values():
            segments = columns["segment_ids"]
            pairs += int((segments.max(1) // 2).sum())
            tokens += int(((segments % 2 == 1) & (columns["position_ids"] > 0)).sum())
        return pairs / max(tokens, 1)

    def sizes(self) -> dict[int, Rows]:
        """Return {length: int64 [rows], tokens without padding}. Reads all files."""
        import numpy as np

        return {length: np.count_nonzero(columns["segment_ids"], axis=1) for length, columns in self._columns.items()}

    def _gather(self, address: BatchAddress) -> Columns:
        """Return the columns of an address's rows, padded to the batch's length."""
        import numpy as np

        if address.lengths is None or (address.lengths == address.length).all():
            return {name: np.array(column[address.rows]) for name, column in self._columns[address.length].items()}
        gathered: Columns = {}
        for length in sorted(set(address.lengths.tolist())):
            here = np.flatnonzero(address.lengths == length)
            for name, column in self._columns[length].items():
                by_row = name == "labels" and not self._kind.per_position
                shape = (len(address.rows), *(column.shape[1:] if by_row else (address.length,)))
                whole = gathered.setdefault(name, np.full(shape, self._padding.get(name, 0), column.dtype))
                whole[here if by_row else (here, slice(length))] = column[address.rows[here]]
        return gathered

    def _by_chunk(self, files: Mapping[int, NDArray[Any]], address: BatchAddress, width: int) -> NDArray[np.float32]:
        """Return float32 [rows, width] of an address's rows, 0 for what is in no file. files: {length: [chunks, ...]}."""
        import numpy as np

        found = np.zeros((len(address.rows), width), np.float32)
        lengths = np.full_like(address.rows, address.length) if address.lengths is None else address.lengths
        for length, stored in files.items():
            here = np.flatnonzero((lengths == length) & (address.rows >= 0))
            most = min(stored.shape[1], width)
            found[here, :most] = stored[address.rows[here], :most]
        return found

    def class_counts(self, classes: int) -> list[int]:
        """Return the number of rows of each class."""
        import numpy as np

        labels = [np.asarray(columns["labels"][:]) for columns in self._columns.values()]
        return [int(count) for count in np.bincount(np.concatenate(labels), minlength=classes)]

    def target_means(self) -> NDArray[np.float64]:
        """Return the mean of each output's targets, [outputs], of a task whose rows have some."""
        return self._mean(lambda targets: targets)

    def tag_shares(self, tags: int) -> NDArray[np.float64]:
        """Return the share of each tag among the words that have one; no tag has a share of 0, [tags]."""
        import numpy as np

        counts: NDArray[np.float64] = np.full(tags, 0.5)
        for length, columns in self._columns.items():
            for begin in range(0, self.rows[length], BLOCK):
                block = np.asarray(columns["labels"][begin : begin + BLOCK])
                counts += np.bincount(block[block >= 0], minlength=tags)
        counts /= counts.sum()
        return counts

    def target_deviations(self) -> NDArray[np.float64]:
        """Return the standard deviation of each output's targets, [outputs]."""
        means = self.target_means()
        squares: NDArray[np.float64] = self._mean(lambda targets: (targets - means) ** 2) ** 0.5
        return squares

    def _mean(self, of: Callable[[NDArray[Any]], NDArray[Any]]) -> NDArray[np.float64]:
        """Return the mean over all rows of what `of` makes of targets, [rows, outputs]."""
        import numpy as np

        blocks = [
            of(np.asarray(columns["labels"][begin : begin + BLOCK]))
            for length, columns in self._columns.items()
            for begin in range(0, self.rows[length], BLOCK)
        ]
        total: NDArray[np.float64] = sum(block.sum(0, dtype=np.float64) for block in blocks)
        return total / sum(self.rows.values())

    def in_order(self, rows: int) -> Iterator[BatchAddress]:
        """Yield addresses for an evaluation: every row once, the last batch of each length filled with masked rows."""
        for length in sorted(self.rows):
            yield from self.of_length(length, rows)

    def of_length(self, length: int, rows: int) -> Iterator[BatchAddress]:
        """Yield the addresses of `in_order` of one length."""
        import numpy as np

        for start in range(0, self.rows[length], rows):
            numbers = np.arange(start, min(start + rows, self.rows[length]))
            yield BatchAddress(length, _pad_rows(numbers, rows))


class Schedule:
    """Which rows each update trains on: a new random order each epoch.

    Args:
        rows: {length: rows}.
        sizes: {length: int64 [rows], tokens}, to group like sizes; None: at random.

    Raises DataError when an epoch has no batch.
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
        """Return the rows of update `step`, from 0 over all epochs."""
        epoch, position = divmod(step, self.steps_per_epoch)
        return self.epoch(epoch)[position]

    def _epoch(self, epoch: int) -> list[BatchAddress]:
        import numpy as np

        order = np.random.Generator(np.random.PCG64([self._seed, epoch]))
        batches: list[BatchAddress] = []
        pool = np.empty((0, 3), np.int64)
        for length in self._rows:
            # rows that do not fill a batch of their length go into one of the next longer length
            pool = self._grouped(np.concatenate([pool, self._shuffled(length, order)]))
            whole = len(pool) - len(pool) % self._batch
            batches += [
                BatchAddress(*_batch_address(pool[start : start + self._batch]))
                for start in range(0, whole, self._batch)
            ]
            pool = pool[whole:]
        if len(pool) and self._pad:
            length, rows, lengths = _batch_address(pool)
            batches.append(BatchAddress(length, _pad_rows(rows, self._batch), _pad_rows(lengths, self._batch, length)))
        # one integer resumes the data: the order of an epoch follows from (seed, epoch)
        return [batches[index] for index in order.permutation(len(batches))]

    def _shuffled(self, length: int, order: np.random.Generator) -> Rows:
        """Return int64 [rows, 3] in random order: (row, length, tokens)."""
        import numpy as np

        rows = order.permutation(self._rows[length])
        lengths = np.full_like(rows, length)
        return np.stack([rows, lengths, lengths if self._sizes is None else self._sizes[length][rows]], axis=1)

    def _grouped(self, pool: Rows) -> Rows:
        """Return the pool with each window sorted by tokens, stably."""
        import numpy as np

        size = WINDOW * self._batch
        windows = [pool[start : start + size] for start in range(0, len(pool), size)]
        return np.concatenate([window[window[:, 2].argsort(kind="stable")] for window in windows])


def _batch_address(pool: Rows) -> tuple[int, Rows, Rows]:
    return int(pool[:, 1].max()), pool[:, 0], pool[:, 1]


def weighed(marks: NDArray[Any], among: Iterable[NDArray[Any]]) -> NDArray[np.float32]:
    """Return `Batch.marks`. marks: any numbers of these signs; among: marks of all answers of the batch or split."""
    import numpy as np

    counts = np.array([[(each > 0).sum(), (each < 0).sum()] for each in among]).sum(0)
    good, bad = counts.sum() / np.maximum(counts, 1)
    return (np.where(marks > 0, good, 0) - np.where(marks < 0, bad, 0)).astype(np.float32)


def shift_targets(labels: Ints, segments: Ints) -> Ints:
    """Return the next token's label where it is of the same segment, else -100. All int32 [rows, length]."""
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
