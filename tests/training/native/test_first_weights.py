"""Each rank reads its own part of the weights, and trains what it would train with all of them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.counted_reads import Counting, count_reads
from tests.training.run_stage import ManyConfig, Result, files_of, run_stage, traced_and_trained
from tests.training.toys import BERT, LLAMA, VOCABULARY, packed_classes, packed_lm, pretrained, scratch
from tests.training.toys import saved as saved_model
from trnflow.tasks.artifact import Input, Meta, Source
from trnflow.tasks.errors import ModelError
from trnflow.tasks.stage import Workdir, stage
from trnflow.tasks.train import TrainConfig, ranks
from trnflow.tasks.train import environ as train_environ
from trnflow.tasks.training import fit
from trnflow.tasks.training.checkpoint.starting_weights import base_weights, starting_from
from trnflow.tasks.training.model.build import build
from trnflow.tasks.training.native.first_weights import FirstWeights
from trnflow.tasks.training.world import ALONE

COMMON: dict[str, Any] = {"engine": "native", "global_batch": 8, "epochs": 1, "learning_rate": 1e-2, "log_every": 1}
LORA: dict[str, Any] = {"method": "lora", "lora": {"rank": 2, "targets": "all-linear"}}
TP: dict[str, Any] = {"tensor_parallel_size": 2}


@stage(
    kind="checkpoint",
    environ=lambda config: train_environ(config.configs[0]),
    ranks=lambda config: ranks(config.configs[0]),
)
def trained_both_ways(config: ManyConfig, model: Source, packed: Input, out: Workdir) -> Meta:
    """Each config trained with parts of the weights, then with all of them read by transformers; and the bytes read."""
    meeting, parts = os.environ["TRNFLOW_RENDEZVOUS"], fit.reads_parts
    count_reads()
    for number, one in enumerate(config.configs):
        for way, reads in (("parts", parts), ("whole", lambda config: False)):
            fit.reads_parts, Counting.read = reads, 0
            os.environ["TRNFLOW_RENDEZVOUS"] = f"{meeting}-{number}-{way}"
            path, scratch = out.path / f"{way}-{number}", out.scratch / f"{way}-{number}"
            path.mkdir(exist_ok=True)
            scratch.mkdir(exist_ok=True)
            mine = Workdir(path, scratch, lambda event, way=way: out.emit({**event, "way": way}))  # type: ignore[misc]
            traced_and_trained(one, model, packed, mine)
            (out.path / f"read-{way}-{number}-{os.environ['RANK']}").write_text(str(Counting.read))
    return {}


def check(folder: Path, model: Source, packed: Input, *layouts: dict[str, Any], most: float) -> None:
    """most: the share of the files' tensors that a rank may read."""
    configs = [TrainConfig(**COMMON, **layout) for layout in layouts]
    found: Result = run_stage(
        trained_both_ways, ManyConfig(configs=tuple(configs)), folder / "run", model=model, packed=packed
    )
    made = files_of(found.artifact)
    size = sum(file.stat().st_size for file in (folder / "model").glob("*.safetensors"))
    for number, config in enumerate(configs):
        weights = {
            way: {name: data for name, data in made.items() if name.startswith(f"{way}-{number}/")}
            for way in ("parts", "whole")
        }
        assert [*weights["parts"].values()] == [*weights["whole"].values()], layouts[number]
        assert any(name.endswith(".safetensors") for name in weights["parts"])
        read = {
            way: [int(made[f"read-{way}-{number}-{rank}"]) / size for rank in range(config.devices)]
            for way in ("parts", "whole")
        }
        assert min(read["whole"]) > 0.9 and max(read["parts"]) < most, (layouts[number], read)


@pytest.mark.slow
def test_two_ranks_read_halves_and_train_the_same_bits(tmp_path: Path) -> None:
    model = saved_model(tmp_path / "model", **{**LLAMA, "hidden_size": 64, "intermediate_size": 192})
    two: dict[str, Any] = {"devices": 2}
    check(tmp_path, model, packed_lm(tmp_path / "packed"), {**two, "fsdp": True, "max_steps": 3}, most=0.6)


@pytest.mark.slow
def test_four_ranks_read_quarters_of_a_model_in_several_files(tmp_path: Path) -> None:
    import transformers

    torch.manual_seed(3)
    sizes = {**LLAMA, "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 4, "vocab_size": VOCABULARY}
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**sizes))
    model.to(torch.bfloat16).save_pretrained(tmp_path / "model", max_shard_size="200KB")
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 2
    four: dict[str, Any] = {"devices": 4, "max_steps": 3}
    check(
        tmp_path,
        pretrained(tmp_path / "model"),
        packed_lm(tmp_path / "packed"),
        {**four, **TP, "fsdp": True, **LORA},
        {**four, "tensor_parallel_size": 4, "sequence_parallel": True, "dtype": "bfloat16"},
        most=0.35,
    )


@pytest.mark.slow
def test_what_the_files_lack_is_as_random_as_ever(tmp_path: Path) -> None:
    """A head is not in the files; replicas read everything, and a rank's masters are its part."""
    model = saved_model(tmp_path / "model", task="classification", **BERT)
    packed = packed_classes(tmp_path / "packed")
    two: dict[str, Any] = {"devices": 2, "max_steps": 3}
    layouts = [{**two, "zero1": True, "dtype": "bfloat16"}, {**two, **TP}, {**two, "fsdp": True, "method": "head"}]
    check(tmp_path, model, packed, *layouts, most=3.0)


FAMILIES: dict[str, dict[str, Any]] = {
    "tied": {**LLAMA, "tie_word_embeddings": True},
    "mixtral": {
        **LLAMA,
        "model_type": "mixtral",
        "num_local_experts": 4,
    },  # an expert of each layer is a tensor in the files
    "gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64},
    "gpt_neox": {**BERT, "model_type": "gpt_neox"},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_one_process_places_what_transformers_loads(family: str, tmp_path: Path) -> None:
    source, packed = saved_model(tmp_path / "model", **FAMILIES[family]), packed_lm(tmp_path / "packed")
    loaded = build(source, packed, seed=0, weights=True)
    blank = build(source, packed, seed=0, weights=True, opens=lambda empty: base_weights(source, empty))
    assert all(set(parameter.stride()) <= {0} for parameter in blank.parameters().values())
    first = FirstWeights(blank, None, ALONE, torch.device("cpu"))
    shapes = {name: tuple(parameter.shape) for name, parameter in blank.parameters().items()}
    first.blank(dict.fromkeys(shapes, torch.float32))
    first.place({name: (None,) * len(shape) for name, shape in shapes.items()}, {})
    wanted = loaded.model.state_dict()
    placed = blank.model.state_dict()
    assert placed.keys() == wanted.keys() and all(torch.equal(placed[name], wanted[name]) for name in wanted)
    for name, buffer in loaded.model.named_buffers():
        assert torch.equal(blank.model.get_buffer(name), buffer)


def test_damage_is_named_before_training(tmp_path: Path) -> None:
    import transformers

    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**LLAMA, vocab_size=VOCABULARY)
    )
    model.save_pretrained(tmp_path / "model", max_shard_size="20KB")
    source, packed = pretrained(tmp_path / "model"), packed_lm(tmp_path / "packed")
    index = tmp_path / "model" / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    document["weight_map"]["model.layers.7.mlp.up_proj.weight"] = min(document["weight_map"].values())
    index.write_text(json.dumps(document))

    def opened(source: Source) -> None:
        build(source, packed, seed=0, weights=True, opens=lambda empty: base_weights(source, empty))

    with pytest.raises(
        ModelError, match=r"model-00001-of-\d+.safetensors lacks model.layers.7.mlp.up_proj.weight, which"
    ):
        opened(source)
    checkpoint = Input(tmp_path / "other", "checkpoint", {}, "sha256:0")
    from trnflow.tasks.training.checkpoint import shards
    from trnflow.tasks.training.shared_types import PARAMETER, TensorSlice

    shards.write(checkpoint.path, [TensorSlice(f"{PARAMETER}lm_head.weight", 0, (0,), (3,), torch.zeros(3))], {})
    with pytest.raises(ModelError, match="train.warm_start_from names a checkpoint of another model"):
        opened(starting_from(source, checkpoint))
    last = max((tmp_path / "model").glob("*.safetensors"))
    last.write_bytes(last.read_bytes()[:-9])
    with pytest.raises(ModelError, match=f"{last.name} is cut off: it holds"):
        opened(source)


@pytest.mark.process  # quick, where the others are not
def test_a_part_has_memory_of_its_own(tmp_path: Path) -> None:
    built = build(scratch(**BERT), packed_classes(tmp_path / "packed"), seed=0, weights=True)
    first = FirstWeights(built, None, ALONE, torch.device("cpu"))
    for name, parameter in built.parameters().items():
        part = first.part(name, (None,) * parameter.dim(), torch.float32)
        assert torch.equal(part, parameter) and part.data_ptr() != parameter.data_ptr(), name
