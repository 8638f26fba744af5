"""Write the results of `gpu` into the table of docs/machines.md: a row for each way that `gpu_items` names.

    python -m tests.bench.gpu_table [RESULTS.jsonl ...]

A row that the results do not have keeps its figures, or says that it has not run on a GPU. Results of a processor are refused.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.gpu_items import Row, rows
from tests.bench.gpu_results import CPU, described

PAGE = Path(__file__).resolve().parents[2] / "docs" / "machines.md"
HEADER = "| `--items` | case | way | measured | card, versions |\n|---|---|---|---|---|\n"
TABLE = re.compile(re.escape(HEADER) + r"((?:\|.*\n)*)")
NEVER = "not run on a GPU"
ESTIMATE = "estimate"
Found = dict[Row, dict[str, Any]]


def read(files: Sequence[Path]) -> Found:
    """Return the newest result of each row, and of each case's estimate. Raises SystemExit for results of a processor."""
    found: Found = {}
    for line in (json.loads(line) for file in files for line in file.read_text().splitlines()):
        if "way" in line:
            if line["device"] == CPU:
                sys.exit(f"{line['item']} was measured on a processor: the table is of GPUs")
            found[Row(line["item"], line["case"], line["way"])] = line
    return found


def line_of(row: Row, found: Found) -> str:
    """Return the row's line of the table, with its results."""
    result = found[row]
    planned = found.get(row._replace(way=ESTIMATE), {}).get("memory")
    # the estimate is of training without compiling
    beside = f"; the estimate says {planned / 2**30:.1f}" if planned and row.way == "trnflow" else ""
    read_rows = f"; {result['rows']}" if "rows" in result else ""
    card = f"{result['device']}, torch {result['torch']}, transformers {result['transformers']}"
    return _line([*row, f"{described(result).replace('|', '/')}{beside}{read_rows}", card])


def updated(page: str, found: Found) -> str:
    """Return the page with these results in its table."""
    kept = {Row(*cells[:3]): cells for cells in table_rows(page)}
    lines = (line_of(row, found) if row in found else _line(kept.get(row, [*row, NEVER, ""])) for row in rows())
    return TABLE.sub(lambda _: HEADER + "".join(f"{line}\n" for line in lines), page)


def table_rows(page: str) -> list[list[str]]:
    """Return the cells of each row of the page's table. Raises ValueError unless the page has one."""
    (table,) = TABLE.findall(page)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    found = read([Path(name) for name in sys.argv[1:]])
    PAGE.write_text(updated(PAGE.read_text(), found))


if __name__ == "__main__":
    main()
