"""Seconds of `format_prompts` over Dolly by a function of the user's, beside the built-in format: `trnflow run` by turns.

python -m tests.bench.bench_own_format [--rounds 5] [--copies 1]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
from pyarrow.parquet import write_table

from tests.bench.bench_data import dolly

BUILT_IN = """
extends: [instruct, base/scratch/decoder]
data: {source: rows, split: {validation: 0.01, test: 0.01}}
format: {task: instruction, context: context, response: response}
tracking: {enabled: false}
"""
OWN = '''
def make(row):
    """The built-in style of instructions."""
    parts = [f"### Instruction\\n{row['instruction']}"]
    if row["context"]:
        parts.append(f"### Context\\n{row['context']}")
    return "\\n\\n".join([*parts, "### Response\\n"])
'''


def seconds(folder: Path, recipe: str) -> float:
    """Make the texts anew; return how long the stage took, by the clock."""
    command = [sys.executable, "-m", "trnflow", "run", recipe, "--until", "format_prompts", "--force", "format_prompts"]
    environ = {**os.environ, "TRNFLOW_HOME": str(folder / "home")}
    done = subprocess.run([*command, "--direct", "--json"], cwd=folder, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    stages = {stage["stage"]: stage for stage in json.loads(done.stdout)["stages"]}
    return float(stages["format_prompts"]["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--copies", type=int, default=1, help="of Dolly's 15,011 rows")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "rows").mkdir()
        write_table(pa.concat_tables([dolly()] * options.copies), folder / "rows/train.parquet")
        (folder / "built_in.yaml").write_text(BUILT_IN)
        (folder / "own.yaml").write_text(BUILT_IN.replace("instruction, c", "instruction, make: 'mine:make', c"))
        (folder / "mine.py").write_text(OWN)
        seconds(folder, "own.yaml")  # its proof is once for each state of the code
        seconds(folder, "built_in.yaml")
        pairs = [[seconds(folder, recipe) for recipe in ("own.yaml", "built_in.yaml")] for _ in range(options.rounds)]
        own, built_in = (statistics.median(each) for each in zip(*pairs, strict=True))
        print(f"own {own:.2f} s, built in {built_in:.2f} s: {own / built_in:.2f} times (medians of {options.rounds})")


if __name__ == "__main__":
    main()
