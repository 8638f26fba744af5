"""Which inputs a plan looks up."""

from __future__ import annotations

from tests.flows.runner.toy import WordsConfig, words
from trnflow.flows.runner.graph import Graph, Lookup, Node


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
