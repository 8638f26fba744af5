"""What training holds: counted from numbers alone, from a traced pass, and refused where a device has less."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.artifact import Artifact, Input, Source
from tasks.errors import ModelError
from tasks.precompile import precompile
from tasks.stage import Workdir, of, read_json
from tasks.train import TrainConfig, train
from tasks.training.estimates import of_model, of_numbers, settle
from tasks.training.fitting import candidates, fitting
from tasks.training.memory import GIB, Memory, check_memory
from tests.training.run_stage import files_of, run_stage, traced_and_trained
from tests.training.toys import BERT, LLAMA, packed_classes, packed_lm, scratch

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


def rows(kind: str, folder: Path, length: int = 64) -> Input:
    if kind in ("bert", "bert without dropout", "distilbert"):
        return packed_classes(folder, lengths=[length], rows=8)
    return packed_lm(folder, length=length, rows=8)


def quiet(folder: Path) -> Workdir:
    for part in ("out", "scratch"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    return Workdir(folder / "out", folder / "scratch", lambda event: None)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("kind", MODELS)
def test_numbers_alone_tell_what_the_traced_model_tells(kind: str, layout: dict[str, Any], tmp_path: Path) -> None:
    config = TrainConfig(**{"engine": "native", "global_batch": 8, **layout})
    model, packed = scratch(**MODELS[kind]), rows(kind, tmp_path / "packed")
    traced, numbers = of_model(config, model, packed, quiet(tmp_path)), of_numbers(config, model, packed.meta)
    assert traced is not None and numbers is not None
    assert numbers.total - numbers.runtime == pytest.approx(traced.total - traced.runtime, rel=0.1)
    assert (numbers.parameters, numbers.optimizer) == (traced.parameters, traced.optimizer)


@given(sharded=st.sampled_from([{"zero1": True}, {"fsdp": True}]), micro=st.sampled_from([1, 2, None]))
def test_sharding_and_smaller_batches_never_take_more(sharded: dict[str, Any], micro: int | None) -> None:
    meta = {"task": "causal_lm", "lengths": [256], "labels": None, "vocab_size": 1000}

    def total(**fields: Any) -> int:
        found = of_numbers(TrainConfig(**{**DEVICES, **fields}), scratch(**MODELS["llama"]), meta)
        assert found is not None
        return found.total

    assert total(**sharded, micro_batch=micro) <= total(micro_batch=micro)
    assert total(remat=True, micro_batch=micro) <= total(micro_batch=micro)
    assert total(micro_batch=micro, devices=8, tensor_parallel_size=2) < total(micro_batch=micro)
    assert total(micro_batch=1) <= total(micro_batch=2) <= total(micro_batch=None)


def test_the_update_of_a_small_batch_takes_sixteen_bytes_a_parameter_in_fp32_and_twenty_in_bf16(tmp_path: Path) -> None:
    """In bf16 without masters it is sixteen again: weights of two, moments of eight, gradients of two and as fp32 four."""
    large = {**MODELS["llama"], "hidden_size": 256, "intermediate_size": 640}
    model, packed = scratch(**large), packed_lm(tmp_path, length=16, rows=1)
    kinds = {"float32": {}, "bfloat16": {"dtype": "bfloat16"}, "rounded": ROUNDED}
    for kind, size in (("float32", 16), ("bfloat16", 20), ("rounded", 16)):
        config = TrainConfig(engine="native", global_batch=1, **kinds[kind])
        memory = of_model(config, model, packed, quiet(tmp_path))
        assert memory is not None and memory.activations < memory.gradients / 10
        parameters = 2 * 64 * 256 + 4 * (4 * 256 * 256 + 3 * 256 * 640 + 2 * 256) + 256
        assert memory.total - memory.runtime == pytest.approx(size * parameters, rel=0.01)


@pytest.mark.parametrize("layout", [{}, {"zero1": True}, {"fsdp": True}, {"tensor_parallel_size": 2}], ids=str)
def test_stochastic_rounding_saves_the_masters_of_each_rank(layout: dict[str, Any]) -> None:
    meta = {"task": "causal_lm", "lengths": [64], "labels": None, "vocab_size": 64}
    model, config = scratch(**MODELS["llama"]), TrainConfig(**{**DEVICES, **layout, "dtype": "bfloat16"})
    found = [of_numbers(one, model, meta) for one in (config, config.model_copy(update=ROUNDED))]
    assert found[0] is not None and found[1] is not None
    assert found[0].parameters - found[1].parameters == found[0].optimizer // 2 == found[1].optimizer // 2
    assert found[0].gradients == found[1].gradients


def test_frozen_parameters_have_neither_gradient_nor_state(tmp_path: Path) -> None:
    plain = TrainConfig(engine="native", global_batch=1)
    lora = TrainConfig(engine="native", global_batch=1, method="lora", lora={"rank": 8, "targets": ["q_proj"]})
    source, packed = scratch(**MODELS["llama"]), packed_lm(tmp_path, length=16, rows=1)
    whole, part = (of_model(config, source, packed, quiet(tmp_path)) for config in (plain, lora))
    assert whole is not None and part is not None
    trained = 4 * 8 * (64 + 64)  # layers x rank x (inputs + outputs)
    assert (part.parameters, part.optimizer) == (whole.parameters + 4 * trained, 8 * trained)
    assert of_numbers(lora, source, packed.meta) is None


def test_a_family_whose_numbers_are_not_known_is_traced(tmp_path: Path) -> None:
    model, packed = scratch(model_type="gpt2", n_embd=32, n_layer=2, n_head=2), packed_lm(tmp_path)
    config = TrainConfig(engine="native", global_batch=8)
    assert of_numbers(config, model, packed.meta) is None
    found = of_model(config, model, packed, quiet(tmp_path))
    assert found is not None and found.total > found.runtime


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
    meta = precompile(regardless, **inputs, out=quiet(tmp_path))
    assert meta["memory"]["total"] > GIB / 2
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
        found.append((meta, document, of(precompile).params(config), of(precompile).accel(config)))
    assert found[0] == found[1]
    accels = [of(precompile).accel(TrainConfig(micro_batch="auto", device_memory_gib=memory)) for memory in (1.0, 2.0)]
    assert accels[0] != accels[1]


def test_auto_is_the_largest_divisor_that_fits_and_runs() -> None:
    config = TrainConfig(**{**DEVICES, "devices": 2, "global_batch": 24}, micro_batch="auto")
    assert [one.replica_batch for one in candidates(config)] == [12, 6, 4, 3, 2, 1]
    assert [one.accumulation for one in candidates(config)] == [1, 2, 3, 4, 6, 12]

    def held(one: TrainConfig) -> Memory:
        return Memory(0, 0, 0, one.replica_batch, 0, "the backward pass")

    assert fitting(config, held, 5).replica_batch == 4
    assert fitting(config, held, 100, lambda one: one.replica_batch < 4).replica_batch == 3
    assert fitting(config, held, 5, lambda one: one.replica_batch > 4).replica_batch == 1
    assert fitting(config, lambda one: None, None).replica_batch == 12
    assert fitting(config.settled(2), held, 100).replica_batch == 2


def test_train_is_keyed_by_what_auto_is() -> None:
    model, packed = scratch(**BERT), Artifact("sha256:1", "packed", {}, ())
    graphs = [Artifact(f"sha256:{n}", "graphs", {"micro_batch": n}, ()) for n in (2, 3)]
    config = TrainConfig(micro_batch="auto")
    keyed = [of(train).inputs(config, {"model": model, "packed": packed, "graphs": one}) for one in graphs]
    assert [one["micro_batch"] for one in keyed] == [2, 3]
    assert "micro_batch" not in of(train).inputs(config, {"model": model, "packed": packed})


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
    settled, memory = settle(config, *inputs, quiet(tmp_path))
    assert memory is not None and memory.total < 0.72 * GIB
    assert settled.replica_batch == 1
