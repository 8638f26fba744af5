"""Commands over documents of the store that are valid JSON and not what they should be: an error or a miss, no traceback."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.command_line import InProcessShell, Shell, artifacts
from tests.store.test_document_check import SOUND, changed, places
from tests.store.test_ledger import add
from trnflow.tasks.store import Store

pytestmark = pytest.mark.slow

KEY = "1" * 64
COMMANDS = (
    "runs", "status", "logs last", "lineage last", "diff last~1 last", "report last --no-open", "verify", "gc",
    "gc --yes --grace 0 --keep-last 0", "pin last --name more", "unpin more", "champions", "champions mine", "history mine",
    "health", "plan mine.yaml", "show mine.yaml", "explain mine.yaml pack_chunks", "accept mine.yaml --all",
    "run mine.yaml --until pack_chunks --direct tracking.enabled=false", "rollback mine.yaml", "get mine.yaml pack_chunks there",
    "pin mine@champion", "jobs", "jobs 0123 --cancel",
)  # fmt: skip
DEEP = b"[" * 10**6
WRONG = (b"", b"[]", b"3", b'"x"', b"null", b"{", b"\xff", DEEP, b'{"a": ' * 10**6)
VALUES: tuple[Any, ...] = (
    None, [], {}, "", "x", "a/../b", "\x00", "\ud800", -1, 10**400, 1e308, float("nan"), True, [[1]], {"a": {"b": []}},
)  # fmt: skip


@pytest.fixture(scope="module")
def house(past: Shell, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a document of every kind."""
    folder = tmp_path_factory.mktemp("damaged") / "house"
    shutil.copytree(past.folder, folder, symlinks=True)
    shell = InProcessShell(folder)
    store = Store(str(folder / ".trnflow/store"), folder / ".trnflow")
    run = shell.json("runs")["runs"][0]["run"]
    model = artifacts(shell, run)["tokenize_text"]
    champion = {
        "by": "retrain",
        "champion": model,
        "challenger": model,
        "run": run,
        "judged": [{"run": run, "model": model}],
    }
    add(store, "mine", outcome="promoted", **champion)
    add(store, "mine", outcome="kept", by="retrain", run=run, champion=model)
    shell.json("pin", run, "--name", "kept")
    lease = store.waiter(KEY, run=run, attempt="a", ttl=60.0).acquire()
    assert lease is not None
    store.write_attempt(KEY, "a", {"stage": "train", "recipe": "mine"})
    token = lease._mine.token
    beat = {"beat": 1, "at": lease._mine.since, "progress": {"step": 1, "of": 2, "unit": "steps", "eta": 3.0}}
    store.backend.replace(f"leases/{KEY}/1.{token}", json.dumps(beat).encode())
    store.backend.replace(f"partial/{KEY}/step-000000001/COMMIT", b"{}")
    for name in ("jobs/0123/order.json", "jobs/0123/runs/r", "jobs/0123/result.json"):
        store.backend.replace(name, json.dumps(SOUND[name.replace("0123", "1")]).encode())
    return folder


def documents(house: Path) -> dict[str, list[str]]:
    """{kind: names of its documents}."""
    root, found = house / ".trnflow/store", {"FORMAT.json": ["FORMAT.json"]}
    for kind in ("records", "attempts", "runs", "roots", "leases", "partial", "jobs"):
        found[kind] = sorted(str(file.relative_to(root)) for file in (root / kind).rglob("*") if file.is_file())
    return found


@contextlib.contextmanager
def damaged(house: Path, name: str, data: bytes) -> Iterator[None]:
    """A store in which a document holds other bytes; what commands then change is undone."""
    root = house / ".trnflow/store"
    aside = house / "aside"
    shutil.copytree(root, aside, copy_function=os.link, symlinks=True)
    file = root / name
    file.unlink()
    file.write_bytes(data)
    try:
        yield
    finally:
        shutil.rmtree(root)
        aside.rename(root)


def assert_no_traceback(house: Path, what: str, commands: tuple[str, ...] = COMMANDS) -> None:
    for command in commands:
        done = InProcessShell(house)(*command.split())
        said = f"{what}: {command}: {done.stdout}{done.stderr}"
        assert done.returncode in (0, 1, 2), said
        assert "unexpected" not in done.stderr and "Traceback" not in done.stderr, said
        shutil.rmtree(house / "there", ignore_errors=True)


KINDS = ("FORMAT.json", "attempts", "jobs", "leases", "partial", "records", "roots", "runs")


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_that_is_none_is_found_and_moved_away_and_ends_no_command(house: Path, kind: str) -> None:
    name = documents(house)[kind][0]  # of a ledger the first entry, which the champion's is
    for wrong in WRONG:
        with damaged(house, name, wrong):
            shell = InProcessShell(house)
            found = json.loads(shell("verify", "--json").stdout)["problems"]
            assert (name, "corrupt") in [(problem["name"], problem["what"]) for problem in found], wrong[:20]
            shell("verify", "--repair")
            assert list((house / ".trnflow/store/quarantine").rglob(f"{Path(name).name}.*"))
            left = [problem["name"] for problem in json.loads(shell("verify", "--json").stdout)["problems"]]
            assert name not in left and (kind == "roots" or not left)
    for wrong in (b"[]", DEEP):
        with damaged(house, name, wrong):
            assert_no_traceback(house, f"{name} {wrong[:20]!r}")


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_with_a_value_of_another_kind_anywhere_ends_no_command(house: Path, kind: str) -> None:
    dice = random.Random(kind)
    for _ in range(3):
        name = dice.choice(documents(house)[kind])
        document = json.loads((house / ".trnflow/store" / name).read_bytes())
        path, value = dice.choice([*places(document)] or [("new",)]), dice.choice(VALUES)
        with damaged(house, name, json.dumps(changed(document, path, value)).encode()):
            assert_no_traceback(house, f"{name} {path} {str(value)[:30]!r}")


def test_a_pin_that_is_damaged_stays_for_its_owner_to_remove(house: Path) -> None:
    with damaged(house, "roots/pins/kept.json", b"[]"):
        shell = InProcessShell(house)
        assert shell("verify", "--repair").returncode == 1
        assert "trnflow unpin kept" in shell.error("pin", "last", "--name", "kept", code=1)
        assert shell("unpin", "kept").returncode == 0 and shell.json("verify")["ok"]


def test_a_damaged_newest_entry_leaves_the_champion_of_the_one_before(house: Path) -> None:
    before = InProcessShell(house).json("champions", "mine")["champions"]
    with damaged(house, "roots/ledger/mine/2.json", b'{"n": 2}'):
        shell = InProcessShell(house)
        assert "roots/ledger/mine/2.json can't be read: it has no" in shell.error("champions", "mine", code=1)
        assert shell("verify", "--repair").returncode == 0
        assert shell.json("champions", "mine")["champions"] == before


def test_a_sound_format_of_a_later_version_is_left_alone(house: Path) -> None:
    with damaged(house, "FORMAT.json", b'{"format": 3, "hash": "sha512"}'):
        said = InProcessShell(house).error("verify", "--repair", code=2)
        assert "has format" in said and "upgrade trnflow" in said
