"""A hub that does not answer: one line that names the setting, whatever the client library raises."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.helpers.hub_server import run_program

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
