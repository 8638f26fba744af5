"""`--on NAME`: any recipe on the hardware of a name; it wins over the recipe, and overrides win over it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.command_line import Shell
from trnflow.flows.recipes import recipe as settings
from trnflow.flows.recipes.files import hardware_names, recipe_names
from trnflow.tasks.errors import ConfigError

SMALL_BERT = (
    "{model_type: bert, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 16, "
    "max_position_embeddings: 32}"
)
SMALL_LLAMA = (
    "{model_type: llama, hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 4, num_key_value_heads: 4, "
    "intermediate_size: 64, max_position_embeddings: 64, vocab_size: 300}"
)


@pytest.mark.parametrize("hardware", [name for name in hardware_names() if name != "gpu"])
def test_every_recipe_moves_unless_its_batch_is_smaller_than_the_machine(hardware: str) -> None:
    for name in recipe_names():
        try:
            train = settings.load(name, [f"on={hardware}"]).train
        except ConfigError as error:
            is_native = name == "unpaired-preference" and "objective=kto is for engine native" in error.message
            assert is_native or (
                "global_batch" in error.message and hardware.removeprefix("ml.") in ("trn1.32xlarge", "trn2.48xlarge")
            )
        else:
            assert train.global_batch == settings.load(name).train.global_batch


def test_hardware_wins_over_the_recipe_and_overrides_win_over_it() -> None:
    recipe = settings.load("bert-emotion", ["train.epochs=1", "on=cpu", "train.micro_batch=2"])
    train = recipe.train
    assert (train.engine, train.device, train.devices, train.dtype) == ("native", "cpu", 1, "float32")
    assert (train.epochs, train.micro_batch, recipe.price_per_hour, recipe.hardware.memory_gib) == (1, 2, 0, None)
    assert settings.load("bert-emotion", ["train.dtype=bfloat16", "on=cpu"]).train.dtype == "bfloat16"


@pytest.mark.parametrize(("target", "moved"), [("onnx", "onnx"), ("none", "none"), ("neuron", "stablehlo")])
def test_an_export_that_any_machine_makes_stays(tmp_path: Path, target: str, moved: str) -> None:
    (tmp_path / "mine.yaml").write_text(f"extends: demo\nexport: {{target: {target}}}\n")
    assert settings.load(str(tmp_path / "mine.yaml"), ["on=g5.xlarge"]).export.target == moved
    assert settings.load(str(tmp_path / "mine.yaml"), ["on=cpu"]).export.target == moved


def test_the_layout_follows_the_devices() -> None:
    mesh = settings.load("llama2-7b-dolly-lora", ["on=cpu-mesh"]).train
    assert (mesh.devices, mesh.tensor_parallel_size, mesh.sequence_parallel, mesh.zero1) == (4, 4, True, False)
    gpu = settings.load("llama2-7b-dolly-lora", ["on=g5.xlarge"])
    assert (gpu.train.tensor_parallel_size, gpu.train.sequence_parallel, gpu.hardware.memory_gib) == (1, False, 22.4)
    assert settings.load("demo-llm", ["on=trn1.2xlarge"]).train.xla_processes == "per_device"
    assert settings.load("bert-imdb", ["on=p5.48xlarge"]).train.micro_batch == 2
    assert not settings.load("roberta-large-compiled", ["on=cpu-mesh"]).train.compile
    assert settings.load("roberta-large-compiled", ["on=ml.p3.2xlarge"]).train.dtype == "float32"


def test_moving_a_recipe_to_its_own_hardware_changes_no_training() -> None:
    for name, hardware in (("demo", "cpu-mesh"), ("demo-llm", "cpu-mesh"), ("bert-emotion", "trn1.2xlarge"),
                           ("llama2-7b-dolly", "trn1.32xlarge"), ("roberta-large-compiled", "g5.xlarge"),
                           ("distilbert-book-reviews", "g6.xlarge")):  # fmt: skip
        assert settings.load(name, [f"on={hardware}"]).to_json() == settings.load(name).to_json()


def test_unknown_hardware_suggests_the_nearest(trnflow: Shell) -> None:
    assert "did you mean g5.xlarge?" in trnflow.error("plan", "demo", "--on", "g5.xlrge", code=2)
    assert "there is no hardware ../../demo" in trnflow.error("plan", "demo", "--on", "../../demo", code=2)


def test_a_recipe_for_a_gpu_or_trainium_trains_here(trnflow: Shell) -> None:
    (trnflow.folder / "small.yaml").write_text(
        f"extends: bert-emotion\ndata: {{source: rows, labels: null}}\nmodel: {{source: null, config: {SMALL_BERT}}}\n"
        "tokenize: {max_length: 32, train: {vocab_size: 200}}\npack: {chunk_length: 32}\ntrain: {max_steps: 2}\n"
        "tracking: {enabled: false}\nexport: {length: 64}\n"
    )
    assert trnflow.json("config", "small.yaml", "--on", "cpu")["hardware"]["name"] == "this machine"
    done = trnflow.json("run", "small.yaml", "--on", "cpu", "--direct", "--until", "train")
    assert [stage["action"] for stage in done["stages"]] == ["ran"] * 6
    assert trnflow.json("explain", "small.yaml", "train", "on=cpu")["action"] == "hit"


def test_a_large_language_model_is_planned_on_virtual_devices(trnflow: Shell, tmp_path: Path) -> None:
    rows = '{"instruction": "say it", "context": "", "response": "it"}\n' * 8
    (tmp_path / "dolly.jsonl").write_text(rows)
    (tmp_path / "small.yaml").write_text(
        f"extends: llama2-7b-dolly\ndata: {{source: dolly.jsonl}}\nmodel: {{source: null, config: {SMALL_LLAMA}}}\n"
        "tokenize: {max_length: 64, train: {kind: bpe, vocab_size: 300}}\npack: {chunk_length: 64}\n"
        "tracking: {enabled: false}\nexport: {length: 64}\n"
    )
    for hardware in ("cpu", "cpu-mesh"):
        plan = trnflow.json("plan", "small.yaml", "--trace", "--on", hardware)
        assert plan["memory"]["fits"] and plan["stages"][0]["action"] == "run"
