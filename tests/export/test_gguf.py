"""The GGUF export, read by the package gguf; what it can't hold is refused by name. llama.cpp opens it in tests/clients."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers import small_models
from trnflow.tasks.artifact import Meta
from trnflow.tasks.errors import ModelError
from trnflow.tasks.export.config import ExportConfig
from trnflow.tasks.export.gguf import FAMILIES, refuse_family
from trnflow.tasks.export.gguf_tokenizer import end_roles, write_tokenizer
from trnflow.tasks.export.sampling import sampling_of
from trnflow.tasks.export_neuron import export_neuron, needs

LLAMA = {"model_type": "llama", "hidden_act": "silu", "max_position_embeddings": 64}
GEMMA = {"model_type": "gemma2", "head_dim": 16, "layer_types": ["sliding_attention", "full_attention"]}


def byte_level(folder: Path) -> None:
    """A byte-level BPE with one merge."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: number for number, text in enumerate(["<s>", "</s>", *letters, "ab"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
    (folder / "chat_template.jinja").write_text("{{ messages }}")


@pytest.mark.parametrize("kind", ["f32", "f16", "q8_0"])
def test_the_file_says_all_that_its_reader_needs(kind: Any, tmp_path: Path) -> None:
    import gguf
    import torch

    (tmp_path / "model").mkdir()
    byte_level(tmp_path / "model")
    weights = small_models.llama(tmp_path / "model", tied=False)
    config = ExportConfig(target="gguf", gguf_type=kind)
    metas = [export_neuron(config, weights, out=small_models.workdir(tmp_path / name)) for name in ("a", "b")]
    assert metas[0] == metas[1] and (metas[0]["target"], metas[0]["max_difference"]) == ("gguf", None)
    files = [tmp_path / name / "model.gguf" for name in ("a", "b")]
    assert len({hashlib.sha256(file.read_bytes()).hexdigest() for file in files}) == 1
    read = gguf.GGUFReader(files[0])
    facts = {name: field.contents() for name, field in read.fields.items()}
    assert facts["llama.attention.head_count_kv"] == 2 and facts["llama.context_length"] == 64
    assert facts["tokenizer.chat_template"] == "{{ messages }}" and facts["tokenizer.ggml.merges"] == ["a b"]
    assert (facts["tokenizer.ggml.bos_token_id"], facts["tokenizer.ggml.eos_token_id"]) == (0, 1)
    assert facts["general.sampling.temp"] == 0, "llama.cpp would draw what was evaluated greedily"
    assert "PARAMETER temperature 0\nPARAMETER repeat_penalty 1\n" in (tmp_path / "a/Modelfile").read_text()
    tensors = {tensor.name: tensor for tensor in read.tensors}
    assert tensors["output.weight"].tensor_type.name == kind.upper()
    assert tensors["output_norm.weight"].tensor_type.name == "F32"
    from safetensors.torch import load_file

    trained = load_file(tmp_path / "model/model.safetensors")
    # llama.cpp rotates neighbours of a head's eight numbers, transformers halves
    pairs = [8 * head + half + at for head in range(4) for at in range(4) for half in (0, 4)]
    layer = "model.layers.0.self_attn"
    wanted = {"output": trained["lm_head.weight"], "blk.0.attn_q": trained[f"{layer}.q_proj.weight"][pairs],
              "blk.0.attn_k": trained[f"{layer}.k_proj.weight"][pairs[:16]],
              "blk.0.attn_v": trained[f"{layer}.v_proj.weight"]}  # fmt: skip
    for name, value in wanted.items():
        stored = torch.from_numpy(
            gguf.dequantize(tensors[f"{name}.weight"].data, tensors[f"{name}.weight"].tensor_type).copy()
        )
        assert torch.allclose(stored, value, atol={"f32": 0, "f16": 1e-3, "q8_0": 1e-2}[kind])


@pytest.mark.parametrize(
    "config, lacks",
    [
        ({"model_type": "gpt_neox"}, "the model's type is gpt_neox"),
        ({**LLAMA, "sliding_window": 16}, "a window of 16 tokens"),
        ({**LLAMA, "rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}}, "positions scaled by yarn"),
        ({"model_type": "qwen2", "rope_parameters": {"rope_type": "llama3"}}, "positions scaled by llama3"),
        ({**LLAMA, "hidden_act": "gelu"}, "the activation gelu"),
        ({"model_type": "gemma", "tie_word_embeddings": False}, "an output layer of its own"),
        ({**GEMMA, "layer_types": ["full_attention"] * 2}, "windows in other layers than 1 of 2"),
        ({**GEMMA, "query_pre_attn_scalar": 8}, "query_pre_attn_scalar 8"),
    ],
)
def test_what_llama_cpp_can_not_compute_is_refused_before_anything(config: Meta, lacks: str) -> None:
    sources: Any = {"model": SimpleNamespace(identity={"config": {"pretrained": config, "overrides": {}}})}
    known: Any = SimpleNamespace(sources=sources, here=None, of=lambda role: {})
    with pytest.raises(ModelError, match=lacks) as caught:
        list(needs(ExportConfig(target="gguf"), known))
    assert "export.target" in caught.value.fix


def test_what_llama_cpp_computes_is_taken() -> None:
    for family in FAMILIES:
        refuse_family({"model_type": family})
    refuse_family({**LLAMA, "sliding_window": 64, "rope_parameters": {"rope_type": "llama3"}})
    refuse_family({**GEMMA, "query_pre_attn_scalar": 16})
    refuse_family({"model_type": "gemma2", "num_hidden_layers": 46, "hidden_size": 4608, "num_attention_heads": 32,
                   "head_dim": 128, "query_pre_attn_scalar": 144})  # fmt: skip


def test_a_classifier_is_refused_before_anything() -> None:
    sources: Any = {"model": SimpleNamespace(identity={"config": {"pretrained": LLAMA, "overrides": {}}})}
    known: Any = SimpleNamespace(sources=sources, here=None, of=lambda role: {"task": "classification"})
    with pytest.raises(ModelError, match="is for language models, and the task is classification"):
        list(needs(ExportConfig(target="gguf"), known))


@pytest.mark.parametrize(
    "change, why",
    [
        ({"model": {"type": "WordPiece"}}, "type BPE, and the model's is WordPiece"),
        ({"normalizer": {"type": "Lowercase"}}, "Lowercase, ByteLevel"),
        ({"pre_tokenizer": None}, "by nothing"),
    ],
)
def test_another_tokenizer_is_refused(change: Meta, why: str, tmp_path: Path) -> None:
    import gguf

    byte_level(tmp_path)
    document = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(document | change))
    writer = gguf.GGUFWriter(None, "llama")
    with pytest.raises(ModelError, match=why) as caught:
        write_tokenizer(gguf, writer, tmp_path, 300, [])
    assert "tokenize.train.kind=bpe" in caught.value.fix


def test_numbers_beyond_float16_are_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    (tmp_path / "model").mkdir()
    byte_level(tmp_path / "model")
    weights = small_models.llama(tmp_path / "model")
    stored = load_file(tmp_path / "model/model.safetensors")
    stored["model.layers.0.mlp.up_proj.weight"][0, 0] = 1e6
    save_file(stored, tmp_path / "model/model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"model.layers.0.mlp.up_proj.weight has numbers beyond float16") as caught:
        export_neuron(ExportConfig(target="gguf"), weights, out=small_models.workdir(tmp_path / "out"))
    assert caught.value.fix == "set export.gguf_type=f32"


@pytest.mark.parametrize(
    ("eos", "stops", "is_written", "roles", "left"),
    [
        (2, [2], False, {"eos": 2}, []),
        (2, [513, 1, 2], False, {"eos": 2, "eot": 513, "eom": 1}, []),
        (None, [7], False, {"eos": 7}, []),
        (2, [], False, {"eos": 2}, []),
        # three ends of answers; that of the tokenizer ends none, and stays where llama.cpp writes it
        (2, [7, 8, 9], False, {"eos": 7, "eot": 8, "eom": 9}, [2]),
        (2, [7, 8, 9], True, {"eos": 2, "eot": 7, "eom": 8}, [9]),
        (None, [7, 8, 9, 10, 11], False, {"eos": 7, "eot": 8, "eom": 9}, [10, 11]),
    ],
)
def test_the_ends_of_answers_get_the_three_roles(
    eos: int | None, stops: list[int], is_written: bool, roles: dict[str, int], left: list[int]
) -> None:
    assert end_roles(eos, stops, is_written=is_written) == (roles, left)


def test_how_tokens_are_drawn_is_that_of_transformers_and_its_defaults() -> None:
    from transformers import GenerationConfig

    greedy = GenerationConfig(temperature=0.6, top_p=0.9)
    assert sampling_of(greedy) == {"temperature": 0.0, "repeat_penalty": 1.0}
    drawn = GenerationConfig(do_sample=True, temperature=0.6, top_p=0.9, repetition_penalty=1.05)
    assert sampling_of(drawn) == {
        "temperature": 0.6, "top_k": 50, "top_p": 0.9, "min_p": 0.0, "repeat_penalty": 1.05, "repeat_last_n": -1,
    }  # fmt: skip
    assert GenerationConfig._get_default_generation_params()["top_k"] == 50
    assert sampling_of(GenerationConfig(do_sample=True, top_k=0))["top_k"] == 0, "among all"


def test_of_two_merges_that_make_one_piece_the_first_gives_its_score(tmp_path: Path) -> None:
    """llama.cpp joins what has the highest score first; of SentencePiece's tokenizers most pieces have several merges."""
    import gguf
    from tokenizers import Tokenizer, models

    vocabulary = {text: number for number, text in enumerate(["<unk>", "a", "b", "c", "ab", "bc", "abc"])}
    merges = [("b", "c"), ("a", "bc"), ("a", "b"), ("ab", "c")]
    Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True)).save(
        str(tmp_path / "tokenizer.json")
    )
    writer = gguf.GGUFWriter(None, "llama")
    write_tokenizer(gguf, writer, tmp_path, 7, [])
    scores = writer.kv_data[0]["tokenizer.ggml.scores"].value
    assert scores == [-1e6] * 4 + [-3, -1, -2]
