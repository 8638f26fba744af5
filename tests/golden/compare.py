"""Compare two commits: run both on this machine in five situations, and print where their results differ.

    python -m tests.golden.compare BASE HEAD [--recipes demo,demo-llm] [--situations fresh,hits] [--keys] [--prefect] [--out DIR]

Exits with 1 at a difference. BASE and HEAD are commits, or files `<commit>.json` that an earlier comparison wrote to --out,
made with the same options. Compared are artifacts' digests, `plan`, `run`, `show`, `explain`, `retrain` and `champions` with
--json, run records and MLflow's runs; with --keys the keys too, with --prefect the pages of Prefect (else runs go without it).
Both sides use this process's virtual environment, so both need the same dependencies.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.golden.normal import differences
from tests.golden.situations import SITUATIONS, Home, collect

PROJECT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """Check a commit out into a temporary folder, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        place = Path(folder) / "checkout"
        git("worktree", "add", "--quiet", "--detach", str(place), commit)
        try:
            yield place
        finally:
            git("worktree", "remove", "--force", str(place))


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=PROJECT, check=True, capture_output=True, text=True).stdout.strip()


def facts_of(side: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return {recipe: {situation: facts}} of a commit, or of a file that holds them."""
    if side.endswith(".json"):
        return dict(json.loads(Path(side).read_text()))
    commit = git("rev-parse", "--short=10", f"{side}^{{commit}}")
    facts = {}
    with worktree(commit) as checkout:
        for recipe in options.recipes:
            with tempfile.TemporaryDirectory(prefix="golden-", ignore_cleanup_errors=True) as folder:
                home = Home(checkout, Path(folder), recipe, prefect=options.prefect, keys=options.keys)
                print(f"{side}: {recipe} ...", file=sys.stderr, flush=True)
                facts[recipe] = collect(home, options.situations)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / f"{commit}.json").write_text(json.dumps(facts, indent=1, sort_keys=True))
    return facts


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare what two commits do.")
    parser.add_argument("base")
    parser.add_argument("head")
    parser.add_argument("--recipes", type=lambda text: text.split(","), default=["demo", "demo-llm"])
    parser.add_argument("--situations", type=lambda text: text.split(","), default=list(SITUATIONS))
    parser.add_argument("--keys", action="store_true")
    parser.add_argument("--prefect", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    base, head = facts_of(options.base, options), facts_of(options.head, options)
    found = []
    for recipe in options.recipes:
        for situation in base[recipe]:
            before, after = base[recipe][situation], head[recipe].get(situation, {})
            for what in sorted(before.keys() | after.keys()):
                lines = differences(before.get(what), after.get(what), f"{recipe}.{situation}.{what}")
                print(f"{recipe:10} {situation:10} {what:10} {f'{len(lines)} differences' if lines else 'equal'}")
                found += lines
    print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
