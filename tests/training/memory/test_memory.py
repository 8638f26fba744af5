"""What training takes of a device's memory: traced, and refused where a device has less."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.products import sampled
from tests.training.run_stage import files_of, run_stage, traced_and_trained
from tests.training.toys import BERT, LLAMA, packed_classes, packed_lm, scratch
from trnflow.tasks.artifact import Artifact, Input, Source
from trnflow.tasks.errors import MachineError, ModelError
from trnflow.tasks.precompile import precompile
from trnflow.tasks.stage import Workdir, read_json, stage_of
from trnflow.tasks.train import TrainConfig, train
from trnflow.tasks.training.memory.device_fit import fit_to_device
from trnflow.tasks.training.memory.estimate import GIB, Memory, check_memory
from trnflow.tasks.training.memory.micro_batch import candidates, largest_fitting
from trnflow.tasks.training.memory.trace_process import _trace, trace_in_process
from trnflow.tasks.training.memory.traced_memory import Untraceable, trace_memory
from trnflow.tasks.training.model.build import build

WIDE: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 4, "num_attention_heads": 4}
MODELS: dict[str, dict[str, Any]] = {
    "bert": {"model_type": "bert", **WIDE},
    "bert without dropout": {**BERT, **WIDE, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "distilbert": {"model_type": "distilbert", "dim": 64, "hidden_dim": 160, "n_layers": 4, "n_heads": 4},
    "llama": {"model_type": "llama", **WIDE},
    "grouped llama": {"model_type": "llama", **WIDE, "num_key_value_heads": 2},
    "qwen3": {"model_type": "qwen3", **WIDE, "num_key_value_heads": 2, "head_dim": 16},
}
LAYOUTS: list[dict[str, Any]] = [
    {},
    {"dtype": "bfloat16"},
    {"remat": True},
    {"remat": 2, "micro_batch": 2},
    {"devices": 2, "tensor_parallel_size": 2},
    {"devices": 2, "tensor_parallel_size": 2, "sequence_parallel": True},
]
ROUNDED: dict[str, Any] = {"dtype": "bfloat16", "stochastic_rounding": True}
DEVICES: dict[str, Any] = {"engine": "native", "devices": 4, "global_batch": 8}


def row_meta(length: int, vocabulary: int = 64) -> dict[str, Any]:
    ids = {"pad_id": 0, "bos_id": 1, "eos_id": 2}
    return {"task": "causal_lm", "lengths": [length], "labels": None, "vocab_size": vocabulary, **ids}


def rows(kind: str, folder: Path, length: int = 64) -> Input:
    if kind in ("bert", "bert without dropout", "distilbert"):
        return packed_classes(folder, lengths=[length], rows=8)
    return packed_lm(folder, length=length, rows=8)


def quiet(folder: Path) -> Workdir:
    for part in ("out", "scratch"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    return Workdir(folder / "out", folder / "scratch", lambda event: None)


@sampled("kind, layout", [*MODELS], LAYOUTS)
def test_every_family_is_traced_in_every_layout(kind: str, layout: dict[str, Any], tmp_path: Path) -> None:
    """Parameters and AdamW's moments are those of the real model; the peak is at least as large as the update."""
    config = TrainConfig(**{"engine": "native", "global_batch": 8, **layout})
    model, packed = scratch(**MODELS[kind]), rows(kind, tmp_path / "packed")
    memory = trace_memory(config, model, packed.meta)
    numbers = sum(p.numel() for p in build(model, packed, seed=0, weights=False).parameters().values())
    assert numbers / config.tensor_parallel_size <= memory.optimizer / 8 <= numbers
    assert memory.parameters == memory.optimizer // 8 * (6 if config.keeps_masters else 4)
    assert memory.gradients + memory.activations >= memory.optimizer / 2
    if config.remat:
        whole = trace_memory(config.model_copy(update={"remat": False}), model, packed.meta)
        assert memory.total <= whole.total


def test_sharding_and_smaller_batches_never_take_more() -> None:
    def total(micro: int | None, **fields: Any) -> int:
        config = TrainConfig(**{**DEVICES, "micro_batch": micro, **fields})
        return trace_memory(config, scratch(**MODELS["llama"]), row_meta(256, 1000)).total

    plain = {micro: total(micro) for micro in (1, 2, None)}
    assert plain[1] <= plain[2] <= plain[None]
    for micro, most in plain.items():
        for less in ({"zero1": True}, {"fsdp": True}, {"remat": True}):
            assert total(micro, **less) <= most, (micro, less)
        assert total(micro, devices=8, tensor_parallel_size=2) < most


def test_the_update_of_a_small_batch_takes_sixteen_bytes_a_parameter_in_fp32_and_twenty_in_bf16(tmp_path: Path) -> None:
    """In bf16 without masters it is sixteen again: weights of two, moments of eight, gradients of two and as fp32 four."""
    large = {**MODELS["llama"], "hidden_size": 256, "intermediate_size": 640}
    model, packed = scratch(**large), packed_lm(tmp_path, length=16, rows=1)
    kinds = {"float32": {}, "bfloat16": {"dtype": "bfloat16"}, "float16": {"dtype": "float16"}, "rounded": ROUNDED}
    for kind, size in (("float32", 16), ("bfloat16", 20), ("float16", 20), ("rounded", 16)):
        config = TrainConfig(engine="native", global_batch=1, **kinds[kind])
        memory = trace_memory(config, model, packed.meta)
        assert memory.activations < memory.gradients / 10
        parameters = 2 * 64 * 256 + 4 * (4 * 256 * 256 + 3 * 256 * 640 + 2 * 256) + 256
        assert memory.total - memory.runtime == pytest.approx(size * parameters, rel=0.01)


@pytest.mark.parametrize("layout", [{}, {"zero1": True}, {"fsdp": True}, {"tensor_parallel_size": 2}], ids=str)
def test_stochastic_rounding_saves_the_masters_of_each_rank(layout: dict[str, Any]) -> None:
    meta = row_meta(64, 64)
    model, config = scratch(**MODELS["llama"]), TrainConfig(**{**DEVICES, **layout, "dtype": "bfloat16"})
    found = [trace_memory(one, model, meta) for one in (config, config.model_copy(update=ROUNDED))]
    # FSDP's fp32 shards are parameters and masters at once, in place of bf16 shards, and their gradients are in fp32
    sharded = layout.keys() & {"zero1", "fsdp"}
    share = 4 if sharded else 2
    assert found[0].parameters - found[1].parameters == found[0].optimizer // share == found[1].optimizer // share
    assert (found[0].gradients == found[1].gradients) or sharded


def test_fsdp_holds_its_share_and_gathers_what_lies_outside_the_layers_and_two_layers(tmp_path: Path) -> None:
    """As PyTorch's FSDP2, which gathers the next layer while one computes."""
    config = TrainConfig(**DEVICES, fsdp=True)
    model, meta = scratch(**MODELS["llama"], tie_word_embeddings=False), row_meta(2048)
    memory = trace_memory(config, model, meta)
    shapes = build(model, packed_lm(tmp_path), seed=0, weights=False).parameters()
    layer = sum(value.numel() for name, value in shapes.items() if "layers.1." in name)
    outside = sum(value.numel() for name, value in shapes.items() if "layers." not in name)
    assert memory.at == "the backward pass"
    assert memory.parameters == 4 * ((outside + 4 * layer) // 4 + outside + 2 * layer)


def test_engine_xla_s_sums_count_whole_on_each_replica_though_zero1_splits_the_state() -> None:
    """They are reduced once an update."""
    meta = row_meta(2048, 1000)
    whole, split = (
        trace_memory(
            TrainConfig(devices=4, zero1=zero1, global_batch=8, micro_batch=1), scratch(**MODELS["llama"]), meta
        )
        for zero1 in (False, True)
    )
    assert split.at == "the backward pass"
    assert split.gradients == whole.gradients == whole.parameters and split.optimizer < whole.optimizer


def test_frozen_parameters_have_neither_gradient_nor_state(tmp_path: Path) -> None:
    plain = TrainConfig(engine="native", global_batch=1)
    lora = TrainConfig(engine="native", global_batch=1, method="lora", lora={"rank": 8, "targets": ["q_proj"]})
    source, packed = scratch(**MODELS["llama"]), packed_lm(tmp_path, length=16, rows=1)
    whole, part = (trace_memory(config, source, packed.meta) for config in (plain, lora))
    trained = 4 * 8 * (64 + 64)  # layers x rank x (inputs + outputs)
    assert (part.parameters, part.optimizer) == (whole.parameters + 4 * trained, 8 * trained)


def test_a_moving_average_takes_four_bytes_a_trained_parameter_and_noise_a_pass_s_embeddings(tmp_path: Path) -> None:
    packed = packed_lm(tmp_path / "packed", length=64, rows=8)
    config = TrainConfig(engine="native", global_batch=8)
    plain, averaged, noisy = (
        trace_memory(config.model_copy(update=fields), scratch(**LLAMA), packed.meta)
        for fields in ({}, {"ema_decay": 0.9}, {"neftune_noise_alpha": 5.0})
    )
    assert averaged.optimizer == plain.optimizer * 3 // 2 and averaged.gradients == plain.gradients
    assert noisy.total >= plain.total


def test_dora_s_and_saved_parts_count_what_they_train(tmp_path: Path) -> None:
    packed = packed_lm(tmp_path / "packed", length=64, rows=8)

    def traced(**fields: Any) -> Memory:
        lora = {"targets": ["q_proj"], **fields}
        config = TrainConfig.model_validate({"engine": "native", "global_batch": 8, "method": "lora", "lora": lora})
        return trace_memory(config, scratch(**LLAMA), packed.meta)

    plain = traced()
    assert traced(use_dora=True).optimizer == plain.optimizer + 2 * 8 * 32
    assert traced(modules_to_save=["embed_tokens"]).optimizer == plain.optimizer + 8 * 64 * 32


def test_a_family_without_rules_of_ours_is_traced(tmp_path: Path) -> None:
    model, packed = scratch(model_type="gpt2", n_embd=32, n_layer=2, n_head=2), packed_lm(tmp_path)
    found = trace_memory(TrainConfig(engine="native", global_batch=8), model, packed.meta)
    assert found.total > found.runtime


@pytest.mark.parametrize("fields", [{"keep_best": True}, {"early_stopping_patience": 2}], ids=str)
def test_the_copy_of_the_best_counts_where_the_host_is_the_device(fields: dict[str, Any], tmp_path: Path) -> None:
    """Masters and both moments, fp32."""
    model, packed = scratch(**MODELS["llama"]), packed_lm(tmp_path / "packed", rows=8)
    plain, best = TrainConfig(engine="native", global_batch=8), TrainConfig(engine="native", global_batch=8, **fields)
    numbers = sum(parameter.numel() for parameter in build(model, packed, seed=0, weights=False).parameters().values())
    more, less = (trace_memory(config, model, packed.meta) for config in (best, plain))
    assert more.best == 3 * 4 * numbers == more.total - less.total
    assert less.best == 0
    gpu = trace_memory(best.model_copy(update={"device": "cuda"}), model, packed.meta)
    assert gpu.best == 0, "there the copy lies in the host's memory"


def test_what_does_not_fit_is_refused_with_the_numbers_and_what_helps(tmp_path: Path) -> None:
    config = TrainConfig(**DEVICES, device_memory_gib=0.5)
    inputs: dict[str, Any] = {"model": scratch(**MODELS["llama"]), "packed": packed_lm(tmp_path / "packed", rows=8)}
    with pytest.raises(
        ModelError, match=r"needs about 0\.7 GiB on each device, which has 0\.5 .*runtime 0\.7"
    ) as caught:
        precompile(config, **inputs, out=quiet(tmp_path))
    for remedy in ("train.zero1=true", "tensor_parallel_size", "LoRA", "allow_overcommit=true"):
        assert remedy in caught.value.fix
    regardless = config.model_copy(update={"allow_overcommit": True})
    assert precompile(regardless, **inputs, out=quiet(tmp_path))["memory"]["total"] > GIB / 2
    check_memory(config, Memory(GIB, GIB, GIB, GIB, 0, "the update"), None)


def test_the_memory_of_a_device_reaches_neither_key_nor_artifact(tmp_path: Path) -> None:
    """But for micro_batch auto, which it decides."""
    inputs: dict[str, Any] = {"model": scratch(**MODELS["llama"]), "packed": packed_lm(tmp_path / "packed", rows=8)}
    found = []
    for memory in (1.0, 2.0):
        config = TrainConfig(**DEVICES, device_memory_gib=memory)
        meta = precompile(config, **inputs, out=quiet(tmp_path / str(memory)))
        document = read_json(tmp_path / str(memory) / "out" / "graphs.json")
        assert {name: meta[name] for name in ("memory", "micro_batch")}.items() <= document.items()
        found.append((meta, document, stage_of(precompile).params(config), stage_of(precompile).accel(config)))
    assert found[0] == found[1]
    accels = [
        stage_of(precompile).accel(TrainConfig(micro_batch="auto", device_memory_gib=memory)) for memory in (1.0, 2.0)
    ]
    assert accels[0] != accels[1]


def test_auto_is_the_largest_divisor_that_fits_and_runs() -> None:
    config = TrainConfig(**{**DEVICES, "devices": 2, "global_batch": 24}, micro_batch="auto")
    assert [one.replica_batch for one in candidates(config)] == [12, 6, 4, 3, 2, 1]
    assert [one.accumulation for one in candidates(config)] == [1, 2, 3, 4, 6, 12]

    def memory_of(one: TrainConfig) -> Memory:
        return Memory(0, 0, 0, one.replica_batch, 0, "the backward pass")

    assert largest_fitting(config, memory_of, 5).replica_batch == 4
    assert largest_fitting(config, memory_of, 100, lambda one: one.replica_batch < 4).replica_batch == 3
    assert largest_fitting(config, memory_of, 5, lambda one: one.replica_batch > 4).replica_batch == 1
    assert largest_fitting(config, lambda one: None, None).replica_batch == 12
    assert largest_fitting(config.with_micro_batch(2), memory_of, 100).replica_batch == 2


def test_train_is_keyed_by_what_auto_is() -> None:
    model, packed = scratch(**BERT), Artifact("sha256:1", "packed", {}, ())
    graphs = [Artifact(f"sha256:{n}", "graphs", {"micro_batch": n}, ()) for n in (2, 3)]
    config = TrainConfig(micro_batch="auto")
    keyed = [stage_of(train).inputs(config, {"model": model, "packed": packed, "graphs": one}) for one in graphs]
    assert [one["micro_batch"] for one in keyed] == [2, 3]
    assert "micro_batch" not in stage_of(train).inputs(config, {"model": model, "packed": packed})


def test_auto_trains_as_what_it_is(tmp_path: Path) -> None:
    """Probed in a process of its own, found again, and the same bytes as when the recipe says it."""
    inputs: dict[str, Any] = {"model": scratch(**LLAMA), "packed": packed_lm(tmp_path / "packed", rows=16)}
    fields: dict[str, Any] = {"engine": "native", "global_batch": 8, "max_steps": 2, "threads": 1}
    config = TrainConfig(**fields, micro_batch="auto", device_memory_gib=16)
    found = run_stage(traced_and_trained, config, tmp_path / "auto", **inputs)
    plain = run_stage(traced_and_trained, TrainConfig(**fields, micro_batch=8), tmp_path / "plain", **inputs)
    assert files_of(found.artifact) == files_of(plain.artifact)


def test_a_probe_that_takes_too_much_lowers_auto(tmp_path: Path) -> None:
    """A process with torch takes more than the estimate of so small a model allows for."""
    inputs: tuple[Source, Input] = (scratch(**LLAMA), packed_lm(tmp_path / "packed", rows=2))
    config = TrainConfig(engine="native", global_batch=2, micro_batch="auto", device_memory_gib=0.72, threads=1)
    settled, memory = fit_to_device(config, *inputs, quiet(tmp_path))
    assert memory is not None and memory.total < 0.72 * GIB
    assert settled.replica_batch == 1


def test_the_sums_of_several_passes_count_in_fp32_in_place_of_gradients_in_bf16() -> None:
    """Long rows, whose passes take more than the update."""
    meta = row_meta(2048, 64)
    fields: dict[str, Any] = {"engine": "native", "dtype": "bfloat16", "global_batch": 8}
    several = trace_memory(TrainConfig(**fields, micro_batch=2), scratch(**MODELS["llama"]), meta)
    assert several.at == "the backward pass"
    assert several.gradients == several.optimizer // 2 > 0  # AdamW keeps two moments in fp32


def test_a_child_process_traces_what_this_one_does(tmp_path: Path) -> None:
    config = TrainConfig(engine="native", global_batch=8)
    model, meta = scratch(**LLAMA), row_meta(64)
    found = trace_in_process(config, model, meta, None)
    assert (found.memory, found.micro_batch) == (trace_memory(config, model, meta), 8)
    auto = config.model_copy(update={"micro_batch": "auto"})
    assert trace_in_process(auto, model, meta, 1).micro_batch == 1
    split = TrainConfig(engine="native", devices=8, tensor_parallel_size=8, global_batch=8)
    with pytest.raises(ModelError, match="tensor_parallel_size"):
        trace_in_process(split, model, meta, None)


def test_a_trace_has_limits_of_memory_and_time(tmp_path: Path) -> None:
    config, deep = TrainConfig(engine="native", global_batch=8), scratch(**{**LLAMA, "num_hidden_layers": 10_000})
    with pytest.raises(MachineError, match=r"traced took .* more than the 0\.5 GiB it may take"):
        trace_in_process(config, deep, row_meta(64), None, memory_gib=0.5)
    begun = time.monotonic()
    with pytest.raises(MachineError, match="traced took longer than the 2 seconds"):
        trace_in_process(config, deep, row_meta(64), None, seconds=2)
    assert time.monotonic() - begun < 60


def test_a_model_whose_code_needs_values_is_not_guessed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from transformers import LlamaForCausalLM

    forward = LlamaForCausalLM.forward

    def needs_values(self: Any, input_ids: Any, **more: Any) -> Any:
        assert int(input_ids.sum()) >= 0
        return forward(self, input_ids, **more)

    monkeypatch.setattr(LlamaForCausalLM, "forward", needs_values)
    config = TrainConfig(engine="native", global_batch=8)
    with pytest.raises(Untraceable, match="its memory is not known") as caught:
        trace_memory(config, scratch(**LLAMA), row_meta(64))
    assert _trace(config, scratch(**LLAMA), row_meta(64), None) == (0, None, caught.value.message)
    packed = packed_lm(tmp_path / "packed", rows=8)
    assert fit_to_device(config, scratch(**LLAMA), packed, quiet(tmp_path)) == (config, None)
