from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.helpers.data_stages import files, table
from trnflow.tasks.data.load.corpus import STDLIB, Docstring, anonymous, corpus_source, read_docstrings, stdlib_files
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.load_data import DataConfig
from trnflow.tasks.sources.resolver import Resolver


def test_packages_view_is_a_classification_task(bench):
    rows = bench.rows(source="builtin:stdlib", label="package")
    assert 8 <= len(rows.meta["labels"]) <= 12
    assert sum(rows.meta["splits"].values()) > 1500
    train = table(rows, "train")
    counts = Counter(train["label"])
    assert set(counts) == set(range(len(rows.meta["labels"])))
    assert max(counts.values()) < len(train["label"]) / 2
    everything = [text for split in rows.meta["splits"] for text in table(rows, split)["text"]]
    assert len(set(everything)) == len(everything)
    assert rows.meta["leakage"] == {"train/validation": 0, "train/test": 0, "validation/test": 0}
    fraction = rows.meta["splits"]["test"] / len(everything)
    assert 0.05 < fraction < 0.15
    for label, text in zip(train["label"], train["text"], strict=True):
        assert not re.search(rf"(?<!\w){rows.meta['labels'][label]}(?!\w)", text, re.IGNORECASE)


def test_questions_view_reads_twice_the_same(bench):
    first, second = (bench.rows(source="builtin:stdlib", name="questions") for _ in range(2))
    assert files(first.path) == files(second.path)
    assert first.meta["columns"] == ["instruction", "response", "name"]
    train = table(first, "train")
    asked = dict(zip(train["name"], train["instruction"], strict=True))
    assert "asyncio.gather" not in asked or asked["asyncio.gather"] == "What does `asyncio.gather` do?"
    assert all(question == f"What does `{name}` do?" for name, question in asked.items())


def test_docstrings_are_those_of_the_source(tmp_path):
    (tmp_path / "pack/test").mkdir(parents=True)
    (tmp_path / "pack/__init__.py").write_text('"""The pack of things."""\n')
    (tmp_path / "pack/tool.py").write_text(
        'class Tool:\n    """A tool for work."""\n    def _hidden(self):\n        """Not for you."""\n'
        '    async def run(self):\n        """Run the tool\n        on this."""\n        import does_not_exist\n'
    )
    (tmp_path / "pack/test/test_tool.py").write_text('"""Tests are not read."""\n')
    (tmp_path / "pack/broken.py").write_text('"""Never closed\n')
    (tmp_path / "_private.py").write_text('"""Nobody asks for this."""\n')
    assert list(read_docstrings(tmp_path)) == [
        Docstring("pack", "The pack of things."),
        Docstring("pack.tool.Tool", "A tool for work."),
        Docstring("pack.tool.Tool.run", "Run the tool\non this."),
    ]
    assert [path for path, _ in stdlib_files(tmp_path)] == [
        "_private.py",
        "pack/__init__.py",
        "pack/broken.py",
        "pack/tool.py",
    ]


def test_names_are_hidden_wherever_they_stand():
    item = Docstring("email.message.Message.get", "Like email.message_from; Message.get() gets a message.\n\nGET it.")
    assert anonymous(item) == "Like .message_from; . () gets a . it."


def test_identity_is_the_content_and_costs_no_reading_twice(tmp_path, monkeypatch):
    source = corpus_source("builtin:stdlib", None, Resolver(tmp_path / "home"))
    assert source.identity["view"] == "packages"
    assert source.identity["digest"].startswith("sha256:")
    monkeypatch.setattr("trnflow.tasks.data.load.corpus.sha256_file", lambda path: pytest.fail(f"read {path} again"))
    again = corpus_source("builtin:stdlib", "questions", Resolver(tmp_path / "home"))
    assert again.identity == {**source.identity, "view": "questions"}


def test_unknown_corpus_and_view(bench):
    with pytest.raises(ConfigError, match="no built-in corpus builtin:wikipedia"):
        bench.source(DataConfig(source="builtin:wikipedia"))
    with pytest.raises(ConfigError, match=r"data\.name: builtin:stdlib has no view pack.* Fix: use one of: packages"):
        bench.source(DataConfig(source="builtin:stdlib", name="pack"))


def test_reading_imports_nothing_of_what_is_read():
    import sys

    before = set(sys.modules)
    names = {item.name.split(".")[0] for item in read_docstrings(STDLIB)}
    assert {"tkinter", "turtle", "imaplib"} <= names
    assert not (set(sys.modules) - before) & names
