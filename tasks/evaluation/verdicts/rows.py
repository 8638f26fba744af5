"""Rows that were cut, left out, or stand in train, too; texts that do not end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trnflow.tasks.artifact import Input
from trnflow.tasks.data.texts import text_of_example
from trnflow.tasks.evaluation.verdicts.facts import Facts, Known, figure, percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trnflow.tasks.system.arrays import Bools

CUT, LEFT_OUT = 1 / 3, 0.01
"""The shares of rows from which it is told that they were cut, or left out."""
ALIKE, LEAST = 0.05, 3
"""The share and the number of rows, at least, that are told to stand in train."""
BYTES = 80_000_000
"""The most bytes of texts, unpacked, that are compared with train's."""


def endless_texts(facts: Facts) -> str | None:
    """Say that most of the greedy texts did not end."""
    lines = facts.generations
    endless = [line["tokens"] for line in lines if not line["ended"]]
    if 2 * len(endless) <= len(lines):
        return None
    note = (
        f"{len(endless)} of {len(lines)} generated texts did not end within {max(endless)} tokens: the model has not learnt to "
        "stop, or evaluate.generation.max_new_tokens is too small"
    )
    cut = facts.packed.get("cut_answers", {}).get("train", 0)
    whole = sum(end["answers"] for end in facts.packed.get("ends", ()))
    return f"{note}; tokenize.max_length cut the end of {cut} of {cut + whole} answers of train" if cut else note


def cut_rows(facts: Facts) -> str | None:
    """Say that more than CUT of the rows were cut, or left out."""
    counts = facts.report["data"].get(facts.split)
    if counts is None:
        return None
    if counts["too_long"] + counts["unsupervised"] > CUT * counts["rows"]:
        return left_out_rows(facts)
    if counts["truncated"] <= CUT * counts["rows"]:
        return None
    return (
        f"{_of(counts['truncated'], counts['rows'])} rows of {facts.split} were cut to {facts.report['max_length']:,} tokens: "
        "the model did not read the rest; a larger tokenize.max_length reads more, and takes longer"
    )


def left_out_rows(facts: Facts) -> str | None:
    """Say that rows were not evaluated."""
    counts = facts.report["data"].get(facts.split)
    if counts is None:
        return None
    kinds = (
        (counts["too_long"], "were left out for their length: they are not evaluated (tokenize.max_length)"),
        (counts["unsupervised"], "have no token to train on: they are not evaluated (tokenize.max_length)"),
    )
    lines = [
        f"{_of(count, counts['rows'])} rows of {facts.split} {what}"
        for count, what in kinds
        if count > LEFT_OUT * counts["rows"]
    ]
    return "; ".join(lines) or None


def _of(count: int, rows: int) -> str:
    return f"{count:,} of {rows:,} ({percent(count / rows)})"


def rows_in_train(facts: Facts) -> str | None:
    """Say that rows stand in train, or differ from one of train by a word."""
    if facts.known is None or facts.rows is None:
        return None
    equal = facts.known.equal[facts.rows]
    here = equal | facts.known.near[facts.rows]
    rows, count, same = (len(set(each.tolist())) for each in (facts.rows, facts.rows[here], facts.rows[equal]))
    if count < LEAST or count < ALIKE * rows:
        return None
    kinds = (
        (same, "have the text of a row of train"),
        (count - same, "differ from a row of train by one word or punctuation"),
    )
    what = " and ".join(f"{number:,} {words}" for number, words in kinds if number)
    advice = ["data.dedupe=true leaves equal texts out of train"] * bool(same)
    advice += ["data.split_by keeps rows together whose column has one value"] * (count > same)
    return f"of {rows:,} rows of {facts.split} {what}{_apart(facts, here)}; {', '.join(advice)}"


def _apart(facts: Facts, here: Bools) -> str:
    """Say how accurate the model is on these rows, and on the others."""
    if not facts.kind.one_class or here.all():
        return ""
    right = facts.columns.predicted == facts.columns.expected
    return (
        f": accuracy is {figure(float(right[here].mean()))} on them, {figure(float(right[~here].mean()))} on the others"
    )


def known_rows(texts: Input, split: str) -> Known | None:
    """Return which rows of a split stand in train. None of train itself, and for more than BYTES."""
    import numpy as np

    from trnflow.tasks.evaluation.verdicts.near_texts import near_texts

    files = [texts.path / f"{name}.parquet" for name in ("train", split)]
    if split == "train" or not all(file.exists() for file in files) or sum(map(_bytes, files)) > BYTES:
        return None
    train = dict.fromkeys(_texts(files[0]))  # not a set, whose order changes: the same numbers are compared each time
    equal = np.array([text in train for text in _texts(files[1])], np.bool_)
    return Known(equal, near_texts(train, _texts(files[1])) & ~equal)


def _bytes(file: Any) -> int:
    from pyarrow.parquet import ParquetFile

    with ParquetFile(file) as opened:
        return sum(opened.metadata.row_group(at).total_byte_size for at in range(opened.num_row_groups))


def _texts(file: Any) -> Iterator[str]:
    from pyarrow.parquet import ParquetFile

    with ParquetFile(file) as opened:
        for batch in opened.iter_batches():
            yield from (" ".join(text_of_example(row).casefold().split()) for row in batch.to_pylist())
