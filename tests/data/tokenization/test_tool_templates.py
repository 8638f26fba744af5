"""A tokenizer with a chat template of its own for conversations with tools, in the files in which transformers saves it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from tests.helpers import small_models
from trnflow.flows.jobs.carry import _model_files
from trnflow.tasks.data.format.chat_prompts import prompt_writer
from trnflow.tasks.data.format.config import FormatConfig
from trnflow.tasks.data.format.conversation import Conversation
from trnflow.tasks.data.special_tokens import chat_templates
from trnflow.tasks.data.tokenization.tokenizer import read_tokenizer, save_tokenizer
from trnflow.tasks.errors import ModelError
from trnflow.tasks.sources.model_sizes import TEMPLATE, TOOL_TEMPLATE
from trnflow.tasks.sources.model_source import ModelConfig, model_source
from trnflow.tasks.sources.resolver import Resolver

PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"
TEMPLATES = {"default": f"plain: {PLAIN}", "tool_use": "tools {{ tools | length }}: " + PLAIN}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "words").mkdir()
    small_models.tokenizer(tmp_path / "words")
    file = str(tmp_path / "words/tokenizer.json")
    fast = PreTrainedTokenizerFast(tokenizer_file=file, chat_template=TEMPLATES, eos_token="</s>")
    fast.save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def test_both_are_read_keyed_carried_and_published(folder: Path, tmp_path: Path) -> None:
    assert (folder / TOOL_TEMPLATE).exists() and chat_templates(folder) == TEMPLATES
    assert TOOL_TEMPLATE in _model_files(folder)

    def keyed() -> Any:
        config = ModelConfig(config={"model_type": "llama"}, tokenizer=str(folder))
        return model_source(config, Resolver(tmp_path / "home")).identity["tokenizer"]

    before = keyed()
    save_tokenizer(read_tokenizer(folder), folder, tmp_path / "published", {})
    assert all(entry.is_file() for entry in (tmp_path / "published").iterdir())
    assert PreTrainedTokenizerFast.from_pretrained(tmp_path / "published").chat_template == TEMPLATES
    assert chat_templates(tmp_path / "published") == TEMPLATES
    (folder / TOOL_TEMPLATE).write_text("another")
    assert keyed() != before
    (folder / TOOL_TEMPLATE).write_text("x" * (TEMPLATE + 1))
    with pytest.raises(ModelError, match=f"{TOOL_TEMPLATE} has more than 1 MiB"):
        keyed()


def test_tools_bring_their_own_template(folder: Path) -> None:
    write = prompt_writer(FormatConfig(task="chat"), folder)
    talk, tool = [{"role": "user", "content": "hi"}], {"type": "function", "function": {"name": "f"}}
    given = [Conversation(talk, [tool]), Conversation(talk)]
    with_tools, without = (
        "".join(part["text"] for part in parts) for parts in write([(each, "row 1") for each in given])
    )
    assert (with_tools, without) == ("tools 1: hi", "plain: hi")
