"""A row is shaped for a model as in training: the same columns are read, and a chat template's bos stays the only one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from transformers import AutoTokenizer

from tests.helpers.chats import token_rows
from tests.helpers.data_stages import Bench
from tests.prediction.test_predict import write_rows
from trnflow.tasks.data.format.config import FormatConfig
from trnflow.tasks.data.format.row_format import RowFormat
from trnflow.tasks.data.tokenization.encoders import CausalEncoder
from trnflow.tasks.data.tokenization.tokenizer import read_tokenizer
from trnflow.tasks.evaluation.generation import prompt_encoder, prompt_ids
from trnflow.tasks.keys.hash_cache import Memo
from trnflow.tasks.keys.hooks import code_source
from trnflow.tasks.prediction.prompts import columns_of, shape_of

TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
ASKED = [{"role": "user", "content": "Is it red?"}]


@pytest.fixture
def folder(tmp_path: Path, shared: Path) -> Path:
    """A tokenizer that puts bos in front, and a template that writes it."""
    copied: Path = shutil.copytree(shared / "assets/stories260K-hf", tmp_path / "chats")
    (copied / "chat_template.jinja").write_text(TEMPLATE)
    return copied


def test_a_reward_model_reads_a_conversation_with_the_tokens_of_training(bench: Bench, folder: Path) -> None:
    yes, no = ([{"role": "assistant", "content": text}] for text in ("Yes.", "No."))
    source = write_rows(bench.root / "rows", [{"prompt": ASKED, "chosen": yes, "rejected": no}] * 4)
    texts = bench.texts(bench.rows(source=source), {"source": str(folder)}, task="preference")
    tokens = bench.tokens(texts, {"source": str(folder)})
    shape = shape_of(RowFormat("reward", **texts.meta["rows"], max_length=512), folder)
    encoder = CausalEncoder(read_tokenizer(folder), 512, "truncate", add_eos=True, framed=shape.framed)
    made = encoder.encode(pa.table({"parts": [shape.of_row({"prompt": ASKED, "completion": yes}, "row 1")]}))
    fast = AutoTokenizer.from_pretrained(folder)
    wanted = fast.apply_chat_template(ASKED + yes, tokenize=True, return_dict=False)
    assert made.ids.tolist() == token_rows(tokens)[0][0][: len(wanted)] == wanted
    assert wanted.count(fast.bos_token_id) == 1


def test_a_conversation_that_own_code_makes_begins_with_one_bos(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "own_prompts_here.py").write_text(
        'def talks(row): return {"messages": [{"role": "user", "content": row["body"]}]}'
    )
    hook = "own_prompts_here:talks"
    code = code_source({"format.make": (hook, tmp_path)}, tmp_path / "home", Memo(tmp_path / "memo.db"))
    settings = FormatConfig(task="chat").model_dump(mode="json")
    rows = RowFormat("causal_lm", settings, [], ["body"], [], 64, own={"format.make": hook})
    shape = shape_of(rows, folder, code)
    ids = prompt_ids(
        prompt_encoder(read_tokenizer(folder), {"framed": shape.framed}),
        shape.of_row({"body": ASKED[0]["content"]}, ""),
    )
    fast = AutoTokenizer.from_pretrained(folder)
    assert ids == fast.apply_chat_template(ASKED, add_generation_prompt=True, tokenize=True, return_dict=False)


def test_a_template_s_context_may_be_missing() -> None:
    settings: dict[str, Any] = {
        "task": "instruction",
        "prompt_template": "{{ title }}{{ about or '' }}",
        "context": "about",
    }
    named = json.loads(json.dumps(FormatConfig(**settings).model_dump()))
    assert columns_of(RowFormat("causal_lm", named, [], ["title", "about"], [], 64)) == (["title"], ["about"])
