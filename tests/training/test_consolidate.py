"""Sharded checkpoints become folders that transformers loads as they were trained."""

from __future__ import annotations

import ast
import json
import shutil
from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from tests.helpers.checkpoints import NOTHING, checkpoint
from tests.helpers.small_models import workdir
from tests.training.run_stage import files_of, run_stage
from tests.training.toys import BERT, LLAMA, packed_classes, packed_lm
from trnflow.tasks.artifact import Artifact
from trnflow.tasks.consolidate import ConsolidateConfig, _grouped, consolidate
from trnflow.tasks.errors import ModelError
from trnflow.tasks.stage import read_json, stage_of, write_json
from trnflow.tasks.training.shared_types import PARAMETER


def test_a_classifier_comes_back_whole(tmp_path) -> None:
    from transformers import AutoModelForSequenceClassification

    shards, parameters = checkpoint(tmp_path, packed_classes(tmp_path / "packed"), **BERT)
    found = run_stage(consolidate, ConsolidateConfig(), tmp_path / "run", shards=shards, model=NOTHING).artifact
    assert found.meta["parameters"] == sum(value.numel() for value in parameters.values())
    model, info = AutoModelForSequenceClassification.from_pretrained(found.path, output_loading_info=True)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert all(torch.equal(value, parameters[name]) for name, value in model.named_parameters())
    assert model.config.id2label == {0: "red", 1: "green", 2: "blue"}
    assert (found.path / "tokenizer_config.json").exists() and not (found.path / "generation_config.json").exists()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_calibrated_classifier_says_the_same_with_other_probabilities(tmp_path, dtype: str) -> None:
    from transformers import AutoModelForSequenceClassification

    packed = packed_classes(tmp_path / "packed", validation=40)
    shards, parameters = checkpoint(tmp_path, packed, scale=8.0, **BERT)
    config = ConsolidateConfig(calibrate=True, dtype=dtype, max_shard_size="10KB")
    given = {"shards": shards, "model": NOTHING, "packed": packed}
    found = run_stage(consolidate, config, tmp_path / "run", **given).artifact
    by = found.meta["temperature"]
    assert by > 1.5  # a random model is right in a third, and sure
    model = AutoModelForSequenceClassification.from_pretrained(found.path)
    for name, value in model.named_parameters():
        wanted = parameters[name] / by if name.startswith("classifier.") else parameters[name]
        assert torch.equal(value, wanted.to(value.dtype)), name
    assert f"divided by {by}, which was chosen on validation rows" in (found.path / "README.md").read_text()
    plain = run_stage(consolidate, ConsolidateConfig(dtype=dtype), tmp_path / "plain", **given).artifact
    assert "temperature" not in plain.meta and "calibrated" not in (plain.path / "README.md").read_text()


def test_few_rows_of_validation_calibrate_nothing(tmp_path) -> None:
    packed = packed_classes(tmp_path / "packed", validation=9)
    shards, _ = checkpoint(tmp_path, packed, **BERT)
    given = {"shards": shards, "model": NOTHING, "packed": packed}
    run = run_stage(consolidate, ConsolidateConfig(calibrate=True), tmp_path / "run", **given)
    assert "temperature" not in run.artifact.meta
    assert any("a processor computes 18 rows of validation in time, of 20" in text for text in run.said("info"))


def test_a_tied_language_model_in_several_files(tmp_path) -> None:
    from transformers import AutoModelForCausalLM

    tied = {**LLAMA, "tie_word_embeddings": True}
    shards, parameters = checkpoint(tmp_path, packed_lm(tmp_path / "packed"), parts=4, **tied)
    config = ConsolidateConfig(dtype="bfloat16", max_shard_size="10KB")
    found = run_stage(consolidate, config, tmp_path / "run", shards=shards, model=NOTHING).artifact
    files = sorted(found.path.glob("model-*.safetensors"))
    index = read_json(found.path / "model.safetensors.index.json")
    assert len(files) > 2 and set(index["weight_map"]) == set(parameters)
    tensors = {file.name: load_file(file) for file in files}
    assert {name: file for file in tensors for name in tensors[file]} == index["weight_map"]
    sizes = [[tensor.nbytes for tensor in group.values()] for group in tensors.values()]
    assert all(sum(group) <= 10_000 or len(group) == 1 for group in sizes), sizes
    assert index["metadata"]["total_size"] == sum(map(sum, sizes))
    model = AutoModelForCausalLM.from_pretrained(found.path)
    assert model.dtype == torch.bfloat16 and model.lm_head.weight is model.model.embed_tokens.weight
    assert all(torch.equal(value, parameters[name].bfloat16()) for name, value in model.named_parameters())
    assert model.generation_config.eos_token_id == 2

    again = run_stage(consolidate, config, tmp_path / "again", shards=shards, model=NOTHING).artifact
    assert files_of(again) == files_of(found)


def test_the_published_type_can_be_that_of_the_base(tmp_path) -> None:
    shards, parameters = checkpoint(tmp_path, packed_lm(tmp_path / "packed"), **LLAMA)
    for said, dtype in (
        ({"torch_dtype": "bfloat16"}, torch.bfloat16),
        ({"dtype": "float16"}, torch.float16),
        ({}, torch.float32),
    ):
        identity = {**NOTHING.identity, "config": {"pretrained": said, "overrides": {}}}
        base, config = replace(NOTHING, identity=identity), ConsolidateConfig(dtype="base")
        made = run_stage(consolidate, config, tmp_path / str(dtype), shards=shards, model=base).artifact
        assert made.meta["dtype"] == str(dtype).removeprefix("torch.") == read_json(made.path / "config.json")["dtype"]
        assert all(
            torch.equal(value, parameters[name].to(dtype))
            for name, value in load_file(made.path / "model.safetensors").items()
        )


def test_a_lost_tensor_is_named(tmp_path) -> None:
    shards, _ = checkpoint(tmp_path, packed_classes(tmp_path / "packed"), **BERT)
    index = read_json(shards.path / "index.json")
    del index["tensors"][f"{PARAMETER}bert.pooler.dense.weight"]
    write_json(shards.path / "index.json", index)
    with pytest.raises(ModelError, match=r"missing keys bert\.pooler\.dense\.weight"):
        run_stage(consolidate, ConsolidateConfig(), tmp_path / "run", shards=shards, model=NOTHING)


def test_damaged_shards_and_weights_are_one_clear_error(tmp_path) -> None:
    shards, parameters = checkpoint(tmp_path, packed_classes(tmp_path / "packed"), **BERT)
    first, second = sorted(shards.path.glob("shard-*"))
    sound = second.read_bytes()

    def fails(message: str) -> None:
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        shutil.rmtree(tmp_path / "out-scratch", ignore_errors=True)
        with pytest.raises(ModelError, match=message):
            consolidate(ConsolidateConfig(), shards, NOTHING, out=workdir(tmp_path / "out"))

    second.write_bytes(sound[: len(sound) // 2])
    fails(rf"{second.name} in .* gives no ")
    second.unlink()
    fails(rf"{second.name} in .* gives no ")
    name = "bert.embeddings.word_embeddings.weight"
    save_file({PARAMETER + other: torch.zeros(*value.shape, 2) for other, value in parameters.items()}, second)
    fails(rf"{second.name} in .* is of another checkpoint")
    second.write_bytes(sound)
    held = load_file(first)
    held[PARAMETER + name][0, 0] = float("nan")
    save_file(held, first)
    fails(f"the weights {name} hold NaN or infinite numbers as float32")


def test_shapes_that_do_not_match_the_config_are_named(tmp_path) -> None:
    shards, _ = checkpoint(tmp_path, packed_classes(tmp_path / "packed"), **BERT)
    document = read_json(shards.path / "config.json")
    write_json(shards.path / "config.json", {**document, "vocab_size": 100})
    with pytest.raises(ModelError, match=r"mismatched keys bert\.embeddings\.word_embeddings\.weight"):
        consolidate(ConsolidateConfig(), shards, NOTHING, out=workdir(tmp_path / "out"))


def test_weights_that_overflow_in_the_forward_pass_are_refused(tmp_path) -> None:
    shards, _ = checkpoint(tmp_path, packed_lm(tmp_path / "packed"), **LLAMA)
    for shard in shards.path.glob("shard-*"):
        held = load_file(shard)
        held[f"{PARAMETER}lm_head.weight"].fill_(3e38)
        save_file(held, shard)
    with pytest.raises(ModelError, match="computes NaN or infinite logits in float32"):
        consolidate(ConsolidateConfig(), shards, NOTHING, out=workdir(tmp_path / "out"))


@pytest.mark.parametrize(
    ("size", "count"),
    [
        ("5GB", 5 * 10**9),
        ("1.5 MiB", 3 * 2**19),
        ("2gib", 2**31),
        ("10kb", 10_000),
        ("7 KiB", 7168),
        ("5", 0),
        ("huge", 0),
    ],
)
def test_sizes(size: str, count: int) -> None:
    if count:
        config = ConsolidateConfig(max_shard_size=size)
        assert config.max_shard_size == size
        assert [len(_grouped({"a": 1, "b": (count - more) // 4}, config, "float32")) for more in (4, 0)] == [1, 2]
    else:
        with pytest.raises(ValidationError, match="write a size such as 5GB"):
            ConsolidateConfig(max_shard_size=size)


TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def test_the_folder_tells_how_rows_were_formatted(tmp_path, bench) -> None:
    """What training did to a conversation, transformers does with the folder alone."""
    import pyarrow.parquet as pq
    from transformers import AutoTokenizer, GenerationConfig

    messages = [{"role": "user", "content": "where is the cat"}, {"role": "assistant", "content": "on the mat"}]
    for split in ("train", "validation"):
        (tmp_path / f"{split}.jsonl").write_text(f"{json.dumps({'messages': messages})}\n" * 4)
    rows = bench.rows(source=str(tmp_path))
    settings = {"task": "chat", "chat_template": TEMPLATE}
    texts = bench.texts(rows, **settings)
    scratch_model = {"config": {"model_type": "llama"}}
    tokens = bench.tokens(texts, scratch_model, max_length=48, train={"kind": "bpe", "vocab_size": 300})
    shards, _ = checkpoint(tmp_path, packed_lm(tmp_path / "packed"), **LLAMA)
    shutil.copytree(tokens.path / "tokenizer", shards.path / "tokenizer", dirs_exist_ok=True)
    config = ConsolidateConfig()
    inputs = {"shards": shards, "model": NOTHING, "texts": texts, "tokens": tokens}
    folder = run_stage(consolidate, config, tmp_path / "run", **inputs).artifact.path
    document = read_json(folder / "trnflow.json")
    assert (document["task"], document["max_length"]) == ("causal_lm", 48)
    assert document["rows"]["columns"] == document["rows"]["nested"] == ["messages"]
    assert document["rows"]["settings"].items() >= settings.items()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    (row,) = {str(row) for row in pq.read_table(texts.path / "train.parquet")["parts"].to_pylist()}
    trained = "".join(part["text"] for part in ast.literal_eval(row))
    assert tokenizer.apply_chat_template(messages, tokenize=False) == trained
    # what ends answers of train, most of them first, stops generating before what the config says
    ends = [{**tokens.meta["ends"][0], "id": 9}, *tokens.meta["ends"]]
    inputs["tokens"] = replace(tokens, meta={**tokens.meta, "ends": ends})
    folder = run_stage(consolidate, config, tmp_path / "ends", **inputs).artifact.path
    assert GenerationConfig.from_pretrained(folder).eos_token_id == [9, 2]


def test_other_format_settings_make_another_model(tmp_path) -> None:
    """The key holds what the file says, not the digest of all texts."""

    def keyed(style: str, digest: str) -> object:
        rows = {"settings": {"task": "instruction", "style": style}, "text": [], "columns": ["response"], "nested": []}
        texts = Artifact(digest, "texts", {"task": "causal_lm", "rows": rows}, ())
        tokens = Artifact(digest, "tokens", {"max_length": 48}, ())
        shards = Artifact("sha256:s", "checkpoint", {"method": "full"}, ())
        given = {"shards": shards, "model": NOTHING, "texts": texts, "tokens": tokens}
        return stage_of(consolidate).inputs(ConsolidateConfig(), given)

    assert keyed("dolly", "sha256:1") == keyed("dolly", "sha256:2") != keyed("alpaca", "sha256:1")
