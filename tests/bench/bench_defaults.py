"""What the two commands give, beside what one would use instead: `python -m tests.bench.bench_defaults`.

For each set, column and seed one process trains, and its predictions of the test rows are kept in a file: a run that is
stopped goes on where it was. The whole takes a day on two cores; `--sets`, `--columns` and `--seeds` choose parts. `--table`
measures nothing: it prints the table of defaults.jsonl, which this repository keeps, and of `--out`. `--keep` writes both into
that file. The table has the mean over the seeds, and of each column the paired 95 % interval of `after` less it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.defaults_columns import COLUMNS
from tests.bench.defaults_data import SETS, Kind, Set, drawn

if TYPE_CHECKING:
    from numpy.typing import NDArray

KEPT = Path(__file__).with_name("defaults.jsonl")
"""What was measured: a line for each set, column and seed."""
RESAMPLES = 1000
MANY_SEEDS = 2000
"""Sets with at most so many rows are drawn with three seeds."""
SETFIT_SEEDS = 600
METRICS: dict[Kind, str] = {"classes": "accuracy", "labels": "micro-F1", "number": "Spearman", "tags": "span F1"}
WIDTHS: dict[Kind, int] = {"classes": 1, "labels": 3, "number": 2, "tags": 3}
"""How many numbers each test row adds to the metric."""
Cells = dict[tuple[str, str, int], Any]
"""What was measured of a set, column and seed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("bench-defaults"), help="folder of the results")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, default=list(COLUMNS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--table", action="store_true", help="print the table of what was measured")
    parser.add_argument("--keep", action="store_true", help=f"write what was measured into {KEPT.name}")
    parser.add_argument("--one", nargs=3, metavar=("SET", "COLUMN", "SEED"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        name, column, seed = asked.one
        _measure(name, column, int(seed), asked.out)
        return
    if not (asked.table or asked.keep):
        for seed in asked.seeds:
            for name in asked.sets:
                for column in asked.columns:
                    if seed in _seeds(SETS[name], column) and not _file(asked.out, name, column, seed).exists():
                        _begin(name, column, seed, asked.out)
    cells = kept() | _measured(asked.out)
    if asked.keep:
        _keep(cells)
    print(table(cells))


def _seeds(wanted: Set, column: str) -> range:
    rows = wanted.rows or (MANY_SEEDS + 1)
    return range(3 if rows <= (SETFIT_SEEDS if column == "setfit" else MANY_SEEDS) else 1)


def _file(out: Path, name: str, column: str, seed: int) -> Path:
    return out / f"{name}.{column}.{seed}.json"


def _begin(name: str, column: str, seed: int, out: Path) -> None:
    environ = os.environ | {"USE_TORCH_XLA": "0", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "tests.bench.bench_defaults", "--out", str(out), "--one", name, column, str(seed)]
    out.mkdir(parents=True, exist_ok=True)
    log = out / "log.txt"
    with log.open("ab") as output:
        done = subprocess.run(command, env=environ, stdout=output, stderr=output, check=False)
    told = f"failed: see {log}" if done.returncode else _told(out, name, column, seed)
    print(f"{name}, {column}, seed {seed}: {told}", flush=True)


def _told(out: Path, name: str, column: str, seed: int) -> str:
    found = json.loads(_file(out, name, column, seed).read_text())
    if "left_out" in found:
        return str(found["left_out"])
    return f"{found['metric']:.3f}, {found['seconds']:.0f} s"


def _measure(name: str, column: str, seed: int, out: Path) -> None:
    """Train once, and write the predictions and what they are worth."""
    wanted, work = SETS[name], out.absolute() / "work"
    train, test = drawn(wanted, seed)
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    begun, spent = time.perf_counter(), _processor()
    try:
        predicted = COLUMNS[column](wanted, train, test, seed, work)
    except NotImplementedError as error:
        found: dict[str, Any] = {"left_out": str(error)}
    else:
        expected = list(test[wanted.target])
        parts = _parts(wanted.kind, expected, predicted)
        found = {
            "metric": _value(wanted.kind, parts), "macro_f1": _macro_f1(wanted.kind, expected, predicted),
            "seconds": time.perf_counter() - begun, "processor_seconds": _processor() - spent, "rows": len(train),
            "commit": _commit(), "parts": [round(number, 4) for number in parts.ravel().tolist()],
        }  # fmt: skip
    to = _file(out, name, column, seed)
    to.with_suffix(".part").write_text(json.dumps(found))
    to.with_suffix(".part").rename(to)
    shutil.rmtree(work)


def _processor() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _commit() -> str:
    told = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True)
    return told.stdout.strip()


def _parts(kind: Kind, expected: list[Any], predicted: list[Any]) -> NDArray[Any]:
    """Return what each test row adds to the metric, [rows, n]: right; or hits, predicted, true; or both numbers."""
    import numpy as np

    if kind == "classes":
        return np.array([[float(one == two)] for one, two in zip(expected, predicted, strict=True)])
    if kind == "number":
        return np.array([[float(one), float(two)] for one, two in zip(expected, predicted, strict=True)])
    sets: Callable[[Any], set[Any]] = set if kind == "labels" else _spans
    pairs = [(sets(one), sets(two)) for one, two in zip(expected, predicted, strict=True)]
    return np.array([[len(one & two), len(two), len(one)] for one, two in pairs], dtype=float)


def _spans(tags: list[str]) -> set[Any]:
    from seqeval.metrics.sequence_labeling import get_entities

    return set(get_entities(tags))


def _value(kind: Kind, parts: NDArray[Any]) -> float:
    if kind == "classes":
        return float(parts.mean())
    if kind == "number":
        from scipy.stats import spearmanr

        return float(spearmanr(parts[:, 0], parts[:, 1])[0])
    hits, found, true = parts.sum(axis=0)
    return float(2 * hits / max(1.0, found + true))


def _macro_f1(kind: Kind, expected: list[Any], predicted: list[Any]) -> float | None:
    from sklearn.metrics import f1_score

    return float(f1_score(expected, predicted, average="macro", zero_division=0)) if kind == "classes" else None


def kept() -> Cells:
    lines = [json.loads(line) for line in KEPT.read_text().splitlines()]
    return {(line.pop("set"), line.pop("column"), line.pop("seed")): line for line in lines}


def _measured(out: Path) -> Cells:
    found: Cells = {}
    for file in sorted(out.glob("*.json")):
        name, column, seed = file.stem.split(".")
        found[name, column, int(seed)] = json.loads(file.read_text())
    return found


def _keep(cells: Cells) -> None:
    order = [(name, column, seed) for name in SETS for column in COLUMNS for seed in range(3)]
    lines = (
        json.dumps(dict(zip(("set", "column", "seed"), of, strict=True)) | cells[of]) for of in order if of in cells
    )
    KEPT.write_text("".join(f"{line}\n" for line in lines))


def table(cells: Cells) -> str:
    """Return the results as Markdown. A cell: the mean of the metric, of classes with macro-F1; seconds; in brackets the paired
    interval of `after` less it, and the number of its seeds, if it is more than one."""
    lines = [f"| set | {' | '.join(COLUMNS)} |", f"|---|{'---|' * len(COLUMNS)}"]
    for name, wanted in SETS.items():
        found = {column: _of(cells, name, column) for column in COLUMNS}
        if any(found.values()):
            shown = [_cell(wanted, found[column], found["after"], column) for column in COLUMNS]
            lines.append(f"| {name} ({METRICS[wanted.kind]}) | {' | '.join(shown)} |")
    return "\n".join(lines)


def _of(cells: Cells, name: str, column: str) -> dict[int, Any]:
    found = {seed: cells[name, column, seed] for seed in range(3) if (name, column, seed) in cells}
    return {seed: result for seed, result in found.items() if "left_out" not in result}


def _cell(wanted: Set, found: dict[int, Any], ours: dict[int, Any], column: str) -> str:
    if not found:
        return "–"
    mean = sum(result["metric"] for result in found.values()) / len(found)
    shown = f"{mean:.3f}"
    if wanted.kind == "classes":
        shown += f" / {sum(result['macro_f1'] for result in found.values()) / len(found):.3f}"
    shown += f", {sum(result['seconds'] for result in found.values()) / len(found):,.0f} s"
    both = sorted(found.keys() & ours.keys())
    if both and column != "after":
        low, high = _interval(
            wanted.kind, [ours[seed]["parts"] for seed in both], [found[seed]["parts"] for seed in both]
        )
        shown += f" ({low:+.3f} to {high:+.3f})"
    return shown + (f"; {len(found)} seeds" if len(found) > 1 else "")


def _interval(kind: Kind, ours: list[Any], theirs: list[Any]) -> tuple[float, float]:
    """Return the 95 % interval of ours less theirs: the test rows are drawn again, the same of all seeds and both."""
    import numpy as np

    random = np.random.default_rng(0)
    one, two = (np.array(parts).reshape(len(parts), -1, WIDTHS[kind]) for parts in (ours, theirs))
    draws = random.integers(one.shape[1], size=(RESAMPLES, one.shape[1]))
    less = [
        np.mean([_value(kind, a[rows]) - _value(kind, b[rows]) for a, b in zip(one, two, strict=True)])
        for rows in draws
    ]
    low, high = np.quantile(less, [0.025, 0.975])
    return float(low), float(high)


if __name__ == "__main__":
    main()
