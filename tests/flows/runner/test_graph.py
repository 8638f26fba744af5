"""Which inputs a plan looks up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.flows.runner.toy import WordsConfig, words
from tests.helpers.stores import new_store
from trnflow.flows.runner.graph import Graph, Lookup, Node, source_of
from trnflow.tasks.sources.resolver import Resolver


def test_what_only_given_stages_read_is_not_looked_up() -> None:
    own, shared = (Lookup(lambda store, resolver: None) for _ in range(2))
    first, second, third = (
        Node(words, WordsConfig(path="x"), {"source": lookup}, name=name)
        for name, lookup in (("first", own), ("second", shared), ("third", shared))
    )
    graph = Graph((first, second, third))
    assert [*graph.lookups()] == [own, shared]
    assert [*graph.lookups({"first"})] == [shared]
    assert [*graph.lookups({"second"})] == [own, shared], "another stage reads it, too"
    assert [*graph.lookups({"second", "third"})] == [own]


def test_a_source_that_two_stages_read_is_asked_once(tmp_path: Path) -> None:
    asked: list[str] = []

    def find(config: WordsConfig, resolver: Resolver) -> Any:
        asked.append(config.path)
        return f"the source {config.path}"

    resolver, store = Resolver(tmp_path), new_store(tmp_path)
    lookups = [source_of(find, WordsConfig(path=path)) for path in ("a", "a", "b")]
    assert [one.find(store, resolver) for one in lookups] == ["the source a", "the source a", "the source b"]
    assert asked == ["a", "b"]
