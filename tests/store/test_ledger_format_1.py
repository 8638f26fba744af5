"""A store of format 1: what it kept are a ledger's first entries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.store.test_collect import collected, wait_a_tick
from tests.store.test_ledger import add, crown, of_format_1, there
from trnflow.tasks.errors import StoreError
from trnflow.tasks.store import Store
from trnflow.tasks.store.ledger import read_ledger, recipes_of
from trnflow.tasks.store.ledger.entries import LEDGER
from trnflow.tasks.store.ledger.format_1 import import_entries
from trnflow.tasks.store.verify import verify

EXPECTED = [("failed", None), ("kept", None), ("promoted", 2), ("promoted", 1), ("frozen", 1)]


def test_a_store_of_format_1_is_read_as_it_is(store: Store, tmp_path: Path) -> None:
    models = of_format_1(store, tmp_path)
    before = sorted(store.backend.names(""))
    ledger = read_ledger(store, "tiny")
    assert [(entry["outcome"], entry["number"]) for entry in ledger.entries()] == EXPECTED
    assert ledger.champion is not None and ledger.champion["champion"] == models[2].digest
    assert ledger.stands["series"] == f"2026-01-02T00:00:00Z {models[1].digest[7:19]}"
    assert ledger.judged is not None and ledger.judged["run"] == "r3"
    assert ledger.stands["judged"] == [{"run": f"r{n}", "model": models[n].digest} for n in (3, 2)]
    assert ledger.stands["ended"] == {"outcome": "failed", "created": "2026-01-06T00:00:00Z", "data": "d2"}
    assert (ledger.stands["settled"], ledger.stands["failures"]) == ("d1", 2)
    assert recipes_of(store) == ["tiny"]
    wait_a_tick(store)
    collected(store)
    assert there(store, *models) == [False, True, True, True]  # no root leads to the first
    assert verify(store.backend).ok and store.is_made()
    assert set(store.backend.names("roots")) <= {*before}
    store.backend.replace("roots/champions/tiny/3.json", b"{")
    for act in (collected, lambda store: read_ledger(store, "tiny")):
        with pytest.raises(StoreError, match=r"champions/tiny/3\.json can't be read"):
            act(store)


def test_the_first_entry_brings_the_old_ones_with_it_and_shuts_older_programs_out(store: Store, tmp_path: Path) -> None:
    models = of_format_1(store, tmp_path)
    old = read_ledger(store, "tiny").entries()
    add(store, outcome="failed", by="retrain", data="d2")
    ledger = read_ledger(store, "tiny")
    assert ledger.entries()[1:] == old and all(entry["imported"] for entry in old)
    assert ledger.stands["failures"] == 3 and ledger.stands["settled"] == "d1"
    assert json.loads(store.backend.read("FORMAT.json"))["format"] == 2
    for name in store.backend.names("roots"):
        if not name.startswith(LEDGER):
            store.backend.remove(name)
    assert read_ledger(store, "tiny").entries() == ledger.entries(), "the files of format 1 are not needed any more"
    wait_a_tick(store)
    collected(store)
    assert there(store, *models[1:]) == [True] * 3
    assert crown(store, models[3])["number"] == 3


def test_the_first_entry_makes_the_store_where_there_is_none(root: str, tmp_path: Path) -> None:
    store = Store(root, tmp_path / "home")
    assert add(store, outcome="failed", by="retrain", data=None)["n"] == 1
    store.check()
    assert json.loads(store.backend.read("FORMAT.json"))["format"] == 2


def test_champions_follow_each_other_by_their_numbers_whatever_clocks_said() -> None:
    """The second was made on a machine whose clock was two days behind; rows were frozen in between."""

    def champion(letter: str, day: int) -> dict[str, str]:
        return {"artifact": f"sha256:{letter * 64}", "created": f"2026-01-0{day}T00:00:00Z"}

    documents = {
        "roots/champions/tiny/1.json": champion("a", 5),
        "roots/champions/tiny/2.json": champion("b", 3),
        "roots/frozen/tiny/1.json": champion("c", 4),
    }
    entries = import_entries("tiny", documents)
    assert [(entry["outcome"], entry["number"]) for entry in entries] == [
        ("frozen", 1),
        ("promoted", 1),
        ("promoted", 2),
    ]
    assert [title["artifact"][7] for title in entries[-1]["stands"]["champions"]] == ["b", "a"]
