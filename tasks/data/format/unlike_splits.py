"""Find in what the texts of a split are unlike those of train: a pair's columns exchanged, or HTML, or accents apart from their
letters, in one of them alone. No stage fails of it, and the split's scores are too low. `tokenize_text` asks about accents: many
tokenizers put them together, or take them off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from trnflow.tasks.data.tables import read_rows
from trnflow.tasks.data.texts import PAIR

if TYPE_CHECKING:
    import pyarrow as pa

PLACES, ROWS = 5, 200
"""Rows of a split that are looked at: from so many places at equal distances so many each."""
FEWEST = 20
"""Rows of a split, at least, that are compared."""
MOSTLY, HALF, FEW = 0.66, 0.5, 0.05
"""Shares of rows: of pairs of which the same text is the shorter one; with signs in one split, and in the other."""
HTML = {"hold HTML, such as <br> or &amp;": r"</?[a-zA-Z][a-zA-Z0-9]*( [^<>]*)?/?>|&(amp|lt|gt|quot|nbsp|#[0-9]+);"}
ACCENTS = {"have accents apart from their letters (Unicode NFD)": "[A-Za-z][\u0300-\u036f]"}
"""What rows may have: words for it, and a pattern."""
TOGETHER, APART = "\u00e9", "e\u0301"
"""A letter with its accent, in both forms."""


def unlike_splits(
    files: Mapping[str, Path], first: str, second: str | None, signs: Mapping[str, str] = HTML
) -> Iterator[str]:
    """Yield a remark for each way in which a split is unlike train.

    files: {split: Parquet file with the column `text`, of pairs `text_pair`}; first, second: names of these columns in
    remarks, second None for rows of one text; signs: HTML or ACCENTS.
    """
    shares = {split: found for split, file in files.items() if (found := _shares(file, second is not None, signs))}
    train = shares.pop("train", {})
    for split, here in shares.items() if train else ():
        for longer, shorter in (("longer", "shorter"), ("shorter", "longer")):
            if second and min(here[longer], train[shorter]) >= MOSTLY:
                yield (
                    f"{split}: {first} is {longer} than {second} in {here[longer]:.0%} of the rows, and {shorter} in "
                    f"{train[shorter]:.0%} of those of train: are the columns exchanged in one of the files?"
                )
        for what in signs:
            if max(here[what], train[what]) >= HALF and min(here[what], train[what]) <= FEW:
                yield (
                    f"{split}: {here[what]:.0%} of the rows {what}, and {train[what]:.0%} of those of train: the model reads "
                    "other signs than it learnt; write the texts of both alike"
                )


def _shares(file: Path, is_pair: bool, signs: Mapping[str, str]) -> dict[str, float]:
    """Return {what: share of the rows} of the rows that are looked at; {} of few rows."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    columns = ["text", *([PAIR] if is_pair else [])]
    count = pq.ParquetFile(file).metadata.num_rows
    if count < FEWEST:
        return {}
    starts = [0] if count <= PLACES * ROWS else [place * count // PLACES for place in range(PLACES)]
    rows = pa.concat_tables([read_rows(file, at, ROWS if len(starts) > 1 else count, columns) for at in starts])

    def share(found: pa.ChunkedArray) -> float:
        return float((pc.sum(found).as_py() or 0) / rows.num_rows)

    shares = {what: share(pc.match_substring_regex(rows.column("text"), sign)) for what, sign in signs.items()}
    if is_pair:
        sizes = [pc.utf8_length(rows.column(name)) for name in columns]
        shares |= {"shorter": share(pc.less(*sizes)), "longer": share(pc.greater(*sizes))}
    return shares
