"""Commands that write to a place of the user's replace no link, pipe or device, and leave nothing half-written."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.flows.champions.test_publish import model, sent
from tests.helpers.command_line import DATA, Shell
from tests.helpers.inline_calls import inline_calls  # noqa: F401 - a fixture
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.store import Store


def kinds(folder: Path) -> dict[str, Any]:
    return {path.name: (stat.S_IFMT(path.lstat().st_mode), path.lstat().st_ino) for path in folder.iterdir()}


@pytest.mark.usefixtures("inline_calls")
def test_get_fills_a_folder_and_the_target_of_a_link_and_leaves_what_is_no_folder(trnflow: Shell) -> None:
    place = trnflow.folder
    assert trnflow("run", "mine.yaml", "--until", "load_data", *DATA[1:]).returncode == 0
    (place / "empty").mkdir(mode=0o700)
    (place / "to empty").symlink_to("empty")
    (place / "to nothing").symlink_to("made")
    (place / "file").write_text("mine")
    (place / "to file").symlink_to("file")
    os.mkfifo(place / "pipe")
    before = kinds(place)
    for dest, files in (("to empty", "empty"), ("to nothing", "made"), ("new", "new"), ("new/deeper", None)):
        done = trnflow("get", "mine.yaml", "load_data", dest, "tracking.enabled=false")
        if files:
            assert done.returncode == 0, done.stderr
            assert {"train.parquet", "test.parquet"} <= {path.name for path in (place / files).iterdir()}
            assert not [path for path in (place / files).iterdir() if path.name.startswith(".")]
    for dest in ("file", "to file", "pipe", "to empty", "new"):
        assert "exists and is not an empty folder" in trnflow.error(
            "get", "mine.yaml", "load_data", dest, "tracking.enabled=false", code=2
        )
    after = kinds(place)
    assert {name: after[name] for name in before} == before and {*after} - {*before} == {"made", "new"}
    assert stat.S_IMODE((place / "empty").stat().st_mode) == 0o700 and (place / "file").read_text() == "mine"


@pytest.mark.usefixtures("inline_calls")
def test_get_of_what_is_corrupt_leaves_nothing_and_the_next_run_makes_it_anew(trnflow: Shell) -> None:
    run = ("run", "mine.yaml", "--until", "load_data", *DATA[1:])
    (made,) = trnflow.json(*run)["stages"]
    before = {*trnflow.folder.iterdir()}
    blob = max(
        (trnflow.folder / ".trnflow/store/blobs").rglob("*"), key=lambda path: path.is_file() and path.stat().st_size
    )
    blob.chmod(0o644)
    blob.write_bytes(blob.read_bytes()[::-1])
    assert "corrupt" in trnflow.error("get", "mine.yaml", "load_data", "new", "tracking.enabled=false", code=1)
    assert {*trnflow.folder.iterdir()} == before
    (again,) = trnflow.json(*run)["stages"]
    assert (again["action"], again["artifact"]) == ("ran", made["artifact"])


def test_publish_replaces_no_link(store: Store, tmp_path: Path) -> None:
    artifact, place = model(store, tmp_path / "made"), tmp_path / "places"
    place.mkdir()
    (place / "to nothing").symlink_to("new")
    sent(store, artifact, str(place / "to nothing"))
    assert (place / "to nothing").is_symlink() and (place / "new/config.json").is_file()
    # a card that another evaluation made is written anew, where it lies
    (place / "new/README.md").rename(place / "card.md")
    (place / "card.md").write_text("older")
    (place / "new/README.md").symlink_to("../card.md")
    sent(store, artifact, str(place / "new"))
    assert (place / "new/README.md").is_symlink() and "# A model" in (place / "card.md").read_text()
    (place / "new/README.md").unlink()
    os.mkfifo(place / "new/README.md")
    with pytest.raises(ConfigError, match=r"holds README.md, which is no plain file"):
        sent(store, artifact, str(place / "new"))
    # nor does an unfinished copy lead elsewhere
    (place / "theirs").mkdir()
    (place / "theirs/kept").write_text("mine")
    (place / ".x.partial").symlink_to("theirs")
    with pytest.raises(ConfigError, match="is in the way"):
        sent(store, artifact, str(place / "x"))
    assert (place / "theirs/kept").read_text() == "mine"


def test_new_takes_a_link_to_nothing_for_a_file_that_is_there(trnflow: Shell) -> None:
    (trnflow.folder / "prefect.yaml").symlink_to("elsewhere.yaml")
    (trnflow.folder / "formats.py").symlink_to("elsewhere.py")
    new = ("new", "rows", "model.source=base", "data.label=label")
    assert "prefect.yaml exists" in trnflow.error(*new, "--deploy", "0 3 * * *", code=2)
    assert "formats.py exists" in trnflow.error(*new, "--code", code=2)
    (trnflow.folder / "rows.yaml").symlink_to("elsewhere.yaml")
    assert "rows.yaml exists" in trnflow.error(*new, code=2)
    assert not [*trnflow.folder.glob("elsewhere*")] and not [*trnflow.folder.glob("*unfinished*")]
