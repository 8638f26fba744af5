"""The grammar of names: what a text can mean by its form, and what is said where it means nothing or two things."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.stores import recorded
from tests.store.test_collect import made
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.store import Store
from trnflow.tasks.store.model_names import (
    Meaning,
    ModelName,
    find_artifact,
    find_run,
    find_stored,
    newest_model,
    parse_model,
    unique,
)

DIGITS = st.text("0123456789abcdef", min_size=2, max_size=64)
RECIPES = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("demo", ModelName("demo", "demo")),
        ("demo@champion", ModelName("demo@champion", "demo", "champion")),
        ("demo@newest", ModelName("demo@newest", "demo", "newest")),
        ("my/demo.yaml@12", ModelName("my/demo.yaml@12", "my/demo.yaml", 12)),
        ("a@b@2", ModelName("a@b@2", "a@b", 2)),
        ("demo@0", ModelName("demo@0", "demo@0")),
        ("demo@last", ModelName("demo@last", "demo@last")),
        ("last", ModelName("last", "last", None, 0)),
        ("last~3", ModelName("last~3", "last~3", None, 3)),
        ("last~x", ModelName("last~x", "last~x")),
        ("beef", ModelName("beef", "beef", digest="sha256:beef")),
        ("sha256:be", ModelName("sha256:be", "sha256:be", digest="sha256:be")),
        ("b", ModelName("b", "b")),
        ("BEEF", ModelName("BEEF", "BEEF")),
    ],
)
def test_the_form_of_a_name(text: str, parsed: ModelName) -> None:
    assert parse_model(text) == parsed


@given(recipe=RECIPES, which=st.one_of(st.sampled_from(["champion", "newest"]), st.integers(1, 10**9)))
def test_what_stands_after_the_last_at_says_which_model_of_a_recipe(recipe: str, which: str | int) -> None:
    assert parse_model(f"{recipe}@{which}") == ModelName(f"{recipe}@{which}", recipe, which)


@given(digits=DIGITS, back=st.integers(0, 10**6))
def test_digests_and_places_are_read_back(digits: str, back: int) -> None:
    for text in (digits, f"sha256:{digits}"):
        name = parse_model(text)
        assert (name.digest, name.is_whole_digest) == (f"sha256:{digits}", len(digits) == 64)
    assert parse_model(f"last~{back}").back == back


@given(st.text(max_size=80))
def test_every_text_has_a_form_and_one_at_most_that_is_certain(text: str) -> None:
    name = parse_model(text)
    assert name.text == text and text.startswith(name.recipe)
    assert (name.which is not None) + (name.back is not None) + bool(name.digest) <= 1


def run(store: Store, name: str, *artifacts: str) -> None:
    stages = [recorded("s", "k", digest) for digest in artifacts]
    store.write_run(name, {"recipe": "mine", "outcome": "completed", "stages": stages})


def test_a_run_is_named_by_its_beginning_or_its_place(store: Store) -> None:
    for name in ("x1", "x2", "y9"):
        run(store, name)
    for text, meant in {"last": "y9", "last~1": "x2", "last~2": "x1", "y": "y9", "x2": "x2"}.items():
        assert find_run(store, parse_model(text)) == meant
    assert find_run(store, parse_model("z"), ["z7"]) == find_run(store, parse_model("last"), ["z7"]) == "z7"
    for text, says in {"x": "begins 2 runs", "w": "no run w", "last~3": "has 3", "last~x": "no run last~x"}.items():
        with pytest.raises(ConfigError, match=says):
            find_run(store, parse_model(text))


def test_a_model_is_that_of_the_recipe_s_own_runs_and_the_newest_of_a_completed_one(store: Store) -> None:
    runs = {
        "r1": ("mine", "completed", {"train": "sha256:a", "consolidate": "sha256:b"}),
        "r2": ("mine", "failed", {"consolidate": "sha256:c"}),
        "r3": ("other", "completed", {"consolidate": "sha256:d"}),
        "r4": ("mine", "completed", {"load_data": "sha256:e"}),
    }
    for name, (recipe, outcome, made_by) in runs.items():
        stages = [recorded(stage, "k", digest) for stage, digest in made_by.items()]
        store.write_run(name, {"recipe": recipe, "outcome": outcome, "stages": stages})
    assert newest_model(store, "mine") == Meaning("r1", "sha256:b"), "r4 made none, r2 failed, r3 is another recipe's"
    assert find_artifact(store, parse_model("mine@newest")) == "sha256:b", "not the checkpoint, which train made first"
    of_recipe = [find_stored(store, parse_model(text), ("consolidate",), recipe="mine") for text in ("last", "last~1")]
    assert of_recipe == [Meaning("r2", "sha256:c"), Meaning("r1", "sha256:b")]
    assert find_stored(store, parse_model("last"), ("consolidate",)) == Meaning("r3", "sha256:d")


def test_a_whole_name_wins_over_longer_ones() -> None:
    assert unique("ab", ["ab", "abc"], "pin", "") == "ab"


def test_a_name_that_means_a_run_and_a_digest_is_refused_and_both_are_named(store: Store, tmp_path: Path) -> None:
    artifact = made(store, tmp_path, "rows", {"x": b"x"})
    digits = artifact.digest[7:13]
    run(store, f"{digits}-1", artifact.digest)
    with pytest.raises(ConfigError) as refused:
        find_stored(store, parse_model(digits))
    assert f"{digits} begins the run {digits}-1 and the digest {artifact.digest[:19]}" in refused.value.message
    assert find_artifact(store, parse_model(f"sha256:{digits}")) == artifact.digest
    assert find_run(store, parse_model(f"{digits}-")) == find_run(store, parse_model(artifact.digest)) == f"{digits}-1"
    assert find_artifact(store, parse_model(f"{digits}-")) == artifact.digest


def test_an_artifact_without_record_is_found_and_one_that_never_was_is_not(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "x").write_bytes(b"x")
    digest = store.ingest(folder, "texts", {}).digest
    for text in (digest, digest[:15], digest[7:12]):
        assert find_artifact(store, parse_model(text)) == digest
    with pytest.raises(ConfigError, match=f"no run in this store made or used {digest[:19]}"):
        find_run(store, parse_model(digest))
    for text in ("sha256:" + "0" * 64, "0" * 12, "nothing"):
        with pytest.raises(ConfigError, match="there is no artifact"):
            find_artifact(store, parse_model(text))
