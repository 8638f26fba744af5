"""An object store that refuses, fails, stalls or hangs up: a clear StoreError, never a miss, a loss or a traceback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.ending import check_ending
from tests.acceptance.toy_runs import Machine
from tests.helpers.command_line import Shell
from tests.helpers.inline_calls import inline_calls  # noqa: F401 - a fixture
from tests.helpers.s3_proxy import proxy_of
from trnflow.tasks.errors import BlobLost, ReadOnlyStore, StoreError
from trnflow.tasks.events import Event, Reader, RunState
from trnflow.tasks.store import store
from trnflow.tasks.store.garbage.collect import collect
from trnflow.tasks.store.garbage.mark import Policy
from trnflow.tasks.store.verify import verify

PROJECT = Path(__file__).resolve().parents[2]
SHORT = json.dumps({"config_kwargs": {"read_timeout": 0.5, "connect_timeout": 0.5, "retries": {"max_attempts": 1}}})
READS, WRITES = "GET HEAD", "PUT POST DELETE"
LISTING = "list-type=2"


class Proxy:
    """troubles: see tests.helpers.s3_proxy."""

    def __init__(self, url: str, troubles: Path) -> None:
        self.url = url
        self._troubles = troubles

    def set(self, *troubles: dict[str, Any]) -> None:
        aside = self._troubles.with_suffix(".new")
        aside.write_text(json.dumps(troubles))
        aside.replace(self._troubles)


@pytest.fixture
def proxy(s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """What this process opens on S3 goes through it, with little patience."""
    import fsspec.config
    import s3fs

    troubles = tmp_path / "troubles.json"
    troubles.write_text("[]")
    with proxy_of(s3_endpoint, troubles) as url:
        monkeypatch.setitem(fsspec.config.conf, "s3", json.loads(SHORT) | {"endpoint_url": url})
        monkeypatch.setattr(s3fs.S3FileSystem, "retries", 2)
        yield Proxy(url, troubles)


@pytest.fixture
def machine(proxy: Proxy, s3_root: str, tmp_path: Path, inline_calls: None) -> Machine:  # noqa: F811
    """It ran once; its cache is empty, as another machine's."""
    Machine(s3_root, tmp_path / "first").run()
    return Machine(s3_root, tmp_path / "machine")


class Said(Reader):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def read(self, event: Event, state: RunState) -> None:
        self.texts += [event["text"]] if event["event"] == "note" else []


def plan(machine: Machine, least: int) -> dict[str, str]:
    return {name: step.action for name, step in machine.plan(least).steps.items()}


TROUBLES = {
    "403": {"status": 403, "code": "AccessDenied"},
    "500": {"status": 500, "code": "InternalError"},
    "503": {"status": 503, "code": "ServiceUnavailable"},
    "skewed clock": {"status": 403, "code": "RequestTimeTooSkewed"},
    "stalls": {"delay": 1.5},
    "hangs up": {"drop": "before"},
    "hangs up half way": {"drop": "half"},
    "no XML": {"status": 200, "code": "<"},
}


def some(names: list[str]) -> list[Any]:
    return [name if name == "403" else pytest.param(name, marks=pytest.mark.nightly) for name in names]


def test_a_store_whose_first_answers_fail_is_opened_and_a_refusal_is_an_error_at_once(
    proxy: Proxy, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(store.time, "sleep", pauses.append)
    for trouble in ("500", "503", "hangs up half way"):  # more often than the library tries
        proxy.set({"methods": "GET", "part": "FORMAT.json", "times": 6} | TROUBLES[trouble])
        machine.store().check()
        assert pauses and pauses == [*store.FORMAT_PAUSES][: len(pauses)]
        pauses.clear()
    proxy.set({"methods": "GET", "part": "FORMAT.json"} | TROUBLES["403"])
    with pytest.raises(StoreError, match="no permission for reading FORMAT"):
        machine.store().check()
    assert pauses == []


@pytest.mark.parametrize("trouble", some([*TROUBLES][:-1]))
def test_what_can_not_be_read_is_an_error_and_not_a_miss(proxy: Proxy, machine: Machine, trouble: str) -> None:
    for part in ("records/", "blobs/"):
        proxy.set({"methods": READS, "part": part} | TROUBLES[trouble])
        for attempt in (lambda: machine.run(least=2), lambda: plan(machine, 2)):
            with pytest.raises(StoreError) as caught:
                attempt()
            assert not isinstance(caught.value, BlobLost | ReadOnlyStore)
            assert part in caught.value.message
            assert caught.value.fix
            assert trouble != "skewed clock" or "clock" in caught.value.fix
    proxy.set()
    assert machine.run(least=2).actions == {"words": "hit", "sizes": "hit", "warm_up": "hit", "count": "ran"}
    assert machine.run(least=2).steps["count"].metrics == {"total": 5}
    check_ending(machine.store(), machine.actions)


@pytest.mark.parametrize("trouble", some([*TROUBLES]))
def test_what_can_not_be_listed_is_not_empty(proxy: Proxy, machine: Machine, trouble: str) -> None:
    """Else everything would be garbage, or nothing damaged."""
    before = {entry.name for entry in machine.store().backend.entries("")}
    proxy.set({"methods": "GET", "part": LISTING} | TROUBLES[trouble])
    for attempt in (
        lambda: verify(machine.store().backend),
        lambda: collect(machine.store().backend, Policy(keep_last=0, grace=0.0), yes=True),
        lambda: machine.store().backend.names("runs"),
        lambda: machine.store().records("count"),
    ):
        with pytest.raises(StoreError):
            attempt()
    proxy.set()
    assert before <= {entry.name for entry in machine.store().backend.entries("")}
    check_ending(machine.store(), machine.actions)


@pytest.mark.parametrize("trouble", some([*TROUBLES][:-2]))
@pytest.mark.parametrize(
    "part",
    ["leases/", "records/", *(pytest.param(part, marks=pytest.mark.nightly) for part in ("blobs/", "attempts/"))],
)
def test_what_can_not_be_written_fails_the_run_and_is_made_by_the_next(
    proxy: Proxy, machine: Machine, part: str, trouble: str
) -> None:
    proxy.set({"methods": WRITES, "part": part} | TROUBLES[trouble])
    with pytest.raises(StoreError) as caught:
        machine.run(least=2)
    assert isinstance(caught.value, ReadOnlyStore) is (TROUBLES[trouble].get("status") == 403)
    proxy.set()
    ran = machine.run(least=2)
    # what stalled was written all the same, after this side had given up
    assert ran.actions["count"] in (("ran", "hit") if (part, trouble) == ("records/", "stalls") else ("ran",))
    assert ran.steps["count"].metrics == {"total": 5}
    check_ending(machine.store(), lambda: machine.actions(least=2))


@pytest.mark.parametrize(
    "trouble",
    [
        {"drop": "after"},
        *(
            pytest.param(one, marks=pytest.mark.nightly)
            for one in ({"drop": "before"}, {"drop": "half"}, {"delay": 0.7})
        ),
    ],
    ids=str,
)
def test_a_hiccup_costs_nothing(proxy: Proxy, machine: Machine, trouble: dict[str, Any]) -> None:
    """Also where the server did what was asked and the answer was lost: asked again, it says that the record exists."""
    proxy.set(
        *(
            {"methods": methods, "part": part, "times": 1} | trouble
            for methods in ("GET", "PUT")
            for part in ("leases/", "records/", "blobs/")
        )
    )
    listener = Said()
    ran = machine.run(2, listener)
    assert listener.texts == []  # above all, it does not wait for itself
    assert (ran.actions["count"], ran.steps["count"].metrics) == ("ran", {"total": 5})
    assert ran.notes == []
    proxy.set()
    check_ending(machine.store(), lambda: machine.actions(least=2))


def test_a_read_only_bucket_serves_its_hits_and_refuses_the_rest(proxy: Proxy, machine: Machine) -> None:
    proxy.set({"methods": WRITES} | TROUBLES["403"])
    assert set(machine.actions().values()) == {"hit"}
    with pytest.raises(ReadOnlyStore, match="can only be read") as caught:
        machine.run(least=2)
    assert caught.value.stage == "count"
    proxy.set()
    assert machine.store().backend.names("leases") == []
    check_ending(machine.store(), machine.actions)


def test_the_command_line_says_it_in_a_line(
    proxy: Proxy, s3_root: str, trnflow: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "FORMAT_PAUSES", (0.0,))
    where = {"TRNFLOW_STORE": s3_root, "AWS_ENDPOINT_URL": proxy.url, "FSSPEC_S3": SHORT}
    run = ("run", "mine.yaml", "--until", "load_data", "--direct", "tracking.enabled=false")
    for trouble, command, says in (
        ("403", run, "no permission for reading FORMAT.json"),
        ("500", ("plan", "mine.yaml"), "Internal Server Error"),
        ("hangs up", ("verify",), "failed: "),
    ):
        proxy.set({"methods": f"{READS} {WRITES}"} | TROUBLES[trouble])
        assert says in trnflow.error(*command, code=1, **where)
    proxy.set()
    assert trnflow(*run, **where).returncode == 0
    proxy.set({"methods": WRITES} | TROUBLES["403"])
    hit = trnflow(*run, **where)
    assert hit.returncode == 0, hit.stderr
    assert "can only be read: this run is not on record" in hit.stdout
    assert "can only be read" in trnflow.error(*run, "data.limit=5", code=1, **where)
    there_is_none = {**where, "TRNFLOW_STORE": "s3://no-bucket-of-this-name/store"}
    proxy.set()
    assert "can't be created" in trnflow.error(*run, code=1, **there_is_none)
