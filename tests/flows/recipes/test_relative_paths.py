"""A relative path belongs to the file that wrote it, in shipped recipes and on the command line to the working directory; the
home is the nearest `.trnflow` of this user."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.helpers.command_line import InProcessShell, Shell
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.system.home import home_folder

ONE_STAGE = ("--until", "load_data", "--direct", "tracking.enabled=false")


def rows(folder: Path, word: str, names: tuple[str, ...] = ("train", "validation", "test"), count: int = 12) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        lines = "\n".join(f"{word} {name} {n},{'ab'[n % 2]}" for n in range(count))
        (folder / f"{name}.csv").write_text(f"text,label\n{lines}\n")


def checkout(folder: Path) -> Shell:
    """base/base.yaml with data beside it, and recipes/mine.yaml, which extends it and names its validation split itself."""
    rows(folder / "base/rows", "base", ("train", "test"))
    rows(folder / "recipes/own", "own", ("held-out",))
    (folder / "base/base.yaml").write_text(
        "extends: demo\n"
        "data: {source: rows, name: null, text: text, label: label, splits: {train: train, test: test}}\n"
        "tokenize: {train: {vocab_size: 120}}\nstore: {root: ../shelf}\ntracking: {uri: sqlite:///mlflow.db}\n"
    )
    (folder / "recipes/mine.yaml").write_text(
        "extends: ../base/base.yaml\ndata: {splits: {validation: own/held-out.csv}}\n"
    )
    return InProcessShell(folder)


def test_two_checkouts_read_from_two_folders_come_to_the_same_keys(tmp_path: Path) -> None:
    first, second = checkout(tmp_path / "a"), checkout(tmp_path / "b/deeper")
    second.folder /= "recipes"
    until = ("--until", "pack_chunks", "--direct", "tracking.enabled=false")
    made = first.json("run", "recipes/mine.yaml", *until)["stages"]
    again = second.json("run", "mine.yaml", *until)["stages"]
    assert [stage["action"] for stage in made + again] == ["ran"] * 8
    assert [stage["key"] for stage in made] == [stage["key"] for stage in again]
    assert made[0]["metrics"]["validation_rows"] == 12
    for shelf in (tmp_path / "a/shelf", tmp_path / "b/deeper/shelf"):
        (record,) = (shelf / "runs").glob("*.json")
        document = json.loads(record.read_text())["resolved"]
        assert (document["data"]["source"], document["store"]["root"]) == ("rows", "../shelf")
        assert document["data"]["splits"]["validation"] == "own/held-out.csv"
        assert str(tmp_path) not in json.dumps(document)


def test_a_path_on_the_command_line_is_of_the_working_directory(tmp_path: Path) -> None:
    shell = checkout(tmp_path)
    rows(tmp_path / "rows", "here", count=20)
    done = shell.json("run", "recipes/mine.yaml", *ONE_STAGE, "data={source: rows, splits: null}", "store.root=here")
    assert done["stages"][0]["metrics"]["train_rows"] == 20
    assert [path.name for path in tmp_path.glob("*/FORMAT.json")] == ["FORMAT.json"] and (tmp_path / "here").is_dir()


def test_a_shipped_recipe_reads_from_the_working_directory(tmp_path: Path) -> None:
    lines = "\n".join(f"head {n},body {n},{n % 5 + 1}" for n in range(200))
    (tmp_path / "reviews.csv").write_text(f"review_headline,review_body,star_rating\n{lines}\n")
    done = InProcessShell(tmp_path).json(
        "run", "distilbert-book-reviews", *ONE_STAGE, "model={source: null, config: {model_type: bert}}"
    )
    assert done["stages"][0]["action"] == "ran"


def test_what_is_missing_is_named_with_the_folder_it_was_looked_for_in(tmp_path: Path) -> None:
    shell = checkout(tmp_path)
    (tmp_path / "base/base.yaml").write_text("extends: demo\ndata: {source: nothing.csv, text: text, label: label}\n")
    said = shell.error("plan", "recipes/mine.yaml", code=2)
    assert f"data.source: there is no data at nothing.csv in {tmp_path / 'base'}" in said


def test_mixtures_models_and_tokenizers_lie_beside_their_file(tmp_path: Path) -> None:
    for name in ("one", "two"):
        rows(tmp_path / "recipes" / name, name)
    (tmp_path / "recipes/model").mkdir()
    (tmp_path / "recipes/model/config.json").write_text(json.dumps({"model_type": "bert"}))
    (tmp_path / "recipes/bert-base-uncased").mkdir()  # a hub's name, and a folder
    (tmp_path / "recipes/mine.yaml").write_text(
        "extends: bert-emotion\nmodel: {source: model, tokenizer: bert-base-uncased}\n"
        "data: {source: null, label: label, labels: [a, b], mix: {a: {source: one}, b: {source: ./two}}}\n"
    )
    done = InProcessShell(tmp_path).json("run", "recipes/mine.yaml", *ONE_STAGE)
    assert done["stages"][0]["metrics"]["train_rows"] == 24


def test_a_tracking_database_lies_beside_the_recipe_that_names_it(tmp_path: Path) -> None:
    done = checkout(tmp_path)("run", "recipes/mine.yaml", "--until", "load_data", "--direct")
    assert done.returncode == 0, done.stderr
    assert f"sqlite:///{tmp_path / 'base/mlflow.db'}" in done.stdout


# The home


def stood(monkeypatch: pytest.MonkeyPatch, folder: Path, user: Path) -> Path:
    monkeypatch.delenv("TRNFLOW_HOME", raising=False)
    monkeypatch.setenv("HOME", str(user))
    monkeypatch.chdir(folder)
    return home_folder()


def test_the_nearest_home_upward_is_used_below_the_users_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / "user/project/deep/deeper"
    deep.mkdir(parents=True)
    for above in (tmp_path, tmp_path / "user"):
        (above / ".trnflow").mkdir()
    assert stood(monkeypatch, deep, tmp_path / "user") == deep / ".trnflow"
    (tmp_path / "user/project/.trnflow").mkdir()
    assert stood(monkeypatch, deep, tmp_path / "user") == tmp_path / "user/project/.trnflow"
    (tmp_path / "user/project/deep/.trnflow").mkdir()
    assert stood(monkeypatch, deep, tmp_path / "user") == tmp_path / "user/project/deep/.trnflow"
    assert stood(monkeypatch, deep, tmp_path / "somebody") == tmp_path / "user/project/deep/.trnflow"
    monkeypatch.setenv("TRNFLOW_HOME", "named")
    assert home_folder() == deep / "named"


def test_a_home_that_others_may_have_made_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / "open/deep"
    (tmp_path / "open/.trnflow").mkdir(parents=True)
    deep.mkdir()
    (tmp_path / "open").chmod(0o777)
    assert stood(monkeypatch, deep, tmp_path / "user") == deep / ".trnflow"
    (tmp_path / "open").chmod(0o755)
    assert stood(monkeypatch, deep, tmp_path / "user") == tmp_path / "open/.trnflow"
    (tmp_path / "open/.trnflow").chmod(0o777)
    assert stood(monkeypatch, deep, tmp_path / "user") == deep / ".trnflow"
    with pytest.raises(ConfigError, match=r"every user of this machine may write in .*Fix: `chmod o-w "):
        stood(monkeypatch, tmp_path / "open", tmp_path / "user")
    if os.geteuid() == 0:
        (tmp_path / "open/.trnflow").chmod(0o755)
        os.chown(tmp_path / "open/.trnflow", 12345, 12345)
        assert stood(monkeypatch, deep, tmp_path / "user") == deep / ".trnflow"
        with pytest.raises(ConfigError, match="is another user's"):
            stood(monkeypatch, tmp_path / "open", tmp_path / "user")


def test_commands_below_a_home_share_it_and_the_first_says_where_it_is(tmp_path: Path) -> None:
    shell = checkout(tmp_path)
    shell.warm = False
    first = shell("run", "recipes/mine.yaml", *ONE_STAGE)
    assert first.returncode == 0
    assert first.stderr.startswith(f"made {tmp_path / '.trnflow'} for local state")
    shell.folder = tmp_path / "recipes"
    again = shell("run", "mine.yaml", *ONE_STAGE)
    assert "nothing to do" in again.stdout
    assert "made " not in again.stderr
    assert not (tmp_path / "recipes/.trnflow").exists()
