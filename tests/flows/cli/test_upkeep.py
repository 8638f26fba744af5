"""The upkeep of a store, as a user meets it after three runs: `verify`, `gc`, `pin` and `accept`."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.checkouts import copy_program
from tests.helpers.command_line import DATA, InProcessShell, Shell, artifacts, write_project
from trnflow.tasks.keys.key_document import key_of

SHORT = "tokenize.max_length=16"
"""The override of the two newest runs."""


def actions(shell: Shell, *overrides: str) -> list[str]:
    """What a run of the data stages does with each of them."""
    return [stage["action"] for stage in shell.json("run", "mine.yaml", "--until", *DATA, *overrides)["stages"]]


def test_verify_finds_damage_and_repair_lets_the_next_run_make_it_anew(own_past: Shell) -> None:
    assert own_past.json("verify")["ok"]
    newest = own_past.json("runs")["runs"][0]["run"]
    digest = artifacts(own_past, newest)["tokenize_text"].removeprefix("sha256:")
    blob = own_past.folder / ".trnflow/store/blobs/sha256" / digest[:2] / digest
    blob.chmod(0o644)
    blob.write_text("{}")
    done = own_past("verify", "--json")
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert [problem["what"] for problem in document["problems"]] == ["corrupt", "unusable"]
    assert digest in own_past("verify").stdout
    assert own_past.json("verify", "--repair")["ok"]
    assert own_past.json("verify")["problems"] == []
    assert actions(own_past, SHORT) == ["hit", "hit", "ran", "hit"]


def record_of(shell: Shell, stage: str) -> Path:
    run = shell.json("runs")["runs"][0]["run"]
    stages = json.loads((shell.folder / f".trnflow/store/runs/{run}.json").read_text())["stages"]
    key = next(found["key"] for found in stages if found["stage"] == stage)
    return shell.folder / f".trnflow/store/records/{stage}/{key}.json"


def rewrite(path: Path, **fields: Any) -> None:
    path.chmod(0o644)
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_a_record_of_another_stage_s_artifact_is_a_miss_and_reported(own_past: Shell) -> None:
    record = record_of(own_past, "format_prompts")
    rewrite(record, artifact=artifacts(own_past, own_past.json("runs")["runs"][0]["run"])["load_data"])
    (problem,) = json.loads(own_past("verify", "--json").stdout)["problems"]
    assert (problem["what"], problem["name"]) == ("unusable", f"records/format_prompts/{record.name}")
    assert "is of kind rows, and format_prompts makes texts" in problem["detail"]
    plan = own_past.json("plan", "mine.yaml", SHORT)["stages"][1]
    assert plan["action"] == "run" and "is of kind rows" in plan["why"]
    again = own_past.json("run", "mine.yaml", "--until", *DATA, SHORT)
    assert [stage["action"] for stage in again["stages"]] == ["hit", "ran", "hit", "hit"]
    assert any("is of kind rows" in note for note in again["notes"])
    assert own_past.json("verify")["ok"]


@pytest.mark.parametrize("field", [{"attempt": ["a"]}, {"shards": 3}, {"adopted": "yes"}, {"schema": 2}], ids=str)
def test_a_record_of_another_shape_is_a_miss_and_reported(own_past: Shell, field: dict[str, Any]) -> None:
    record = record_of(own_past, "tokenize_text")
    rewrite(record, **field)
    (problem,) = json.loads(own_past("verify", "--json").stdout)["problems"]
    assert (problem["what"], problem["name"]) == ("corrupt", f"records/tokenize_text/{record.name}")
    assert actions(own_past, SHORT) == ["hit", "hit", "ran", "hit"]


def spoil(blob: Path) -> None:
    """As a disk does it: other bytes, of the same size, under the same times but for ctime."""
    then, data = blob.stat(), blob.read_bytes()
    blob.chmod(0o644)
    blob.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    os.utime(blob, ns=(then.st_atime_ns, then.st_mtime_ns))


def test_a_blob_that_changed_on_disk_is_hashed_by_run_before_it_is_a_hit(tmp_path: Path) -> None:
    shell = InProcessShell(write_project(tmp_path / "house"))
    made = shell.json("run", "mine.yaml", "--until", *DATA)["stages"]
    files = shell.json("show", "mine.yaml", "pack_chunks")["files"]
    own = [digest[7:] for path, _, digest in files if path.endswith(".arrow")]
    blobs = [shell.folder / ".trnflow/store/blobs/sha256" / digest[:2] / digest for digest in own]

    blobs[0].touch()  # its bytes are sound
    plan = shell.json("plan", "mine.yaml")["stages"]
    assert [stage["action"] for stage in plan[:5]] == ["hit", "hit", "hit", "maybe", "run"]
    assert plan[3]["why"].endswith("changed on disk, run will check")
    assert (plan[3]["key"], plan[3]["artifact"]) == (made[3]["key"], made[3]["artifact"])
    assert actions(shell) == ["hit"] * 4
    assert shell.json("plan", "mine.yaml")["stages"][3]["action"] == "hit", "hashed once"

    for blob in blobs[:2]:
        spoil(blob)
    assert shell.json("plan", "mine.yaml")["stages"][3]["action"] == "maybe"
    assert blobs[0].exists(), "plan reads and moves nothing"
    again = shell.json("run", "mine.yaml", "--until", *DATA)
    assert [stage["action"] for stage in again["stages"]] == ["hit", "hit", "hit", "ran"]
    assert any("was corrupt: quarantined" in note for note in again["notes"])
    assert again["stages"][3]["artifact"] == made[3]["artifact"]
    for blob in blobs:
        said = subprocess.run(["sha256sum", str(blob)], capture_output=True, text=True, check=True).stdout
        assert said.split()[0] == blob.name
    assert actions(shell) == ["hit"] * 4


def test_gc_says_what_it_would_do_then_does_it_and_the_last_run_still_hits(own_past: Shell) -> None:
    store = own_past.folder / ".trnflow/store"
    before = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
    policy = ("--keep-last", "1", "--grace", "0")
    assert own_past.json("gc")["bytes"] == 0, "all is younger than the grace period"
    promised = own_past.json("gc", *policy)
    assert promised["dry_run"]
    assert promised["swept"]["runs"]["files"] == 1, "the two newest came to the same and count once"
    assert promised["swept"]["records"]["files"] == 2 + 3, "two stages, and a shard of each split"
    assert sum(path.stat().st_size for path in store.rglob("*") if path.is_file()) == before
    assert "--yes" in own_past("gc", *policy).stdout
    assert own_past.json("gc", *policy, "--yes")["bytes"] == promised["bytes"]
    assert own_past.json("gc", *policy, "--yes")["purged_bytes"] == promised["bytes"]
    after = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
    assert before - after == promised["bytes"]
    assert own_past.json("verify")["ok"]
    assert actions(own_past, SHORT) == ["hit"] * 4
    plan = own_past.json("plan", "mine.yaml")
    assert [stage["action"] for stage in plan["stages"][:3]] == ["hit", "hit", "run"]


def test_a_pin_holds_against_gc_until_unpin(own_past: Shell) -> None:
    everything = ("gc", "--keep-last", "0", "--grace", "0")
    first = own_past.json("runs")["runs"][2]["run"]
    tokens = artifacts(own_past, first)["tokenize_text"]
    assert own_past.json("pin", "last", "--name", "best")["name"] == "best"
    assert own_past.json("pin", tokens[7:20])["artifact"] == tokens
    assert own_past.json("pin", "last", "--name", "best")["name"] == "best", "twice is once"
    assert "best" in own_past.error("pin", first, "--name", "best", code=2)
    assert own_past.json(*everything)["swept"]["records"]["files"] == 1
    own_past.json("unpin", tokens[7:19])
    assert own_past.json(*everything)["swept"]["records"]["files"] == 2 + 3
    own_past.json("unpin", "best")
    assert own_past.json(*everything)["swept"]["records"]["files"] == 6 + 6
    assert "there is no pin best" in own_past.error("unpin", "best", code=2)


def test_a_damaged_root_stops_gc_with_exit_code_1(own_past: Shell) -> None:
    pins = own_past.folder / ".trnflow/store/roots/pins"
    pins.mkdir(parents=True)
    (pins / "torn.json").write_text("{")
    assert "roots/pins/torn.json" in own_past.error("gc", "--yes", code=1)


class Refactored:
    """The program in a folder of its own, so that a stage's code can be changed."""

    def __init__(self, shell: Shell, folder: Path) -> None:
        copy_program(folder)
        shell.environ["PYTHONPATH"] = str(folder)
        self.stage = folder / "tasks/tokenize_text.py"


def test_accept_lets_a_past_result_stand_for_refactored_code(own_past: Shell, tmp_path: Path) -> None:
    own_past = Shell(own_past.folder)
    code = Refactored(own_past, tmp_path / "code")
    assert own_past.json("accept", "mine.yaml", "tokenize_text")["accepted"] is False
    code.stage.write_text(code.stage.read_text() + "\n\nREFACTORED = True\n")
    plan = own_past.json("plan", "mine.yaml")["stages"]
    assert (plan[2]["action"], plan[2]["why"]) == ("run", "code of trnflow.tasks.tokenize_text changed")
    done = own_past.json("accept", "mine.yaml", "tokenize_text")
    assert done["accepted"]
    assert [(change["part"], change["name"]) for change in done["changes"]] == [("code", "trnflow.tasks.tokenize_text")]
    plan = own_past.json("plan", "mine.yaml")["stages"]
    assert [stage["action"] for stage in plan[:4]] == ["hit"] * 4
    assert plan[2]["why"].startswith("adopted")
    record = json.loads((own_past.folder / f".trnflow/store/records/tokenize_text/{plan[2]['key']}.json").read_text())
    assert record["adopted"]["from"] == done["from"]
    assert record["artifact"] == done["artifact"]
    assert "adopted from" in own_past("lineage", done["artifact"]).stdout
    assert own_past.json("show", "mine.yaml", "tokenize_text")["figures"] is not None
    assert own_past.json("verify")["ok"]


def rewritten(shell: Shell, stage: str, **changed: Any) -> dict[str, Any]:
    """Put the record of a stage under the key of another key document, as if an earlier release had made it."""
    (file,) = (shell.folder / ".trnflow/store/records" / stage).iterdir()
    record = json.loads(file.read_text())
    record["document"] |= changed
    record["key"] = key_of(record["document"])
    attempts = shell.folder / ".trnflow/store/attempts"
    (attempts / file.stem).rename(attempts / record["key"])
    file.unlink()
    file.with_name(f"{record['key']}.json").write_text(json.dumps(record))
    return record


def test_accept_adopts_what_a_release_with_other_module_names_made(own_past: Shell) -> None:
    old_code = {
        "trnflow.tasks": "schema:1",
        "trnflow.tasks.load_data": f"sha256:{'0' * 64}",
        "tasks.text.sources": f"sha256:{'1' * 64}",
    }
    old = rewritten(own_past, "load_data", code=old_code)
    assert own_past.json("plan", "mine.yaml")["stages"][0]["action"] == "run"
    done = own_past.json("accept", "mine.yaml", "load_data")
    assert (done["accepted"], done["from"], done["artifact"]) == (True, old["key"], old["artifact"])
    assert [stage["action"] for stage in own_past.json("plan", "mine.yaml")["stages"][:4]] == ["hit"] * 4
    attempts = own_past.folder / ".trnflow/store/attempts"
    (once,), (adopted,) = (
        [*(attempts / key).glob(f"{name}*")] for key, name in ((old["key"], ""), (done["key"], "accept"))
    )
    took = [json.loads(file.read_text()) for file in (once, adopted)]
    for name in ("seconds", "bytes", "figures"):  # by which plans tell what the stage takes
        assert took[0][name] == took[1][name], name
    assert own_past.json("verify")["ok"] and len(own_past.json("runs")["runs"]) == 3


@pytest.mark.parametrize(("length", "accepted"), [(16, True), (17, False)])
def test_accept_knows_a_setting_that_moved_to_another_section(own_past: Shell, length: int, accepted: bool) -> None:
    (file, other) = (own_past.folder / ".trnflow/store/records/tokenize_text").iterdir()
    if json.loads(file.read_text())["document"]["params"]["max_length"] != 16:
        file, other = other, file
    other.unlink()
    params = json.loads(file.read_text())["document"]["params"]
    del params["max_length"]
    rewritten(own_past, "tokenize_text", params=params | {"limits": {"max_length": length}})
    if accepted:
        assert own_past.json("accept", "mine.yaml", "tokenize_text", SHORT)["accepted"]
    else:
        said = own_past.error("accept", "mine.yaml", "tokenize_text", SHORT, code=2)
        assert "limits.max_length" in said


def test_accept_refuses_what_is_no_refactor(own_past: Shell) -> None:
    said = own_past.error("accept", "mine.yaml", "tokenize_text", "tokenize.max_length=32", code=2)
    assert "params.max_length" in said
    said = own_past.error("accept", "mine.yaml", "train", "tokenize.max_length=32", code=2)
    assert "not known yet" in said
    rows = own_past.folder / "rows/train.jsonl"
    rows.write_text(rows.read_text().replace("pos", "neg", 1))
    said = own_past.error("accept", "mine.yaml", "load_data", code=2)
    assert "no past result of load_data can be accepted" in said and "source" in said
