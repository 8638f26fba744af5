"""From a file to a model that answers: `new`, `run`, `predict`, as a user gives them, in an empty home, without a hub."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.flows.authoring.test_choose import lines, sentence
from tests.helpers.command_line import InProcessShell, Shell
from tests.helpers.printed import unprinted
from tests.helpers.products import few
from tests.helpers.tweets import write_tweets

pytestmark = pytest.mark.slow

# Written into the recipe by `new`: what makes a toy of it.
TOY = (
    "data.limit=40", "train.max_steps=4", "train.epochs=1", "tokenize.max_length=64", "pack.chunk_length=64",
    "tokenize.train.vocab_size=1000", "model.config.num_hidden_layers=1", "evaluate.export_rows=0", "export.batch=1",
    "evaluate.generation.prompts=1", "evaluate.generation.max_new_tokens=4", "tracking.enabled=false",
)  # fmt: skip
NO_HUB = {"HF_HUB_OFFLINE": "1"}


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    shell = InProcessShell(tmp_path)
    (tmp_path / "home").mkdir()
    shell.environ |= {"HOME": str(tmp_path / "home"), **NO_HUB}
    return shell


CASES = {
    "chat_tools": ("chat", ("messages", "tools"), "我需要一张发票。"),
    "sentiment_amharic": ("classification", ("text", "label"), "ክብር እና ምስጋና"),
    "dolly15k": ("instruction", ("instruction", "context", "response"), "What is a banana?"),
}


@pytest.mark.parametrize("name", few(CASES, 1))
def test_real_data(shell: Shell, shared: Path, name: str) -> None:
    task, taken, text = CASES[name]
    # Ge'ez letters: a vocabulary that holds them
    toy = [word.replace("vocab_size=1000", "vocab_size=2000") for word in TOY]
    document = shell.json("new", str(shared / "data" / name), *toy)
    assert document["task"] == task and tuple(column["as"] for column in document["taken"]) == taken
    answers(shell, f"{name}.yaml", text)


def answers(shell: Shell, recipe: str, text: str) -> None:
    """Run a recipe and predict a text."""
    done = shell("run", recipe, "--direct")
    assert done.returncode == 0, done.stderr
    done = shell("predict", recipe, text, "--json", "--max-new-tokens", "4")
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["results"]
    assert "label" in result or "generated" in result


def test_alpaca_and_trl(shell: Shell) -> None:
    """An input is part of Alpaca's prompt; TRL's prompt and completion are joined as they are."""
    rows = {
        "alpaca": lambda n: {"instruction": sentence(n), "input": f"input {n}", "output": sentence(n + 99)},
        "trl": lambda n: {"prompt": f"{sentence(n)} ->", "completion": f" {sentence(n + 99)}"},
    }
    for name, make in rows.items():
        (shell.folder / f"{name}.jsonl").write_bytes(lines(make))
        assert shell("new", f"{name}.jsonl", *TOY, "tokenize.max_length=256").returncode == 0
        spans = shell.json("preview", f"{name}.yaml", "1")["rows"][0]["spans"]
        prompt, answer = spans[0]["text"], "".join(span["text"] for span in spans[1:])
        if name == "alpaca":
            assert "### Input:\ninput " in prompt and "### Response:" in prompt
        else:
            assert re.fullmatch(r"(<s>)?[a-z ]+ \d+ ->", prompt) and re.match(r" [a-z ]+ \d+", answer)
    answers(shell, "trl.yaml", "the printer is broken ->")


def test_the_commands_of_the_readme(shell: Shell) -> None:
    """The file that the README names; settings that make a toy of it are the only addition. Each line that the README
    shows as printed is printed, but for numbers, and the end of a line that the README cuts off."""
    write_tweets(shell.folder)
    section = (PROJECT / "README.md").read_text().partition("## Your own data")[2].partition("## ")[0]
    commands = re.findall(r"^    trnflow (new|run|predict) (.*?)(?: {2,}#.*| # .*)?$", section, re.MULTILINE)
    assert [command for command, _ in commands[:3]] == ["new", "run", "predict"]
    shown = [re.findall(r"^        (.+)$", part, re.MULTILINE) for part in re.split(r"(?m)^    trnflow ", section)[1:4]]
    assert all(shown)
    made = shell("new", "tweets.csv", *TOY)
    assert made.returncode == 0 and not {*shown[0]} - {*made.stdout.splitlines()}
    ran = shell("run", "tweets.yaml", "--direct")
    assert ran.returncode == 0, ran.stderr
    assert not unprinted("\n".join(shown[1]), ran.stdout + ran.stderr)
    text = re.findall(r'"(.*?)"', commands[2][1])[0]
    answer = shell("predict", "tweets.yaml", text).stdout.strip()
    assert all(re.fullmatch(rf"[\d.]+  [a-z]+  {text}", line) for line in (answer, *shown[2]))
    answers(shell, "tweets.yaml", text)


def test_the_python_of_the_readme(shell: Shell) -> None:
    """As written, but that `classify` has the toy's settings and a model that needs no hub."""
    write_tweets(shell.folder)
    assert shell("new", "tweets.csv", "name=toy", *TOY).returncode == 0
    code = (PROJECT / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
    assert len(code.strip().splitlines()) <= 8
    (shell.folder / "readme.py").write_text(code.replace('"classify"', '"toy.yaml"'))
    program = [sys.executable, "readme.py"]
    environ = shell.environ | {"PYTHONPATH": str(PROJECT)}
    ran = subprocess.run(program, cwd=shell.folder, env=environ, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    run, *_, answer = ran.stdout.splitlines()
    assert re.match(r"Run\(\S+ of tweets: completed, accuracy [\d.]+ \(baseline [\d.]+\)", run) and answer.isalpha()
    assert "the simple baseline has" in ran.stdout
