"""Find what the tokenizer takes off texts though labels depend on it, such as capitals or accents.

Nothing fails of it, and the model can't tell these texts apart. `new` and the verdict tell of an unknown script."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trnflow.tasks.system.arrays import load_array

FEWEST, SHARE = 5, 0.01
"""How many rows, and which share of train's, are remarked."""
ROWS = 200_000
"""Rows that are compared, from the first on."""
SHOWN = 60
"""Characters of a text that are shown."""


def lost_difference(
    texts: Path, folder: Path, labels: Sequence[str], longest: int, unknown: int | None = None
) -> str | None:
    """Return a remark if texts with equal tokens mostly have unlike labels; None of few such rows.

    texts: Parquet file with the column `text`, of pairs `text_pair`; folder: tokens of its rows; longest: tokens of a row that
    is not cut; unknown: the id of the unknown token, with which rows are left out.
    """
    of_rows = load_array(folder / "labels.npy")
    unlike: list[list[tuple[str, int]]] = []
    alike = 0
    for rows in _groups(texts, folder, longest, unknown):
        labelled = {(text, int(of_rows[row])) for row, text in rows.items()}
        names, found = {text for text, _ in labelled}, {label for _, label in labelled}
        # a text that itself stands with several labels is no sign of the tokenizer's
        if len(names) == len(labelled) > 1:
            alike += len(found) == 1
            unlike += [sorted(labelled)] * (len(found) == len(labelled))
    count = sum(map(len, unlike))
    if count < max(FEWEST, SHARE * min(len(of_rows), ROWS)) or len(unlike) <= alike:
        return None
    (one, label), (other, second) = unlike[0][:2]
    return (
        f"{count:,} texts of train have the tokens of a text with another label, such as {one[:SHOWN]!r} ({labels[label]}) and "
        f"{other[:SHOWN]!r} ({labels[second]}): the tokenizer takes off what tells them apart; take a model that keeps it, "
        "such as a cased one (model.source)"
    )


def _groups(texts: Path, folder: Path, longest: int, unknown: int | None) -> list[dict[int, str]]:
    """Return {row of tokens: its texts, blanks put alike} of each group of rows that have equal tokens."""
    import numpy as np
    import pyarrow.parquet as pq

    ids, offsets = load_array(folder / "input_ids.npy"), load_array(folder / "offsets.npy")
    same: dict[bytes, list[int]] = {}
    for row in np.flatnonzero(load_array(folder / "source_tokens.npy")[:ROWS] <= longest).tolist():
        same.setdefault(ids[offsets[row] : offsets[row + 1]].tobytes(), []).append(row)
    groups = [
        rows for tokens, rows in same.items() if len(rows) > 1 and unknown not in np.frombuffer(tokens, ids.dtype)
    ]
    wanted = [row for rows in groups for row in rows]
    table = pq.read_table(texts)
    source = load_array(folder / "source_row.npy")[wanted]
    columns = [
        table.column(name).take(source).to_pylist() for name in ("text", "text_pair") if name in table.column_names
    ]
    given = dict(zip(wanted, (" ".join(" ".join(some).split()) for some in zip(*columns, strict=True)), strict=True))
    return [{row: given[row] for row in rows} for rows in groups]
