"""vLLM's own classes, from its sources and without a GPU, on our folder: the tokens, template and length that it would serve."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.clients.conftest import CLIENTS, RunClient
from tests.helpers.data_stages import new_bench, whole
from tests.prediction.test_predict import CHAT, WORDS, finished, llama, write_rows
from trnflow.tasks.data.format.chat import templated
from trnflow.tasks.data.format.conversation import Conversation, messages_of
from trnflow.tasks.data.format.templates import ChatTemplate
from trnflow.tasks.errors import DataError

OPEN = """
import json, sys
from vllm.model_executor.models.registry import ModelRegistry
from vllm.tokenizers.registry import get_tokenizer
from vllm.transformers_utils.config import get_config
folder, turns = sys.argv[1], json.loads(sys.argv[2])
config, tokenizer = get_config(folder, trust_remote_code=False), get_tokenizer(folder)
texts = [tokenizer.apply_chat_template(chat, tokenize=False) for chat in turns]
ids = [tokenizer(text, add_special_tokens=False).input_ids for text in texts]
known = {*config.architectures} <= {*ModelRegistry.get_supported_archs()}
print(json.dumps([known, config.max_position_embeddings, texts, ids]))
"""


@pytest.mark.slow
def test_vllm_reads_the_tokens_the_template_and_the_length_of_our_folder(tmp_path: Path, run_client: RunClient) -> None:
    turns = [
        [
            {"role": "user", "content": " ".join(WORDS[n:])},
            {"role": "assistant", "content": f"on the mat, {n} é 🙂\nso"},
        ]
        for n in range(9)
    ]
    bench, train = new_bench(tmp_path), {"kind": "bpe", "vocab_size": 300}
    loaded = bench.rows(source=write_rows(tmp_path / "rows", [{"messages": chat} for chat in turns]))
    folder = finished(bench, bench.texts(loaded, task="chat", chat_template=CHAT), llama, train, chat_template=CHAT)
    texts = bench.texts(loaded, {"source": str(folder)}, task="chat")
    known, longest, theirs, ids = run_client("vllm", OPEN, folder, json.dumps(turns), kept=True)
    tokens = bench.tokens(texts, {"source": str(folder)}, max_length=64)
    ours = np.load(tokens.path / "train/input_ids.npy"), np.load(tokens.path / "train/offsets.npy")
    assert known and longest == tokens.meta["max_length"] == 64
    assert [theirs[turns_at(text, turns)] for text in whole(texts)] == whole(texts)
    rows = [ours[0][begin:end].tolist() for begin, end in zip(ours[1][:-1], ours[1][1:], strict=True)]
    assert [ids[turns_at(text, turns)] for text in whole(texts)] == rows


def turns_at(text: str, turns: list[list[dict[str, str]]]) -> int:
    """The place of the chat that a text renders."""
    return next(place for place, chat in enumerate(turns) if chat[1]["content"] in text)


PARSE = """
import json, sys
from types import SimpleNamespace
from transformers.utils.chat_template_utils import render_jinja_template
from vllm.renderers.chat_utils import parse_chat_messages
from vllm.renderers.hf import _detect_content_format
templates, talks = json.loads(open(sys.argv[1]).read())
config, found = SimpleNamespace(enable_prompt_embeds=False, multimodal_config=None), {}

def text(template, talk, kind):
    try:
        conversation, _, _ = parse_chat_messages(json.loads(json.dumps(talk)), config, kind)
        (text,), _ = render_jinja_template([conversation], chat_template=template, bos_token="<s>", eos_token="</s>")
    except Exception:
        return None
    return text

for name, template in templates.items():
    kind = _detect_content_format(template, default="string")
    found[name] = [kind, [text(template, talk, kind) for talk in talks]]
print(json.dumps(found))
"""
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def in_parts(*texts: str, **kinds: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts] + [
        {"type": kind, "text": text} for kind, text in kinds.items()
    ]


def calling(arguments: object) -> list[dict[str, object]]:
    """A conversation with a call, its result in parts."""
    call = {"type": "function", "id": "call00001", "function": {"name": "add", "arguments": arguments}}
    return [
        {"role": "user", "content": in_parts("Add 1", " and 2.")},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call00001", "content": in_parts("3", "three")},
        {"role": "assistant", "content": in_parts("It is", "3.")},
    ]


@pytest.mark.slow
def test_parts_and_calls_reach_published_templates_as_vllm_gives_them(
    tmp_path: Path, shared: Path, run_client: RunClient
) -> None:
    """vLLM's parser and transformers' rendering on TRL's collection of templates. vLLM wraps a text in a part, too, where a
    template goes through parts; here it stays a text, as transformers has it: all contents here are parts."""
    two = (shared / "cases/c05_parts/two_parts.jsonl").read_text().splitlines()
    talks: list[list[dict[str, object]]] = [
        *(json.loads(line)["messages"] for line in two),
        [
            {"role": "user", "content": ["a", *in_parts(" b\n", input_text="c")]},
            {"role": "assistant", "content": in_parts("", "x")},
        ],
        [{"role": "system", "content": in_parts("Be brief.")}, *json.loads(two[0])["messages"]],
        calling('{"a": 1, "b": [2.5, "é"]}'),
        calling({"a": 1, "b": None}),
    ]
    folder = CLIENTS / "trl" / "trl" / "chat_templates"
    templates = {file.stem: file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.jinja"))}
    (tmp_path / "given.json").write_text(json.dumps([templates, talks]))
    theirs = run_client("vllm", PARSE, tmp_path / "given.json", kept=True)
    compared, unlike = 0, []
    for name, source in templates.items():
        template = ChatTemplate(name, source, SPECIAL, date="2024-07-26", arguments={})
        kind, texts = theirs[name]
        assert (kind == "openai") == template.goes_through_parts, name
        for talk, text in zip(talks, texts, strict=True):
            if text is None or "strftime_now" in source:
                continue
            try:
                (ours,) = templated(Conversation(messages_of(talk, "row")), template, "row", last=True).examples
            except DataError:  # what a template leaves out is refused here
                continue
            compared += 1
            if "".join(part["text"] for part in ours) != text:
                unlike.append((name, talk, "".join(part["text"] for part in ours), text))
    assert not unlike and compared > 200
