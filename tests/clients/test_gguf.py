"""llama.cpp opens the GGUF export: tokens of texts, probabilities and greedy texts are those of tokenizers and PyTorch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.clients import figures
from tests.clients.conftest import RunClient
from tests.conftest import shared_folder
from tests.helpers import small_models
from trnflow.tasks.export.gguf import write_gguf
from trnflow.tasks.export.gguf_tokenizer import SPLITS

STAGE = "trnflow.tasks.export_neuron:export_neuron"
SIZES: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 96, "max_position_embeddings": 128, "initializer_range": 0.2, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0,
}  # fmt: skip
WINDOWS = {"sliding_window": 16, "query_pre_attn_scalar": 16, "num_hidden_layers": 7}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"attention_bias": True}),
    "llama3": ("llama", {"rope_parameters": LLAMA3}),
    "linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
    "mistral": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {}),
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", {**WINDOWS, "num_hidden_layers": 4}),
    "gemma3": ("gemma3_text", WINDOWS),
}
LLAMA_3, QWEN = SPLITS
CUTS = {"llama3": LLAMA_3, "qwen2": QWEN, "qwen3": QWEN}
SCRIPT = """
import json, sys, urllib.request
import xllamacpp
folder, rows, count, texts = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel = folder + "/model.gguf", 128, 1
params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED  # computes in half precision
params.cpuparams.n_threads = 1
server = xllamacpp.Server(params)


def post(path, **body):
    url, kind = server.listening_address + path, {"content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), kind)
    return json.loads(urllib.request.urlopen(request).read())


found = []
for row in rows:
    answer = post(
        "/completion", prompt=row, n_predict=count, temperature=0, n_probs=1024, return_tokens=True, cache_prompt=False
    )
    first = {one["id"]: one["logprob"] for one in answer["completion_probabilities"][0]["top_logprobs"]}
    found.append([answer["tokens"], [first[number] for number in range(len(first))]])
tokens = [post("/tokenize", content=text, add_special=True)["tokens"] for text in texts]
print(json.dumps([found, tokens]))
"""


def texts() -> list[str]:
    """Dolly's instructions, Amharic tweets, and what tokenizers stumble over."""
    from pyarrow.parquet import read_table

    dolly = read_table(shared_folder() / "data/dolly15k/train.parquet", columns=["instruction"])[0][:150].to_pylist()
    hard = [
        "",
        " ",
        "  two  spaces ",
        "tab\tand\n\nlines\r\n",
        "it's we'LL 12345 3.14 x=1;",
        "ሰላም ለዓለም",
        "🚀😶‍🌫️ naïve café",
        "日本語のテキスト",
    ]
    return [*dolly, *hard]


def byte_level(folder: Path, pattern: str | None) -> None:
    """A byte-level BPE trained on the texts. pattern: cuts texts first; None: GPT-2's own."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    special = ["<pad>", "<s>", "</s>", "<|end|>"]
    tokenizer = Tokenizer(models.BPE(ignore_merges=pattern is not None and "1,3" in pattern))
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    cut = [] if pattern is None else [pre_tokenizers.Split(Regex(pattern), "isolated")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cut, whole]) if cut else whole
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())
    )
    tokenizer.train_from_iterator(texts(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(folder / "tokenizer.json"))
    roles = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(roles))


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """{name: (model's folder, export)}: of each family in float32, and stories260K, which is pretrained, in each type."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    root = tmp_path_factory.mktemp("gguf")
    calls = []
    for name, (family, settings) in FAMILIES.items():
        folder = root / name
        torch.manual_seed(0)
        config = AutoConfig.for_model(family, **{**SIZES, **settings}, vocab_size=608)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        byte_level(folder, CUTS.get(name))
        model = small_models.model_input(folder, "causal_lm", [64], None)
        calls.append(
            small_models.call(STAGE, {"target": "gguf", "gguf_type": "f32"}, root / "out" / name, weights=model)
        )
    stories = root / "stories"
    shutil.copytree(shared_folder() / "assets/stories260K-hf", stories)
    for kind in ("f32", "f16", "q8_0"):
        model = small_models.model_input(stories, "causal_lm", [64], None)
        calls.append(
            small_models.call(STAGE, {"target": "gguf", "gguf_type": kind}, root / "out" / kind, weights=model)
        )
    for result in small_models.run_calls(calls, root):
        assert "meta" in result, result
    kinds = dict.fromkeys(("f32", "f16", "q8_0"), stories)
    return {
        name: (folder, root / "out" / name)
        for name, folder in ({name: root / name for name in FAMILIES} | kinds).items()
    }


def rows(folder: Path, count: int, length: int) -> list[list[int]]:
    """Rows of random tokens."""
    import torch

    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    return torch.randint(3, size - 8, (count, length), generator=torch.Generator().manual_seed(1)).tolist()


def by_pytorch(folder: Path, given: list[list[int]], count: int) -> list[tuple[list[int], Any]]:
    """Return the greedy tokens after each row, to the end of a text at most, and log probabilities of the first."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    found = []
    for row in given:
        greedy = model.generate(
            torch.tensor([row]), max_new_tokens=count, do_sample=False, output_logits=True, return_dict_in_generate=True
        )
        found.append((greedy.sequences[0, len(row) :].tolist(), greedy.logits[0][0].log_softmax(-1)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_a_familys_probabilities(name: str, exports: dict[str, tuple[Path, Path]], run_client: RunClient) -> None:
    import torch
    from tokenizers import Tokenizer

    folder, export = exports[name]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    expected = dict(zip(map(tuple, given := rows(folder, 16, 40)), by_pytorch(folder, given, 1), strict=True))
    # llama.cpp's server says nothing of a token that is a part of a character, and of the end of a text
    whole = [row for row, (tokens, _) in expected.items() if "\ufffd" not in (tokenizer.decode(tokens) or "\ufffd")]
    assert len(whole) > 2
    found, _ = run_client("llama-cpp", SCRIPT, export, json.dumps(whole), "1", "[]")
    largest = 0.0
    for row, (tokens, logs) in zip(whole, found, strict=True):
        assert tokens == expected[row][0]
        largest = max(largest, float((torch.tensor(logs) - expected[row][1]).abs().max()))
    gelu = name.startswith("gemma")
    assert largest < (1e-2 if gelu else 1e-4)
    opens = (
        f"the GGUF export, {'3 families with GELU, of which it has a table of float16' if gelu else '4 families'}, f32"
    )
    figures.note("xllamacpp", opens, "log probabilities", largest, "llama-cpp")


@pytest.fixture(scope="module")
def fifty(exports: dict[str, tuple[Path, Path]]) -> tuple[list[str], list[list[int]], list[tuple[list[int], Any]]]:
    """Prompts, their tokens, and what PyTorch makes of them with stories260K."""
    from tokenizers import Tokenizer

    folder, _ = exports["f32"]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompts = [f"{text[:60]} Once upon a time" for text in texts()[:50]]
    given = [tokenizer.encode(text).ids[:64] for text in prompts]
    return prompts, given, by_pytorch(folder, given, 12)


@pytest.mark.slow
@pytest.mark.parametrize("kind, limit", [("f32", 1e-4), ("f16", 0.02), ("q8_0", 0.6)])
def test_fifty_prompts_of_a_pretrained_model(
    kind: str, limit: float, fifty: Any, exports: dict[str, tuple[Path, Path]], run_client: RunClient
) -> None:
    import torch

    prompts, given, expected = fifty
    found, tokens = run_client("llama-cpp", SCRIPT, exports[kind][1], json.dumps(given), "12", json.dumps(prompts))
    assert [row[:64] for row in tokens] == given
    same = sum(got == wanted[: len(got)] for (got, _), (wanted, _) in zip(found, expected, strict=True))
    largest = max(
        float((torch.tensor(logs) - wanted[: len(logs)]).abs().max())
        for (_, logs), (_, wanted) in zip(found, expected, strict=True)
    )
    assert largest < limit and (same == 50 if kind == "f32" else same > 40), (largest, same)
    figures.note("xllamacpp", f"the GGUF export of stories260K, {kind}", "log probabilities", largest, "llama-cpp")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "llama3", "qwen2", "f32"])
def test_texts_become_the_same_tokens(name: str, exports: dict[str, tuple[Path, Path]], run_client: RunClient) -> None:
    from tokenizers import Tokenizer

    folder, export = exports[name]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    _, tokens = run_client("llama-cpp", SCRIPT, export, "[]", "0", json.dumps(texts()))
    wrong = [text for text, found in zip(texts(), tokens, strict=True) if found != tokenizer.encode(text).ids]
    assert not wrong


DRAWN = """
import json, sys, urllib.request
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel = sys.argv[1] + "/model.gguf", 128, 1
server = xllamacpp.Server(params)
body = json.dumps({"prompt": "Once", "n_predict": 1}).encode()
request = urllib.request.Request(server.listening_address + "/completion", body, {"content-type": "application/json"})
print(json.dumps(json.loads(urllib.request.urlopen(request).read())["generation_settings"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("own", "wanted"),
    [
        ({}, {"temperature": 0, "repeat_penalty": 1}),
        ({"do_sample": True, "temperature": 0.5}, {"temperature": 0.5, "top_k": 50, "top_p": 1, "min_p": 0}),
        ({"repetition_penalty": 1.5}, {"temperature": 0, "repeat_penalty": 1.5, "repeat_last_n": -1}),
    ],
)
def test_a_server_draws_tokens_as_the_folder_says(
    own: dict[str, Any], wanted: dict[str, Any], tmp_path: Path, run_client: RunClient
) -> None:
    from transformers import AutoModelForCausalLM

    folder, export = tmp_path / "model", tmp_path / "export"
    shutil.copytree(shared_folder() / "assets/stories260K-hf", folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, **own}))
    export.mkdir()
    write_gguf(export, AutoModelForCausalLM.from_pretrained(folder), folder, "f16")
    found = run_client("llama-cpp", DRAWN, export)
    assert {name: found[name] for name in wanted} == wanted
