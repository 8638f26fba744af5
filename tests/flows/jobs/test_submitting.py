"""Which job of a platform a run joins, and which it ends when its own can't be submitted."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trnflow.flows.jobs.elsewhere import Elsewhere, elsewhere_of
from trnflow.flows.jobs.listing import stop_file
from trnflow.flows.jobs.order import JobUri, carried_for, job_name, order_file, parse_uri, read_order, result_file
from trnflow.flows.jobs.submitted import submissions_of, write_submission
from trnflow.flows.jobs.work import other_libraries
from trnflow.flows.recipes.recipe import Recipe
from trnflow.flows.recipes.sections import LaunchConfig
from trnflow.flows.runner.context import RunContext
from trnflow.tasks.errors import ConfigError, MachineError, StoreError
from trnflow.tasks.events import EventLog
from trnflow.tasks.keys.hash_cache import sha256_bytes
from trnflow.tasks.store import Store


class Platform:
    """One that has a job, and takes another."""

    kind, python = "slurm", "python3"

    def __init__(self, lives: str | None = None, refuses: Exception | None = None) -> None:
        self.lives, self.refuses = lives, refuses
        self.ended: list[str] = []

    def find(self, name: str) -> str | None:
        return self.lives

    def submit(self, name: str, command: Any) -> str:
        if self.refuses is not None:
            raise self.refuses
        return "new"

    def end(self, ticket: str) -> None:
        self.ended.append(ticket)


def submitted(platform: Platform, store: Store, uri: JobUri) -> str:
    elsewhere = Elsewhere(("train",), cast(Recipe, SimpleNamespace(launch=LaunchConfig())))
    elsewhere._platform = cast(Any, platform)
    context = cast(RunContext, SimpleNamespace(store=store, log=EventLog()))
    return elsewhere._submitted(context, uri)["ticket"]


def ends(store: Store, uri: JobUri, outcome: str) -> None:
    store.backend.replace(f"jobs/{uri.id}/order.json", b"{}")
    document = {
        "run": "there",
        "outcome": outcome,
        "stages": [],
        "notes": [],
        "ended": "2026-01-01T00:00:00Z",
        "error": None,
    }
    store.backend.replace(result_file(uri.id), json.dumps(document).encode())


def test_a_job_that_is_over_and_still_at_its_platform_is_not_joined(store: Store, uri: JobUri) -> None:
    assert submitted(Platform(lives="old"), store, uri) == "old"
    ends(store, uri, "stopped")  # its platform starts it again
    assert submitted(Platform(lives="old"), store, uri) == "old"
    store.backend.create(stop_file(uri.id, "there"), b"")
    assert submitted(Platform(lives="old"), store, uri) == "new"
    ends(store, uri, "failed")
    assert submitted(Platform(lives="old"), store, uri) == "new"


def test_what_is_refused_ends_nobodys_job_and_what_may_have_been_taken_ends_its_own(
    store: Store, uri: JobUri, monkeypatch: pytest.MonkeyPatch
) -> None:
    def after(error: Exception, lives: str | None) -> list[str]:
        platform, answers = Platform(refuses=error), iter([None, lives])
        monkeypatch.setattr(platform, "find", lambda name: next(answers))
        with pytest.raises(type(error)):
            submitted(platform, store, uri)
        return platform.ended

    assert after(ConfigError("your quota is 0"), "another's") == []
    assert after(MachineError("it did not answer in time"), "taken") == ["taken"]
    write_submission(store, uri.id, "slurm", "another's", ())
    assert after(MachineError("it did not answer in time"), "another's") == []
    platform = Platform()
    monkeypatch.setattr(
        "trnflow.flows.jobs.elsewhere.write_submission",
        lambda *_: (_ for _ in ()).throw(StoreError("the store is gone")),
    )
    with pytest.raises(StoreError):
        submitted(platform, store, uri)
    assert platform.ended == ["new"], "though the platform does not list it yet"


def test_the_same_order_in_two_stores_has_two_names() -> None:
    names = {job_name(root, "0123456789ab") for root in ("s3://b/alice", "s3://b/bob", "/shared/store")}
    assert len(names) == 3 and all(name.startswith("0123456789ab") and name.isalnum() for name in names)
    assert {len(name) for name in names} == {20}
    assert job_name("s3://b/bob/", "0123456789ab") in names


def test_a_job_that_lives_is_joined_by_its_own_submission_and_a_new_one_is_behind_all_others(
    store: Store, uri: JobUri
) -> None:
    for number in range(11):
        write_submission(store, uri.id, "slurm", "old" if number in (2, 10) else str(number), [str(number)])
    assert [each["earlier"] for each in submissions_of(store, uri.id)] == [[str(number)] for number in range(11)]
    elsewhere = Elsewhere(("train",), cast(Recipe, SimpleNamespace(launch=LaunchConfig())))
    elsewhere._platform = cast(Any, Platform(lives="old"))
    context = cast(RunContext, SimpleNamespace(store=store, log=EventLog()))
    assert elsewhere._submitted(context, uri)["earlier"] == ["10"]
    # the oldest went into gc's trash, and no number serves twice
    store.backend.remove(f"jobs/{uri.id}/submitted/0.json")
    write_submission(store, uri.id, "slurm", "new", ())
    assert [each["ticket"] for each in submissions_of(store, uri.id)][-2:] == ["old", "new"]


def test_a_job_that_is_submitted_again_is_without_its_old_result_and_knows_its_old_runs(
    store: Store, uri: JobUri
) -> None:
    ends(store, uri, "failed")
    store.backend.create(f"jobs/{uri.id}/runs/there", b"{}")
    commands: list[Any] = []
    platform = Platform()
    platform.submit = lambda name, command: commands.append([name, *command]) or "new"  # type: ignore[method-assign]
    assert submitted(platform, store, uri) == "new"
    assert store.backend.size(result_file(uri.id)) is None
    assert submissions_of(store, uri.id)[-1]["earlier"] == ["there"]
    assert commands == [[uri.name, "python3", "-P", "-m", "trnflow", "job", str(uri)]]


def test_the_interpreter_that_a_recipe_names_runs_the_job(store: Store, uri: JobUri) -> None:
    commands: list[Any] = []
    launch = LaunchConfig.model_construct(python="/opt/python")
    elsewhere = Elsewhere(("train",), cast(Recipe, SimpleNamespace(launch=launch)))
    platform = Platform()
    platform.submit = lambda name, command: commands.append(command) or "new"  # type: ignore[method-assign]
    elsewhere._platform = cast(Any, platform)
    elsewhere._submitted(cast(RunContext, SimpleNamespace(store=store, log=EventLog())), uri)
    assert commands[0][0] == "/opt/python"


def test_a_completed_job_is_a_hit_unless_a_stage_is_forced_or_its_result_was_lost(
    store: Store, uri: JobUri, tmp_path: Path
) -> None:
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards/a").write_text("a")
    artifact = store.ingest(tmp_path / "shards", "checkpoint", {})
    elsewhere = Elsewhere(("train",), cast(Recipe, SimpleNamespace(launch=LaunchConfig())))

    def is_hit(outcome: str = "completed", lost: tuple[str, ...] = (), force: tuple[str, ...] = ()) -> bool:
        stage = {"stage": "train", "action": "ran", "why": "", "key": "k", "artifact": artifact.digest, "seconds": 1.0}
        ends(store, uri, outcome)
        document = json.loads(store.backend.read(result_file(uri.id))) | {"stages": [stage]}
        store.backend.replace(result_file(uri.id), json.dumps(document).encode())
        context = cast(RunContext, SimpleNamespace(store=store, lost={*lost}, force=frozenset(force)))
        return elsewhere._result_of(context, uri) is not None

    assert is_hit() and is_hit(force=("load_data",))
    assert not is_hit("stopped") and not is_hit("failed") and not is_hit(force=("train",))
    assert not is_hit(lost=(artifact.files[0].digest,)) and not is_hit(lost=(artifact.digest,))
    store.backend.remove(f"blobs/sha256/{artifact.digest[7:9]}/{artifact.digest[7:]}")
    assert not is_hit()


STAGES = ("load_data", "pack_chunks", "precompile", "train", "consolidate", "evaluate_model")


def row_of(*named: str) -> tuple[str, ...]:
    recipe = cast(Recipe, SimpleNamespace(launch=LaunchConfig.model_construct(stages=[*named], kind="slurm")))
    return elsewhere_of(recipe, STAGES, (*STAGES, "export_neuron"), STAGES[:2]).stages


def test_the_stages_of_a_job_are_an_unbroken_row_behind_the_data_stages() -> None:
    assert row_of() == STAGES[2:]
    assert row_of("train", "precompile") == ("precompile", "train")
    # a stage that this recipe has not
    assert row_of("consolidate", "export_neuron", "evaluate_model") == ("consolidate", "evaluate_model")
    for named, said in {
        ("pack_chunks", "train"): "pack_chunks is a data stage",
        ("precompile", "evaluate_model"): "train lies between them and is missing",
        ("precompile", "consolidate"): "train lies between them and is missing",
        ("export_neuron",): "none of them is a data stage",
    }.items():
        with pytest.raises(ConfigError, match=said):
            row_of(*named)


def test_an_address_with_credentials_is_neither_shown_nor_sent(store: Store) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_uri("s3://user:hunter2@bucket/store#12")
    assert "is no job" in caught.value.message and "hunter2" not in caught.value.message
    secret = cast(RunContext, SimpleNamespace(store=SimpleNamespace(root="s3://user:hunter2@bucket/store")))
    with pytest.raises(ConfigError, match="the store's address holds credentials"):
        carried_for(secret)


def test_a_note_names_the_libraries_that_differ_and_no_others() -> None:
    import sys
    from importlib.metadata import version

    python = "{}.{}".format(*sys.version_info[:2])
    assert other_libraries({"python": python, "pytest": version("pytest")}) == []
    assert other_libraries({"python": python, "pytest": "1.0", "nowhere-to-be-had": "2"}) == [
        "libraries differ from those of the order: nowhere-to-be-had 2 there, none here, "
        f"pytest 1.0 there, {version('pytest')} here"
    ]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, ""),
        ({"schema": 2}, "is of the schema 2, and this trnflow reads 1"),
        ({"given": 3}, "the order is not of its shape: given"),
        ({"libraries": {"torch": 2}}, "the order is not of its shape: libraries"),
    ],
)
def test_an_order_of_another_schema_or_shape_is_refused(fields: dict[str, Any], said: str, store: Store) -> None:
    digest = {"artifact": f"sha256:{'1' * 64}"}
    order = {"schema": 1, "name": "x", "recipe": digest, "code": digest, "until": "train", "given": [], "force": []}
    text = json.dumps({**order, "libraries": {}, "environment": [], **fields}).encode()
    uri = JobUri(store.root, sha256_bytes(text).removeprefix("sha256:"))
    store.backend.create(order_file(uri.id), text)
    if not said:
        assert read_order(store, uri)["until"] == "train"
        return
    with pytest.raises(ConfigError, match=said):
        read_order(store, uri)
