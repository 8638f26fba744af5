"""Give turns of a conversation rows of their own, where one row can't begin with the tokens of each turn's prompt.

A later prompt holds the earlier ones and their answers as one text, so only the last prompt of a row can be encoded apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trnflow.tasks.data.texts import HELD_OUT
from trnflow.tasks.data.tokenization.encoded import Encoded
from trnflow.tasks.data.tokenization.prompt_ends import Joined
from trnflow.tasks.data.tokenization.token_shards import Texts
from trnflow.tasks.data.tokenization.word_encoder import gather

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Longs = np.ndarray[Any, np.dtype[np.int64]]

Parts = list[dict[str, Any]]


def turns_apart(rows: pa.Table, texts: Texts, joined: Joined) -> tuple[pa.Table, Longs] | None:
    """Give each joined prompt of a row with several a row that ends with its answer.

    Returns all rows, and the number from 0 of the row that each was made of; None if no row has several prompts.
    """
    import numpy as np
    import pyarrow as pa

    within = texts.prompts[~np.isin(texts.prompts, texts.rows)]
    count = np.bincount(np.searchsorted(texts.rows, within) - 1, minlength=len(texts.rows) - 1)
    changed = np.unique(joined.rows[count[joined.rows] > 1])
    if not len(changed):
        return None
    made: list[Parts] = []
    numbers: list[int] = []
    for row in changed.tolist():
        ends = {int(end) for end in joined.ends[joined.rows == row]}
        bounds = texts.parts[texts.first[row] + 1 : texts.first[row + 1] + 1].tolist()
        new = [*_turns_of(rows.column("parts")[row].as_py(), [end in ends for end in bounds])]
        made += new
        numbers += [row] * len(new)
    same, kind = np.delete(np.arange(rows.num_rows), changed), rows.schema.field("parts").type
    table = pa.concat_tables([rows.select(["parts"]).take(same), pa.table({"parts": pa.array(made, kind)})])
    return table, np.concatenate([same, np.array(numbers, dtype=np.int64)])


def _turns_of(parts: Parts, joined: list[bool]) -> Iterator[Parts]:
    """Yield the row without its joined prompts' turns, then a row of each. joined: whether such a prompt ends with a part."""
    ends = [number for number, part in enumerate(parts) if part["ends_prompt"]]
    turns = [sum(end <= number for end in ends) for number in range(len(parts))]
    trained = {turn for part, turn in zip(parts, turns, strict=True) if part["train"]}
    apart = trained & {turns[number] for number in ends if joined[number]}
    if trained - apart:
        yield _only(parts, turns, trained - apart)
    for turn in sorted(apart):
        own = _only(parts, turns, {turn})
        yield own[: 1 + max(number for number, part in enumerate(own) if part["train"])]


def _only(parts: Parts, turns: list[int], kept: set[int]) -> Parts:
    """Return the parts, of which those of other turns are not trained on. turns: of each part its turn."""
    left_out = {"train": False, HELD_OUT: False, "ends_prompt": False}
    return [part if turn in kept else {**part, **left_out} for part, turn in zip(parts, turns, strict=True)]


def rows_of_turns(made: Encoded, numbers: Longs, most: int | None) -> Encoded:
    """Return the tokens of rows of `turns_apart`, in the order of the rows that it made them of.

    numbers: Of each row that it made. most: Tokens; leaves out all turns of a row of which one has more.
    """
    import numpy as np

    lengths = np.zeros(int(numbers.max()) + 1, dtype=np.int64)
    np.maximum.at(lengths, numbers, made.lengths)
    row, starts = numbers[made.row], np.cumsum(made.sizes) - made.sizes
    order = np.argsort(row, kind="stable")
    if most is not None:
        order = order[lengths[row[order]] <= most]
    ids, extra = (gather(values, starts[order], made.sizes[order]) for values in (made.ids, made.extra))
    ends = made.ends and made.ends._replace(row=numbers[made.ends.row]).of(np.unique(row[order]))
    forged = {int(numbers[number]): text for number, text in reversed(made.forged)}
    return made._replace(
        ids=ids,
        sizes=made.sizes[order],
        extra=extra,
        row=row[order],
        lengths=lengths,
        forged=sorted(forged.items()),
        ends=ends,
    )
