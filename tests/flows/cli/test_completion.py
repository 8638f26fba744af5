"""The completion script in a real bash: what Tab offers at the end of a command line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from trnflow.flows.cli import completion


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    done = subprocess.run(
        [sys.executable, "-m", "trnflow", "completion", "bash"], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    file = tmp_path_factory.mktemp("completion") / "trnflow.bash"
    file.write_text(done.stdout)
    return file


def offered(script: Path, line: str) -> list[str]:
    """What bash offers for the last word of a line, in the folder of the script."""
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    program = f"source {script}; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _trnflow; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(
        ["bash", "--norc", "-c", program], cwd=script.parent, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("trnflow pre", ["prepare", "preview", "predict"]),
        ("trnflow run demo", ["demo", "demo-llm"]),
        ("trnflow run mi", ["mine.yaml"]),
        ("trnflow run demo --unt", ["--until"]),
        ("trnflow run demo --until exp", ["export_neuron"]),
        ("trnflow plan demo --on cpu", ["cpu", "cpu-mesh"]),
        ("trnflow explain demo pa", ["pack_chunks"]),
        ("trnflow run demo pack.strat", ["pack.strategy="]),
        ("trnflow settings tokenize.train.lo", ["tokenize.train.lowercase"]),
        ("trnflow gc --ye", ["--yes"]),
        ("trnflow completion b", ["bash"]),
        ("trnflow down d", []),
    ],
)
def test_bash_completes(script: Path, line: str, words: list[str]) -> None:
    (script.parent / "mine.yaml").touch()
    assert offered(script, line) == words


def test_zsh_runs_the_same_script_and_the_version_is_printed() -> None:
    def said(*arguments: str) -> str:
        command = [sys.executable, "-m", "trnflow", *arguments]
        return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout

    assert said("completion", "zsh").startswith("autoload -Uz compinit bashcompinit")
    assert said("--version").startswith("trnflow 0.")


def test_settings_are_offered_and_sections_are_not() -> None:
    offered = {*re.split(r'[\s"]+', completion.script("bash", {}))}
    assert {"train.epochs=", "train.lora.rank=", "tokenize.train.lowercase="} <= offered
    assert not {"train=", "train.lora=", "tokenize.train="} & offered
