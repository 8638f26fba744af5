"""What a prediction has beside the model's answer: columns of its row, such as an id, by which it is found again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from trnflow.tasks.data.format.row_format import RowFormat
from trnflow.tasks.data.texts import PAIR
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.kinds.registry import kind_of
from trnflow.tasks.prediction.prompts import columns_of

ROW, CUT, REMARK = "row", "cut", "remark"


def answer_types(rows: RowFormat) -> dict[str, str]:
    """Return {column of a prediction: its type, as in `Kind.answers`}, those that not every prediction has last."""
    kind = kind_of(rows.task)
    pair = {PAIR: "string"} if rows.settings.get(PAIR) and not kind.apart else {}
    return {**kind.answers, **pair, CUT: "long", REMARK: "string"}


class Carried(NamedTuple):
    """Columns of rows that their predictions carry, and those that they would, had a prediction's own not the same name."""

    columns: list[str]
    left_out: list[str]


def carried_columns(rows: RowFormat, there: Iterable[str], chosen: Sequence[str] | None = None) -> Carried:
    """Return the columns of rows that their predictions carry: `chosen`, else those that the model does not read.

    there: All columns of the rows. Raises ConfigError for a chosen column that is not there, or has the name of a
    prediction's own.
    """
    there, own = [*there], {ROW, *answer_types(rows)}
    if chosen is None:
        columns, optional = columns_of(rows)
        # a function of the user's may read every column: what it makes of them is no copy
        read = {*columns, *rows.text, *(() if rows.own else optional)}
        unread = [name for name in there if name not in read]
        return Carried([name for name in unread if name not in own], [name for name in unread if name in own])
    for name in chosen:
        if name not in there:
            raise ConfigError(f"the rows have no column {name}", f"choose of {', '.join(there)}")
        if name in own:
            raise ConfigError(f"the column {name} has the name of a prediction's own", f"rename {name} in the rows")
    return Carried(list(dict.fromkeys(chosen)), [])
