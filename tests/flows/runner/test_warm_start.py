"""A model of the store that a setting names: what is refused. What it does, tests/test_pipeline.py shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.command_line import DATA, InProcessShell, Shell, artifacts, write_project


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    found = InProcessShell(write_project(tmp_path_factory.mktemp("earlier") / "house"))
    found.json("run", "mine.yaml", "--until", *DATA)
    return found


def refused(shell: Shell, name: str) -> str:
    done = shell("plan", "mine.yaml", f"train.warm_start_from={name}")
    assert done.returncode and not done.stdout
    return done.stderr


def test_what_is_no_model_is_refused(shell: Shell) -> None:
    assert "no completed run of the recipe mine made a model in this store" in refused(shell, "mine")
    assert "no completed run of the recipe nobody" in refused(shell, "nobody")
    run = next(Path(shell.folder / ".trnflow/store/runs").glob("*.json")).stem
    packed = artifacts(shell, run)["pack_chunks"]
    assert f"{packed[:19]} is of kind packed, no model" in refused(shell, packed)
    assert "there is no model sha256:0123456789ab" in refused(shell, "0123456789ab")
    assert "train.warm_start_from" in refused(shell, "sha256:" + "0" * 64)


TINY = (
    *("--direct", "tracking.enabled=false", "train.engine=native", "train.devices=1", "train.dtype=float32"),
    *("train.max_steps=2", "train.global_batch=8", "model.config.num_hidden_layers=1", "model.config.hidden_size=32"),
    *("model.config.intermediate_size=64", "model.tokenizer=tokens/tokenizer", "tokenize.train=null"),
    *("--until", "train"),
)


def test_a_recipe_that_trains_on_from_itself_comes_to_rest_until_something_changes(tmp_path: Path) -> None:
    """A chain of three models. The newest is trained on only where something changed since, or its digest is given."""
    shell = InProcessShell(write_project(tmp_path / "house"))
    shell.json("run", "mine.yaml", "--until", "tokenize_text", *DATA[1:])
    shell.json("get", "mine.yaml", "tokenize_text", "tokens")

    def run(*overrides: str) -> tuple[set[str], dict[str, str], dict[str, object]]:
        said = shell.json("run", "mine.yaml", *TINY, *overrides)
        made = {stage["stage"]: stage for stage in said["stages"]}
        record = f".trnflow/store/records/train/{made['train']['key']}.json"
        document = json.loads((shell.folder / record).read_text())["document"]
        return {stage["action"] for stage in said["stages"]}, made["train"], {**document["inputs"], **said}

    _, first, began = run()
    assert "warm_start" not in began

    own = "train.warm_start_from=mine"
    _, second, began = run(own)
    assert began["warm_start"] == first["artifact"] != second["artifact"]
    for again in range(2):
        plan = shell.json("plan", "mine.yaml", *TINY[1:-2], own)
        assert {stage["action"] for stage in plan["stages"][:6]} == {"hit"}, plan
        assert "nothing changed since" in " ".join(plan["notes"])
        actions, found, began = run(own)
        assert (actions, found["artifact"]) == ({"hit"}, second["artifact"]), again
        assert began["start"] == {"artifact": first["artifact"]}, "the run's document holds it, so gc keeps it"

    # what a digest names is never replaced
    plan = shell.json("explain", "mine.yaml", "train", *TINY[1:-2], f"train.warm_start_from={second['artifact']}")
    assert plan["document"]["inputs"]["warm_start"] == second["artifact"]

    rows = shell.folder / "rows/train.jsonl"
    rows.write_text(rows.read_text().replace("is bad", "was bad"))
    assert shell.json("plan", "mine.yaml", *TINY[1:-2], own)["stages"][0]["action"] == "run"
    _, third, began = run(own)
    assert began["warm_start"] == second["artifact"] != third["artifact"]
    actions, found, began = run(own)
    assert (actions, found["artifact"]) == ({"hit"}, third["artifact"])
    assert began["warm_start"] == second["artifact"]

    # back to a training that began without a start: that one is trained on
    rows.write_text(rows.read_text().replace("was bad", "is bad"))
    actions, found, _ = run()
    assert (actions, found["artifact"]) == ({"hit"}, first["artifact"])
    actions, found, _ = run(own)
    assert (actions, found["artifact"]) == ({"hit"}, second["artifact"])

    shell.json("gc", "--keep-last", "1", "--keep-days", "0", "--grace", "0", "--yes")
    assert run(own)[0] == {"hit"}, "the model it started from is kept as long as a run that did so"
