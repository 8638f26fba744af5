"""Commands that read files from elsewhere in their own process end when they hold too much memory."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

SMALL = """
import sys
from trnflow.tasks.launch import memory
memory.machine_memory = lambda: 300 << 20
from trnflow.flows.cli.main import main
sys.exit(main())
"""
"""The command line on a machine of 300 MiB."""


RECIPE = """
extends: classify
data: {source: rows.csv, text: text, label: label, split: {validation: 0.1, test: 0.1}}
model: {source: model}
"""


@pytest.mark.parametrize("command", ["new rows.csv model.source=model", "plan recipe.yaml"])
def test_a_config_that_takes_all_memory_ends_with_one_line(command: str, tmp_path: Path) -> None:
    """7 MB of small objects take 240 MB; Python parses them in one call, which no thread can interrupt."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text('{"a": [' + '{"":0},' * 990_000 + "[]]}")
    rows = [f"what a day number {number} was,{'neg' if number % 2 else 'pos'}\n" for number in range(60)]
    (tmp_path / "rows.csv").write_text("".join(["text,label\n", *rows]))
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    done = subprocess.run([sys.executable, "-c", SMALL, *command.split()], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == "" and done.stderr.count("error") == 1
    assert f"error: {command.partition(' ')[0]} was ended: it held more than 0.146" in done.stderr


WITHOUT_A_KERNEL_THAT_TELLS = """
import sys
from trnflow.tasks.launch import guard
guard._prctl = lambda option, value: None
from trnflow.flows.cli.main import main
sys.exit(main())
"""
"""The command line as on macOS, where no process ends with its parent."""


@pytest.mark.parametrize("program", [["-m", "trnflow"], ["-c", WITHOUT_A_KERNEL_THAT_TELLS]])
def test_the_process_that_measures_ends_with_the_command(program: list[str], tmp_path: Path) -> None:
    """Else who reads the command's output to its end waits for ever."""
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    done = subprocess.run(
        [sys.executable, *program, "new", "rows.csv"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode in (1, 2) and "fix:" in done.stderr
