"""A model from elsewhere brings its tokenizer: `predict` ends with one line if that takes for ever, or can't read a text."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT
from tests.helpers.metadata import metadata_of
from tests.helpers.stores import new_store
from tests.helpers.waiting import wait_for
from trnflow.flows.python.run import Model
from trnflow.tasks.artifact import Artifact
from trnflow.tasks.data.format.config import FormatConfig
from trnflow.tasks.data.format.row_format import FORMAT, ROW_FORMAT_FILE, VERSION
from trnflow.tasks.errors import MachineError, ModelError
from trnflow.tasks.prediction import separate_process
from trnflow.tasks.prediction.tokenizing import computing
from trnflow.tasks.stage import write_json
from trnflow.tasks.store import Store
from trnflow.tasks.system.process import is_running

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


def model_of(folder: Path, shared: Path, change: dict[str, Any], chat_template: str = "") -> tuple[Store, Artifact]:
    model = folder / "model"
    shutil.copytree(shared / "assets/stories260K-hf", model, copy_function=shutil.copyfile)
    document = json.loads((model / "tokenizer.json").read_text())
    (model / "tokenizer.json").write_text(json.dumps({**document, **change}))
    task, column = ("chat", "messages") if chat_template else ("text", "text")
    rows = {"settings": FormatConfig(task=task).model_dump(), "text": [column], "columns": [column], "nested": []}
    if chat_template:
        (model / "chat_template.jinja").write_text(chat_template, encoding="utf-8")
    described = {"format": FORMAT, "version": VERSION, "task": "causal_lm", "rows": rows, "max_length": 64}
    write_json(model / ROW_FORMAT_FILE, described)
    store = new_store(folder)
    return store, store.ingest(model, "model", {**metadata_of("consolidate"), "task": "causal_lm"})


def predict(
    folder: Path, shared: Path, change: dict[str, Any], text: str, *options: str, seconds: float = 2
) -> subprocess.CompletedProcess[str]:
    _, model = model_of(folder, shared, change)
    command = [sys.executable, "-c", PREDICT, str(seconds), "predict", model.digest, text, "--max-new-tokens", "2"]
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


WITHOUT_AN_END: dict[str, Any] = {"pre_tokenizer": split("(a|aa){20}c")}
THOUSANDFOLD: dict[str, Any] = {
    "normalizer": {
        "type": "Sequence",
        "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}] * 3,
    }
}
"""20 KB become 20 TB."""
WATCHED = """
import os, sys
from trnflow.tasks.launch import memory
from trnflow.tasks.prediction import tokenizing
from trnflow.tasks.prediction.separate_process import serve_watched
tokenizing.SECONDS, memory.machine_memory = float(sys.argv[2]), lambda: 3 << 30
print(os.getpid(), file=sys.stderr, flush=True)
serve_watched(sys.argv[1])
"""
"""The process that predicts for a program, on a machine of 3 GiB, with fewer seconds for a tokenizer."""


@pytest.mark.parametrize(
    ("change", "seconds", "why"),
    [
        (WITHOUT_AN_END, 2.0, "its tokenizer took more than 3 s of processor time"),
        (THOUSANDFOLD, 60.0, "it held more than 2 GiB"),
    ],
)
def test_from_python_it_has_the_same_limits(
    change: dict[str, Any], seconds: float, why: str, tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        separate_process, "python", lambda entry, number: [sys.executable, "-c", WATCHED, number, str(seconds)]
    )
    model = Model(*model_of(tmp_path, shared, change))
    with pytest.raises(MachineError, match=f"the process that predicts was ended: {why}"):
        model.predict(LATER, max_new_tokens=2)
    assert model._process is None or model._process.ended, "the next call starts another"


DOOR = """
import sys
from tests.prediction.test_tokenizing import WATCHED, LATER, Model, new_store, Path, separate_process
separate_process.python = lambda entry, number: [sys.executable, "-c", WATCHED, number, "60"]
store = new_store(Path(sys.argv[1]))
Model(store, store.artifact(sys.argv[2])).predict(LATER, max_new_tokens=2)
"""


def test_a_process_that_predicts_ends_with_the_program_that_asked(tmp_path: Path, shared: Path) -> None:
    """Though its tokenizer computes, and does not read that nobody waits for it."""
    model = model_of(tmp_path, shared, WITHOUT_AN_END)[1]
    command = [sys.executable, "-c", DOOR, str(tmp_path), model.digest]
    with subprocess.Popen(command, cwd=PROJECT, stderr=subprocess.PIPE, text=True) as door:
        assert door.stderr is not None
        predicting = int(door.stderr.readline())
        wait_for(lambda: ticks(predicting) > 12 * os.sysconf("SC_CLK_TCK"))
        door.kill()
    wait_for(lambda: not is_running(predicting))


def ticks(pid: int) -> int:
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))


def test_a_model_for_which_the_memory_is_too_small_is_not_called_broken() -> None:
    with pytest.raises(MemoryError), computing("model"):
        raise MemoryError("cannot allocate 8 GiB")
    with (
        pytest.raises(ModelError, match="the model model can't compute its outputs: KeyError: 'rope'"),
        computing("model"),
    ):
        raise KeyError("rope")
