"""One bos in every program: four tokenizers (add one or not, the template writes one or not), and the ids of the same chat.

What `apply_chat_template` of transformers gives on our folder is right; training, `predict`, lm-eval as `evaluate.harness`
calls it, llama.cpp on the GGUF export and vLLM's way of encoding a chat give the same.
"""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import CLIENTS, RunClient
from tests.clients.test_gguf import SIZES, STAGE, byte_level
from tests.helpers import small_models
from tests.helpers.chats import rows_of, token_rows
from tests.helpers.data_stages import new_bench
from trnflow.tasks.data.format.row_format import ROW_FORMAT_FILE, row_format
from trnflow.tasks.data.tokenization.tokenizer import read_tokenizer
from trnflow.tasks.evaluation.generation import prompt_encoder, prompt_ids
from trnflow.tasks.prediction.predict import open_model
from trnflow.tasks.stage import write_json

pytestmark = pytest.mark.slow  # one costly fixture for the whole file

TURNS = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
CHAT = [
    {"role": "user", "content": "what is it ?"},
    {"role": "assistant", "content": "\n a mat"},
    {"role": "user", "content": "why"},
    {"role": "assistant", "content": "so"},
]
CASES = [*product((False, True), repeat=2)]
"""(the tokenizer adds bos, the template writes it)."""
BOS = 1

LM_EVAL = """
import json, sys
from lm_eval.models.huggingface import HFLM
from trnflow.tasks.evaluation.harness_process import _of_chats
chat, found = json.loads(sys.argv[1]), []
for folder in sys.argv[2:]:
    given = _of_chats({"apply_chat_template": True, "model": folder})
    model = HFLM(pretrained=folder, dtype="float32", device="cpu", **given)
    text = model.apply_chat_template(chat)
    found.append([model.tok_encode(text), model.tok_batch_encode([text])[0][0].tolist()])
print(json.dumps(found))
"""
LLAMA_CPP = """
import json, sys, urllib.request, xllamacpp
chat, found = json.loads(sys.argv[1]), []
for folder in sys.argv[2:]:
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.cpuparams.n_threads = folder + "/model.gguf", 128, 1, 1
    server = xllamacpp.Server(params)

    def post(path, **body):
        url, kind = server.listening_address + path, {"content-type": "application/json"}
        return json.loads(urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), kind)).read())

    text = post("/apply-template", messages=chat)["prompt"]
    tokens = post("/tokenize", content=text, add_special=True, parse_special=True)["tokens"]
    found.append([tokens, post("/v1/chat/completions", messages=chat, max_tokens=1)["usage"]["prompt_tokens"]])
print(json.dumps(found))
"""
VLLM = """
import json, sys
from vllm.tokenizers.registry import get_tokenizer
chat, found = json.loads(sys.argv[1]), []
for folder in sys.argv[2:]:
    tokenizer = get_tokenizer(folder)
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    found.append(tokenizer(text, add_special_tokens=False).input_ids)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[bool, bool], tuple[Path, Path, Any]]:
    """{case: (the model's folder, its GGUF export, the tokens of training)}."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    root, made, calls = tmp_path_factory.mktemp("bos"), {}, []
    for number, (adds, writes) in enumerate(CASES):
        folder, bench = root / str(number), new_bench(root / f"bench-{number}")
        for path in (folder, bench.root):
            path.mkdir()
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SIZES, vocab_size=608)).save_pretrained(folder)
        byte_level(folder, None)
        (folder / "chat_template.jinja").write_text("{{ bos_token }}" * writes + TURNS)
        if not adds:
            document = json.loads((folder / "tokenizer.json").read_text())
            (folder / "tokenizer.json").write_text(json.dumps({**document, "post_processor": None}))
        texts = bench.texts(rows_of(bench.root, "messages", [CHAT]), model := {"source": str(folder)}, task="chat")
        tokens = bench.tokens(texts, model)
        write_json(folder / ROW_FORMAT_FILE, row_format(texts.meta, tokens.meta))
        weights, export = small_models.model_input(folder, "causal_lm", [64], None), root / "out" / str(number)
        calls.append(small_models.call(STAGE, {"target": "gguf", "gguf_type": "f32"}, export, weights=weights))
        made[adds, writes] = folder, export, token_rows(tokens)
    assert all("meta" in result for result in small_models.run_calls(calls, root))
    return made


def by_transformers(folder: Path, chat: list[dict[str, str]]) -> list[int]:
    from transformers import AutoTokenizer

    found = AutoTokenizer.from_pretrained(folder).apply_chat_template(
        chat, add_generation_prompt=True, return_dict=False
    )
    return [*found]


def test_training_and_predict_read_the_ids_of_transformers(folders: dict[Any, Any]) -> None:
    for (_, writes), (folder, _, rows) in folders.items():
        for turn in (1, 3):
            wanted = by_transformers(folder, CHAT[:turn])
            assert wanted.count(BOS) == writes
            taught = [ids for ids, mask in rows if ids[: len(wanted)] == wanted and mask[len(wanted)]]
            assert len(taught) == 1
            shape = open_model(folder, "model", {}).shape
            given = {"framed": shape.framed, "templates": shape.templates}
            parts = shape.of_row({"messages": CHAT[:turn]}, "row 1")
            assert prompt_ids(prompt_encoder(read_tokenizer(folder), given), parts) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("client, script", [("lm-eval", LM_EVAL), ("llama-cpp", LLAMA_CPP), ("vllm", VLLM)])
def test_other_programs_read_the_ids_of_transformers(
    client: str, script: str, folders: dict[Any, Any], run_client: RunClient
) -> None:
    given = [export if client == "llama-cpp" else folder for folder, export, _ in folders.values()]
    found = run_client(client, script, json.dumps(CHAT[:1]), *given, kept=True)
    for (folder, _, _), theirs in zip(folders.values(), found, strict=True):
        wanted = by_transformers(folder, CHAT[:1])
        assert theirs == {"lm-eval": [wanted, wanted], "llama-cpp": [wanted, len(wanted)], "vllm": wanted}[client]


def test_vllm_encodes_a_chat_without_special_tokens_unless_it_is_asked_for_them() -> None:
    file = CLIENTS / "vllm/vllm/entrypoints/openai/chat_completion/protocol.py"
    if not file.exists():
        pytest.skip("no client vllm: run `make clients`")
    assert re.search(r"add_special_tokens: bool = Field\(\s*default=False", file.read_text(encoding="utf-8"))
