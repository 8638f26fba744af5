"""TRNFLOW_LOG=json: each line on stderr is a JSON object, whoever wrote it, and holds no secret."""

from __future__ import annotations

import io
import json
import logging
import sys
from contextlib import redirect_stderr
from typing import Any

import pytest

from trnflow.flows.cli.output import say_error
from trnflow.flows.display.progress import Progress
from trnflow.flows.runner.run_log import write_failure
from trnflow.tasks.errors import ConfigError, DataError
from trnflow.tasks.events import EventLog
from trnflow.tasks.system.log_lines import LogLines, log_as_asked
from trnflow.tasks.system.redaction import add_secrets_of

SECRET = "pl4nted-s3cret"


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    monkeypatch.setenv("TRNFLOW_LOG", "json")
    return io.StringIO()


def documents(stream: io.StringIO) -> list[Any]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_lines_of_any_writer_are_objects(written: io.StringIO) -> None:
    with redirect_stderr(written), log_as_asked():
        print("printed", "in parts", file=sys.stderr)
        sys.stderr.write("Traceback:\n  a line\n")
        assert logging.lastResort is not None  # writes warnings of libraries, where no handler is set
        logging.lastResort.handle(logging.makeLogRecord({"msg": "of a library", "levelno": logging.WARNING}))
        sys.stderr.write("10%\r50%\r100%\n\n")
        sys.stderr.write("an answer:\r\nits body\r\n")
        sys.stderr.write("not ended")
    found = documents(written)
    messages = ["printed in parts", "Traceback:\n  a line", "of a library", "100%", "an answer:\nits body", "not ended"]
    assert [one["message"] for one in found] == messages
    assert {(one["level"], one["stage"]) for one in found} == {("info", None)}
    assert all(set(one) == {"time", "level", "stage", "message"} and one["time"].endswith("Z") for one in found)
    assert not isinstance(sys.stderr, LogLines)  # any more


def test_progress_has_figures_and_what_is_not_finite_is_null(written: io.StringIO) -> None:
    with redirect_stderr(written), log_as_asked():
        log = EventLog(Progress())
        emit = log.stage("train", key="k", attempt="a", settings={})
        emit({"progress": {"done": 40, "total": 500, "unit": "steps"}})
        emit({"metrics": {"step": 40, "values": {"loss": float("nan"), "eval_loss": 0.5}}})
        emit({"warn": "a checkpoint could not be saved"})
        write_failure(log, "train", DataError("no"))
    _, step, warned, failed = documents(written)
    assert step.pop("time") and step.pop("elapsed") >= 0
    assert step == {
        "level": "info", "stage": "train", "message": "train: 40/500 steps, loss nan, eval_loss 0.5",
        "step": 40, "of": 500, "unit": "steps", "eta": None, "loss": None, "eval_loss": 0.5,
    }  # fmt: skip
    assert (warned["level"], warned["stage"]) == ("warning", "train")
    assert (failed["level"], failed["message"]) == ("error", "! train failed")


def test_no_object_holds_a_secret(written: io.StringIO) -> None:
    add_secrets_of(f"http://me:{SECRET}@host.example/")
    error = DataError(f"the answer has {SECRET}", f"ask https://me:{SECRET}@elsewhere.example")
    error.stage = "load_data"
    with redirect_stderr(written), log_as_asked():
        sys.stderr.write(f"a library prints {SECRET}\n")
        text = f"reads https://you:{SECRET}@host.example/rows?token=another-0ne"
        EventLog(Progress()).note(text, stage="load_data")
        say_error(error)
    assert SECRET not in written.getvalue() and "another-0ne" not in written.getvalue()
    said = documents(written)[-1]
    assert (said["level"], said["stage"], said["type"]) == ("error", "load_data", "DataError")
    assert (said["message"], said["fix"]) == ("the answer has ***", "ask https://***@elsewhere.example")


@pytest.mark.parametrize("value", ["", "text"])
def test_text_stays_text(written: io.StringIO, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("TRNFLOW_LOG", value)
    with redirect_stderr(written), log_as_asked():
        print("as it is", file=sys.stderr)
    assert written.getvalue() == "as it is\n"


def test_a_wrong_value_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRNFLOW_LOG", "JSON")
    with pytest.raises(ConfigError, match="TRNFLOW_LOG is 'JSON', and can be text or json"), log_as_asked():
        pytest.fail("not reached")


def test_an_error_names_its_stage_where_it_has_one(capsys: pytest.CaptureFixture[str]) -> None:
    error = DataError("row 3 is empty\nand row 4", "fill it")
    say_error(error)
    error.stage = "load_data"
    say_error(error)
    rest = ["    and row 4", "  fix: fill it"]
    wanted = ["error: row 3 is empty", *rest, "error in load_data: row 3 is empty", *rest]
    assert capsys.readouterr().err.splitlines() == wanted
