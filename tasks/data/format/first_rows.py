"""What is made of the first rows, for their proof."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trnflow.tasks.artifact import Meta
from trnflow.tasks.data.format.row_makers import maker_from
from trnflow.tasks.data.format.templates import Limit
from trnflow.tasks.data.proof import ROWS, go_elsewhere
from trnflow.tasks.data.tables import read_rows, rows_of
from trnflow.tasks.errors import DataError


def first_rows(arguments: Meta, limit: Limit) -> Meta:
    """Return {"rows": the examples of each of the first rows, as JSON text}, to prove that making them has no side effects.

    arguments: as `render_rows` takes them; elsewhere: whether to make the rows in another order and another folder.
    """
    table = rows_of(read_rows(Path(arguments["file"]), 0, ROWS))
    numbers = list(range(len(table)))
    if arguments["elsewhere"]:
        go_elsewhere()
        numbers = numbers[1::2][::-1] + numbers[::2][::-1]
    make, rows = maker_from(arguments, limit), [""] * len(table)
    for number in numbers:
        try:
            examples: Any = make(table[number], f"split {arguments['part']['split']} row {number + 1}").examples
        except DataError as error:
            if arguments["config"]["bad_rows"] == "error" and not arguments["elsewhere"]:
                raise
            examples = error.message
        rows[number] = json.dumps(examples)
    return {"rows": rows}
