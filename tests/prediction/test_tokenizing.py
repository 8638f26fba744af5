"""A model from elsewhere brings its tokenizer: `predict` ends with one line if that takes for ever, or can't read a text."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.metadata import metadata_of
from tests.helpers.stores import new_store
from trnflow.tasks.data.format.config import FormatConfig
from trnflow.tasks.data.format.row_format import FORMAT, ROW_FORMAT_FILE, VERSION
from trnflow.tasks.stage import write_json

PREDICT = """
import sys
from trnflow.tasks.prediction import tokenizing
tokenizing.SECONDS = float(sys.argv.pop(1))
from trnflow.flows.cli.main import main
sys.exit(main())
"""
"""The command line, which gives a tokenizer fewer seconds."""
LATER = "a" * 20_000 + "b"
"""A text at which the patterns below look long; at others they do not."""


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def predict(
    folder: Path, shared: Path, change: dict[str, Any], text: str, *options: str, seconds: float = 2
) -> subprocess.CompletedProcess[str]:
    model = folder / "model"
    shutil.copytree(shared / "assets/stories260K-hf", model, copy_function=shutil.copyfile)
    document = json.loads((model / "tokenizer.json").read_text())
    (model / "tokenizer.json").write_text(json.dumps({**document, **change}))
    rows = {"settings": FormatConfig(task="text").model_dump(), "text": ["text"], "columns": ["text"], "nested": []}
    described = {"format": FORMAT, "version": VERSION, "task": "causal_lm", "rows": rows, "max_length": 64}
    write_json(model / ROW_FORMAT_FILE, described)
    digest = new_store(folder).ingest(model, "model", {**metadata_of("consolidate"), "task": "causal_lm"}).digest
    command = [sys.executable, "-c", PREDICT, str(seconds), "predict", digest, text, "--max-new-tokens", "2"]
    command += ["--store", str(folder / "store"), *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def test_an_honest_tokenizer_has_time(tmp_path: Path, shared: Path) -> None:
    done = predict(tmp_path, shared, {}, LATER, seconds=60)
    assert done.returncode == 0 and "too long for the model and were cut" in done.stderr


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_pattern_without_an_end_ends_predict_with_one_line(
    tmp_path: Path, shared: Path, options: tuple[str, ...]
) -> None:
    done = predict(tmp_path, shared, {"pre_tokenizer": split("(a|aa){20}c")}, LATER, *options)
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == "" and done.stderr.count("error") == 1
    assert "error: predict was ended: its tokenizer took more than 3 s of processor time" in done.stderr


def test_a_pattern_that_the_library_gives_up_is_one_line(tmp_path: Path, shared: Path) -> None:
    done = predict(tmp_path, shared, {"pre_tokenizer": split("(a+)+$")}, LATER)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "error: the tokenizer of " in done.stderr and "can't read the text: Onig" in done.stderr
