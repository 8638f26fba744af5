"""A hub that does not answer: one line that names the setting, whatever the client library raises."""

from __future__ import annotations

import importlib
import socket
from pathlib import Path

import pytest
from huggingface_hub.errors import HfHubHTTPError

from tests.helpers.hub_server import run_program
from trnflow.tasks.sources.hub_errors import asked

PROGRAM = """
import json, sys, time
from pathlib import Path
from trnflow.tasks.errors import TrnflowError
from trnflow.tasks.load_data import DataConfig, data_source
from trnflow.tasks.sources.model_source import ModelConfig, model_folder, model_source
from trnflow.tasks.sources.resolver import Resolver
from tests.training.toys import scratch
home, answers = Path(sys.argv[1]), []
time.sleep = lambda seconds: None  # between two tries of the client
weights = scratch()
weights.location["model"] = {"repo": "me/set", "commit": "a" * 40}
for ask in (
    lambda: data_source(DataConfig(source="me/set"), Resolver(home)),
    lambda: model_source(ModelConfig(source="me/set"), Resolver(home)),
    lambda: model_folder(weights),
):
    try:
        answers.append(str(ask()))
    except TrnflowError as error:
        answers.append(error.to_json())
print(json.dumps(answers))
"""


def test_a_hub_that_does_not_answer(tmp_path: Path) -> None:
    with socket.socket() as nobody:  # bound, never listening: refused at once
        nobody.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        data, model, weights = run_program(PROGRAM, endpoint, tmp_path / "hf", str(tmp_path))
    assert (data["type"], model["type"], weights["type"]) == ("DataError", "ModelError", "ModelError")
    for found, section in ((data, "data"), (model, "model"), (weights, "model")):
        assert found["message"].startswith(
            f"{section}.source: me/set is no file or folder here, and the hub could not be"
        )
        assert f"{section}.source" in found["fix"]


@pytest.mark.parametrize(("kind", "tries"), [("ReadTimeout", 3), ("ConnectTimeout", 3), ("ConnectError", 1)])
def test_a_hub_that_is_slow_is_asked_again_and_one_that_refuses_is_not(kind: str, tries: int) -> None:
    library = importlib.import_module(HfHubHTTPError.__mro__[1].__module__)  # httpx, or what took its place
    error, asked_for = getattr(library, kind)("no answer"), list[float]()

    def ask(seconds: float, fails: int) -> int:
        asked_for.append(seconds)
        if len(asked_for) <= fails:
            raise RuntimeError("the client's own") from error
        return len(asked_for)

    with pytest.raises(RuntimeError):
        asked(lambda seconds: ask(seconds, fails=10))
    assert len(asked_for) == tries
    asked_for.clear()
    if tries > 1:
        assert asked(lambda seconds: ask(seconds, fails=tries - 1)) == tries and min(asked_for) > 0
