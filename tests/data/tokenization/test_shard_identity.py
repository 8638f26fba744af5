"""What the tokens of a shard depend on besides its rows: shards with all of it in common are recalled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.small_models import workdir
from trnflow.tasks.artifact import Input, Meta
from trnflow.tasks.data.tokenization.config import TokenizeConfig
from trnflow.tasks.stage import Workdir
from trnflow.tasks.tokenize_text import _identity

END, FORMAT = (
    "<|end|>",
    {"task": "chat", "framed": True, "templates": [], "rows": {"settings": {"chat_template": "plain"}}},
)


@pytest.fixture
def out(tmp_path: Path) -> Workdir:
    made = workdir(tmp_path / "out")
    (made.path / "tokenizer").mkdir()
    added = [{"id": 5, "content": END, "special": False}]
    (made.path / "tokenizer/tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    return made


@pytest.mark.parametrize(
    "other",
    [
        {"framed": False},
        {"templates": ["{{ text }}"]},
        {"rows": {"settings": {"chat_template": f"plain{{# {END} #}}"}}},
    ],
    ids=["framed", "templates", "tokens that end answers"],
)
def test_what_the_encoder_is_given_is_in_it(other: Meta, out: Workdir) -> None:
    def identity(meta: Any) -> Meta:
        return _identity(TokenizeConfig(), Input(out.path, "texts", meta, "sha256:0"), out)

    assert identity(FORMAT) == identity(dict(FORMAT)) != identity({**FORMAT, **other})
