"""A model is no start for rows whose ids stand for other tokens, the added ones included."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from tests.helpers.stores import new_store
from trnflow.flows.runner.vocabulary import check_vocabulary
from trnflow.tasks.artifact import Artifact
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return new_store(tmp_path)


def tokens(store: Store, *words: str, added: str = "<call>") -> Artifact:
    folder = store.home / f"made-{'-'.join(words)}-{added}"
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.add_tokens([added])
    tokenizer.save(f"{folder}/tokenizer.json")
    return store.ingest(folder, "tokens", {})


def test_an_id_that_stands_for_another_token_is_refused(store: Store) -> None:
    start = tokens(store, "?", "a", "b")
    check_vocabulary(store, start, tokens(store, "?", "a", "b", added="<call>"))
    with pytest.raises(ConfigError, match="2 ids differ, such as 1, 'a' there and 'b' here"):
        check_vocabulary(store, start, tokens(store, "?", "b", "a"))
    with pytest.raises(ConfigError, match="1 ids differ, such as 3, '<call>' there and '<end>' here"):
        check_vocabulary(store, start, tokens(store, "?", "a", "b", added="<end>"))
