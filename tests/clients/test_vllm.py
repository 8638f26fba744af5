"""vLLM's own classes, from its sources and without a GPU, on our folder: the tokens, template and length that it would serve."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.clients.conftest import RunClient
from tests.helpers.data_stages import new_bench, whole
from tests.prediction.test_predict import CHAT, WORDS, finished, llama, write_rows

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
    known, longest, theirs, ids = run_client("vllm", OPEN, folder, json.dumps(turns))
    tokens = bench.tokens(texts, {"source": str(folder)}, max_length=64)
    ours = np.load(tokens.path / "train/input_ids.npy"), np.load(tokens.path / "train/offsets.npy")
    assert known and longest == tokens.meta["max_length"] == 64
    assert [theirs[turns_at(text, turns)] for text in whole(texts)] == whole(texts)
    rows = [ours[0][begin:end].tolist() for begin, end in zip(ours[1][:-1], ours[1][1:], strict=True)]
    assert [ids[turns_at(text, turns)] for text in whole(texts)] == rows


def turns_at(text: str, turns: list[list[dict[str, str]]]) -> int:
    """The place of the chat that a text renders."""
    return next(place for place, chat in enumerate(turns) if chat[1]["content"] in text)
