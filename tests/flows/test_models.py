"""One grammar: each name of a model means the same model, and the same run, in every command and setting."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.helpers.command_line import InProcessShell, opened, write_project
from tests.helpers.metadata import metadata_of
from trnflow.flows.champions.contenders import find_contender
from trnflow.flows.models import FoundModel, find_model
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.runner.warm_start import earlier_model
from trnflow.tasks.errors import BlobLost, ConfigError
from trnflow.tasks.keys.canonical_json import digest_of
from trnflow.tasks.store import Store
from trnflow.tasks.store.layout import blob_name
from trnflow.tasks.store.ledger import append_ledger
from trnflow.tasks.store.ledger.entries import NewEntry


class House(NamedTuple):
    """A project whose store has three models of the recipe `mine`; the first two were champions."""

    shell: InProcessShell
    store: Store
    runs: list[str]
    models: list[str]
    exports: list[str]


def published(store: Store, folder: Path, stage: str, kind: str, file: str, **inputs: str) -> tuple[str, str]:
    """Write an artifact of one file, with a record; return (digest, key)."""
    folder.mkdir()
    (folder / file).write_text(json.dumps(inputs))
    artifact = store.ingest(folder, kind, metadata_of(stage, of=inputs))
    shutil.rmtree(folder)
    document = {"stage": stage, "code": {}, "params": {}, "inputs": inputs, "env": {}, "accel": {}}
    key = digest_of(document).removeprefix("sha256:")
    record = {"stage": stage, "key": key, "artifact": artifact.digest, "document": document, "attempt": "a"}
    store.publish({**record, "created": f"2026-{len(store.records(stage))}"})
    return artifact.digest, key


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    folder = write_project(tmp_path_factory.mktemp("names") / "house")
    shell, store = opened(folder)
    found = House(shell, store, [], [], [])
    for number in (1, 2, 3):
        shards, key = published(store, folder / "x", "train", "checkpoint", "index.json", packed=f"rows {number}")
        model, made = published(store, folder / "x", "consolidate", "model", "config.json", shards=shards)
        export, other = published(store, folder / "x", "export_neuron", "exported", "export.json", weights=model)
        stages = [("train", key, shards), ("consolidate", made, model), ("export_neuron", other, export)]
        run = f"2026010{number}T000000Z-abc{number}"
        listed = [
            {
                "stage": stage,
                "key": key,
                "artifact": digest,
                "action": "ran",
                "metrics": {},
                "figures": {},
                "seconds": 1.0,
                "why": "",
            }
            for stage, key, digest in stages
        ]
        document = {"recipe": "mine", "outcome": "completed", "ended": "now", "seconds": 1.0, "notes": []}
        resolved = {"format": {"number": number}, "tokenize": {}}
        store.write_run(run, {**document, "run": run, "stages": listed, "resolved": resolved, "until": None})
        found.runs.append(run)
        found.models.append(model)
        found.exports.append(export)
        if number < 3:
            shaping = {"format": {"number": number}}
            entry = NewEntry(outcome="promoted", by="promote", why="better", champion=model, shaping=shaping)
            assert append_ledger(store, "mine", entry, number - 1)
    return found


NAMES: dict[str, tuple[Callable[[House], str], int]] = {
    "champion": (lambda house: "mine@champion", 1),
    "first": (lambda house: "mine@1", 0),
    "second": (lambda house: "mine@2", 1),
    "of a file": (lambda house: "mine.yaml@1", 0),
    "newest": (lambda house: "mine@newest", 2),
    "newest of a file": (lambda house: "mine.yaml@newest", 2),
    "last": (lambda house: "last", 2),
    "last but two": (lambda house: "last~2", 0),
    "run": (lambda house: house.runs[1], 1),
    "beginning of a run": (lambda house: house.runs[0][:9], 0),
    "digest": (lambda house: house.models[0], 0),
    "digits": (lambda house: house.models[2][7:17], 2),
    "beginning of a digest": (lambda house: house.models[1][:17], 1),
}


@pytest.fixture(params=NAMES)
def named(request: pytest.FixtureRequest, house: House, monkeypatch: pytest.MonkeyPatch) -> tuple[str, int]:
    monkeypatch.chdir(house.shell.folder)
    monkeypatch.delenv("TRNFLOW_HOME", raising=False)
    monkeypatch.delenv("TRNFLOW_STORE", raising=False)
    text, number = NAMES[request.param]
    return text(house), number


def test_a_name_means_one_model_in_every_command(house: House, named: tuple[str, int], tmp_path: Path) -> None:
    (text, number), shell = named, house.shell
    model, export, run = house.models[number], house.exports[number], house.runs[number]
    assert shell.json("publish", text, str(tmp_path / "published"))["artifact"] == model
    assert shell.json("get", text, "consolidate", str(tmp_path / "got"))["artifact"] == model
    assert json.loads((tmp_path / "got/config.json").read_text()) == json.loads(
        (tmp_path / "published/config.json").read_text()
    )
    assert find_model(text, want=("consolidate", "export_neuron")).artifact.digest == model
    if not text.removeprefix("sha256:").startswith(model[7:10]):  # a digest means the very artifact
        assert shell.json("get", text, "export_neuron", str(tmp_path / "export"))["artifact"] == export
        assert find_model(text, want=("export_neuron", "consolidate")).artifact.digest == export
    assert find_contender(text, settings.load("mine.yaml"), house.store).artifact.digest == model
    start = earlier_model(house.store, text, "train.warm_start_from", house.shell.folder)
    assert start is not None and start.artifact.digest == model
    assert shell.json("lineage", text)["artifact"] == model
    assert shell.json("report", text, "--no-open")["run"] == run
    assert shell.json("diff", text, "last~1")["before"]["run"] == run
    assert f"no log of the run {run}" in shell.error("logs", text, code=2)
    pinned = shell.json("pin", text, "--name", "kept")
    shell.json("unpin", "kept")
    assert pinned.get("run") == run or pinned.get("artifact") == model


def test_a_model_that_does_not_serve_is_named_beside_the_one_that_does(house: House, tmp_path: Path) -> None:
    """Where the name says the newest model. Who names a run, a digest or a number of a champion knows which one it is."""
    shell, champion = house.shell, house.models[1]
    for number, (stage, name) in enumerate((("consolidate", "mine"), ("export_neuron", "mine.yaml"))):
        found = shell("get", f"{name}@newest", stage, str(tmp_path / f"of {number}"))
        serves = f"champion 2 ({champion[:19]}) serves, named {name}@champion"
        assert found.stdout.splitlines()[1] == f"note: this is {house.models[2][:19]}, not the champion: {serves}"
    assert shell.json("publish", "mine@newest", str(tmp_path / "published"))["champion"] == champion
    for text, known in (("mine@1", None), (house.runs[0], None), ("mine@newest", champion)):
        assert shell.json("get", text, "consolidate", str(tmp_path / text))["champion"] == known
    page = shell("report", house.runs[0], "--no-open").stdout.splitlines()
    assert page[1].startswith(f"note: this run's model is {house.models[0][:19]}, not the champion: champion 2 ")
    assert len(shell("report", house.runs[1], "--no-open").stdout.splitlines()) == 1


def test_a_recipe_s_name_alone_is_its_newest_model_in_the_setting_only(house: House) -> None:
    start = earlier_model(house.store, "mine", "train.warm_start_from")
    assert start is not None and start.artifact.digest == house.models[2] and start.document is not None
    assert start.document["stage"] == "train"
    said = house.shell.error("predict", "mine", "a text", code=2)
    assert "the recipe mine has no settings here" in said and "mine@newest" in said


def test_the_settings_that_a_contender_was_trained_with(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(house.shell.folder)
    recipe = settings.load("mine.yaml")
    for text, number in {"mine@1": 1, "last": 3, "mine@newest": 3, house.models[1]: 2}.items():
        assert find_contender(text, recipe, house.store).shaping["format"] == {"number": number}


@pytest.mark.parametrize(
    ("text", "says", "setting"),
    [
        ("mine@9", "mine has no champion 9", "mine has no champion 9"),
        (
            "mine@best",
            "after RECIPE@ stands champion, newest, or the number",
            "no completed run of the recipe mine@best",
        ),
        (
            "nobody@newest",
            "no completed run of the recipe nobody made a model",
            "no completed run of the recipe nobody",
        ),
        ("nobody", "there is no recipe, run or artifact nobody", "no completed run of the recipe nobody made a model"),
        ("last~7", "there is no run last~7 that made a model", "there is no run last~7 that made a model"),
        ("2026", "2026 begins 3 runs", "2026 begins 3 runs"),
        ("0123456789abcdef", "there is no recipe, run or artifact 0123", "there is no model sha256:0123"),
    ],
)
def test_a_name_that_means_nothing_is_one_clear_error(house: House, text: str, says: str, setting: str) -> None:
    for command in (("predict", text, "a text"), ("get", text, "consolidate", "nowhere"), ("publish", text, "nowhere")):
        assert says in house.shell.error(*command, code=2)
    with pytest.raises(ConfigError, match=r"train\.warm_start_from: ") as refused:
        earlier_model(house.store, text, "train.warm_start_from")
    assert setting in refused.value.message
    assert says in house.shell.error("promote", "mine.yaml", text, code=2) or text == "last~7"


def test_a_recipe_without_champion(house: House) -> None:
    assert earlier_model(house.store, "nobody@champion", "train.warm_start_from") is None
    for command in (("predict", "nobody@champion", "a text"), ("promote", "mine.yaml", "nobody@champion")):
        assert "nobody has no champion" in house.shell.error(*command, code=2)


def test_a_run_without_model_does_not_count_as_the_last(house: House) -> None:
    run = "20260201T000000Z-rows"
    house.store.write_run(run, {"recipe": "mine", "run": run, "outcome": "completed", "stages": []})
    try:
        assert find_model("last", root=house.store.root).artifact.digest == house.models[2]
        assert f"the run {run} has no artifact of consolidate" in house.shell.error("predict", run, "text", code=2)
        assert house.shell.json("diff", "last", "last~1")["before"]["run"] == run
    finally:
        house.store.backend.remove(f"runs/{run}.json")


@pytest.fixture
def copied(house: House, tmp_path: Path) -> House:
    """The same house, which a test may change."""
    shutil.copytree(house.shell.folder, tmp_path / "house", symlinks=True)
    shell, store = opened(tmp_path / "house")
    return house._replace(shell=shell, store=store)


def test_of_a_champions_exports_the_newest_is_meant(copied: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(copied.shell.folder)
    folder, model = copied.shell.folder / "x", copied.models[0]
    newer, _ = published(copied.store, folder, "export_neuron", "exported", "export.json", weights=model, length="9")
    root, want = copied.store.root, ("export_neuron",)
    assert find_model("mine@1", root=root, want=want).artifact.digest == newer
    assert find_model("mine@2", root=root, want=want).artifact.digest == copied.exports[1]


def test_a_damaged_model_is_off_the_record_so_that_the_next_run_makes_it(copied: House) -> None:
    store = copied.store
    record = next(record for record in store.records("consolidate") if record["artifact"] == copied.models[0])
    found = FoundModel(store, store.artifact(copied.models[0]), ("consolidate", record["key"]))
    with found.folder() as folder:
        assert (folder / "config.json").is_file()
    blob = Path(store.root) / blob_name(found.artifact.files[0].digest)
    blob.unlink()
    with pytest.raises(BlobLost), found.folder():
        pass
    assert store.record("consolidate", record["key"]) is None
