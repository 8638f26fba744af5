"""Count entities in IOB tags as seqeval does by default, and group words into entities.

Tags are numbers: 0 is O, 2 t + 1 begins type t, 2 t + 2 goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.kinds.kind import IGNORED
from trnflow.tasks.kinds.targets import Outputs


def entities_in(tags: Any) -> Any:
    """Return int64 [entities, 4]: row, first and last position among labelled ones, type; as seqeval counts by default: an
    I after O, or of another type than the one before, begins an entity. tags: int [rows, positions]."""
    import numpy as np

    rows, places = np.nonzero(tags != IGNORED)
    now = tags[rows, places].astype(np.int64)
    # in each row an O comes first
    before = np.where(np.diff(rows, prepend=-1) > 0, 0, np.roll(now, 1))
    leaves = (now == 0) | (now % 2 == 1) | ((now - 1) // 2 != (before - 1) // 2)
    first = np.flatnonzero((now > 0) & leaves)
    after = np.where(np.diff(rows, append=-1) != 0, True, np.roll(leaves, -1))
    last = np.flatnonzero((now > 0) & after)
    starts = np.searchsorted(rows, rows[first])
    return np.stack([rows[first], first - starts, last - starts, (now[first] - 1) // 2], axis=1)


def found_in(outputs: Outputs) -> tuple[Any, Any, Any]:
    """Return the entities that are right, predicted and true, as `entities_in`."""
    true, said = ({*map(tuple, entities_in(tags).tolist())} for tags in (outputs.expected, outputs.decided))
    return _table(true & said), _table(said), _table(true)


def _table(entities: set[tuple[int, ...]]) -> Any:
    import numpy as np

    return np.array(sorted(entities), np.int64).reshape(-1, 4)


def of_row(outputs: Outputs) -> Any:
    """Return right, predicted and true entities of each row: float64 [rows, 3]."""
    import numpy as np

    counts = [np.bincount(some[:, 0], minlength=len(outputs.loss)) for some in found_in(outputs)]
    return np.stack(counts, axis=1).astype(np.float64)


def share(above: Any, below: Any) -> Any:
    import numpy as np

    return np.divide(above, below, out=np.zeros(np.shape(above)), where=np.asarray(below) > 0)


def scores_of(right: Any, said: Any, true: Any) -> tuple[Any, Any, Any]:
    """Return precision, recall and F1, 0 where there is nothing to divide by; to the last digit as seqeval."""
    precision, recall = share(right, said), share(right, true)
    return precision, recall, share(2.0 * precision * recall, precision + recall)


def score(place: int) -> Callable[[Any, Any], Any]:
    return lambda sums, rows: scores_of(sums[..., 0], sums[..., 1], sums[..., 2])[place]


def of_pieces(outputs: Outputs) -> Any:
    """Return labelled pieces, those with the right tag, and their loss, of each row: float64 [rows, 3]."""
    import numpy as np

    there = outputs.expected != IGNORED
    counts = there.sum(1)
    right = (there & (outputs.expected == outputs.decided)).sum(1)
    return np.stack([counts, right, outputs.loss * counts], axis=1).astype(np.float64)


def grouped(
    text: str,
    places: Sequence[tuple[int, int] | None],
    values: Any,
    labels: list[str],
    words: Iterable[tuple[int, int]],
) -> list[Meta]:
    """Return the entities of a text, {type, text, start, end, score}, as transformers' `aggregation_strategy="first"`: the
    first piece of a word, which alone is learnt and scored, decides for all of it.

    places, values: As of `Kind.answer_in`; words: first character and end of each.
    """
    groups: list[tuple[int, list[tuple[int, int, float]]]] = []
    kind = -1
    for start, end, scores in _words(text, places, values, {start for start, _ in words}):
        best, before = max(range(len(labels)), key=scores.__getitem__), kind
        kind = (best - 1) // 2
        # any tag but B continues the type of the word before
        if best and (best % 2 == 1 or kind != before):
            groups.append((kind, []))
        if best:
            groups[-1][1].append((start, end, scores[best]))
    return [_entity(text, labels[2 * kind + 1][2:], its) for kind, its in groups]


def _words(
    text: str, places: Sequence[tuple[int, int] | None], values: Any, begins: set[int]
) -> Iterator[tuple[int, int, Sequence[float]]]:
    """Yield first character, end, and scores of each word's first piece. begins: where words begin."""
    word = None
    for place, scores in zip(places, values, strict=True):
        if place is None:
            continue
        # some tokenizers count the blank before a word to it
        start, end = place[1] - len(text[slice(*place)].lstrip()), place[1]
        if word is not None and (start not in begins or start < word[1]):
            word = (word[0], max(word[1], end), word[2])
            continue
        if word is not None:
            yield word
        word = (start, end, scores)
    if word is not None:
        yield word


def _entity(text: str, name: str, words: list[tuple[int, int, float]]) -> Meta:
    start, end, score = words[0][0], words[-1][1], sum(word[2] for word in words) / len(words)
    return {"type": name, "text": text[start:end], "start": start, "end": end, "score": score}
