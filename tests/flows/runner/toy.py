"""A pipeline of three quick stages and a deferred one, to test the runner with."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from trnflow.flows.runner.graph import Graph, Node, source_of
from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.config import NOT_KEYED, StageConfig
from trnflow.tasks.errors import DataError
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.stage import Workdir, stage


class WordsConfig(StageConfig):
    path: Annotated[str, NOT_KEYED]
    upper: bool = False


class CountConfig(StageConfig):
    least: int = 1
    fail: Annotated[bool, NOT_KEYED] = False
    spoil_input: Annotated[bool, NOT_KEYED] = False


def words_source(config: WordsConfig, resolver: Resolver) -> Source:
    return Source("data", {"digest": resolver.memo.digest(config.path)}, {"path": config.path})


@stage(kind="words")
def words(config: WordsConfig, source: Source, out: Workdir) -> Meta:
    text = Path(source.location["path"]).read_text()
    (out.path / "words.txt").write_text(text.upper() if config.upper else text)
    out.figures(process=os.getpid())
    return {"letters": len(text)}


@stage(kind="sizes")
def sizes(config: StageConfig, words: Input, out: Workdir) -> Meta:
    (out.path / "sizes.txt").write_text(" ".join(str(len(w)) for w in (words.path / "words.txt").read_text().split()))
    return {}


@stage(kind="warmth")
def warm_up(config: StageConfig, words: Input, out: Workdir) -> Meta:
    (out.path / "warm").write_text("yes")
    return {}


@stage(kind="counts")
def count(config: CountConfig, sizes: Input, out: Workdir, warmth: Input) -> Meta:
    assert (warmth.path / "warm").read_text() == "yes"
    if config.fail:
        raise DataError("row 3 is bad", "mend row 3")
    found = [int(size) for size in (sizes.path / "sizes.txt").read_text().split()]
    if config.spoil_input:
        blob = (sizes.path / "sizes.txt").resolve()
        blob.chmod(0o644)
        blob.write_text("spoiled")
    total = sum(size for size in found if size >= config.least)
    (out.path / "total.txt").write_text(str(total))
    return {"metrics": {"total": total}}


@stage(kind="letters", meta_only=("words",))
def letters(config: StageConfig, words: Input, out: Workdir) -> Meta:
    return {"metrics": {"letters": words.meta["letters"], "files": len([*words.path.iterdir()])}}


@stage(kind="lessons")
def learn(config: StageConfig, out: Workdir) -> Meta:
    for step in (1, 2, 3):
        out.metrics(step, loss=1 / step)
    out.figures(steps=3)
    return {}


def graph(first: WordsConfig, last: CountConfig | None = None) -> Graph:
    read = Node(words, first, {"source": source_of(words_source, first)})
    lengths = Node(sizes, StageConfig(), {"words": read})
    warm = Node(warm_up, StageConfig(), {"words": read})
    counted = Node(count, last or CountConfig(), {"sizes": lengths}, after={"warmth": warm})
    return Graph((read, lengths, warm, counted))
