"""Real exports of small models: written, reloaded, run and compared by the stage, in processes of their own."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.helpers import small_models
from trnflow.tasks.artifact import Input, Meta
from trnflow.tasks.errors import CompileError, ConfigError, MissingDependency
from trnflow.tasks.export.config import ExportConfig
from trnflow.tasks.export.neuron import optimum_arguments, optimum_command
from trnflow.tasks.export_neuron import environ, export_neuron, rounded_up
from trnflow.tasks.stage import read_json

STAGE = "trnflow.tasks.export_neuron:export_neuron"


def digests(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Meta]:
    """Several exports from one process: {name: result with its `folder`}."""
    root = tmp_path_factory.mktemp("exports")
    bert = small_models.bert(root / "bert")
    llama = small_models.llama(root / "llama")
    stories = Path(os.environ.get("TRNFLOW_SHARED", PROJECT.parent / "shared")) / "assets" / "stories260K-hf"
    half = small_models.llama(root / "half", dtype="bfloat16", tied=False)
    asked: dict[str, tuple[Input, Meta]] = {
        "bert": (bert, {"batch": 3}),
        "llama": (llama, {}),
        "half": (half, {"length": 16}),
        "experts": (small_models.mixtral(root / "experts"), {}),
        "strict": (bert, {"length": 16, "tolerance": 1e-12}),
        "long": (bert, {"length": 65}),
    }
    if stories.is_dir():
        meta = {"task": "causal_lm", "labels": None, "lengths": [128], "dtype": "float32"}
        asked["stories"] = (Input(stories, "model", meta, "sha256:0"), {})
    calls = [
        small_models.call(STAGE, config, root / "out" / name, weights=weights)
        for name, (weights, config) in asked.items()
    ]
    results = small_models.run_calls(calls, root)
    return {name: {**result, "folder": root / "out" / name} for name, result in zip(asked, results, strict=True)}


@pytest.mark.xla
def test_every_length_agrees_with_eager(exports: dict[str, Meta]) -> None:
    meta = exports["bert"]["meta"]
    assert meta["max_difference"] < 1e-5
    assert meta == {
        "target": "stablehlo", "batch": 3, "lengths": [16, 32], "task": "classification", "labels": small_models.LABELS,
        "dtype": "float32", "max_difference": meta["max_difference"], "rows_compared": 6,
        "metrics": {"max_difference": meta["max_difference"], "rows_compared": 6},
    }  # fmt: skip
    assert exports["llama"]["meta"]["max_difference"] < 1e-4
    assert exports["experts"]["meta"]["max_difference"] < 1e-4


@pytest.mark.xla
def test_half_precision_runs_too(exports: dict[str, Meta]) -> None:
    assert 0 <= exports["half"]["meta"]["max_difference"] < 0.5


@pytest.mark.xla
def test_the_folder_is_complete_and_holds_weights_once(exports: dict[str, Meta]) -> None:
    files = digests(exports["llama"]["folder"])
    assert sorted(files) == [
        "16.mlirbc", "32.mlirbc", "README.md", "config.json", "constants.safetensors", "export.json", "generation_config.json",
        "load_iree.py", "load_jax.py", "model.safetensors", "tokenizer.json",
    ]  # fmt: skip
    assert files["model.safetensors"] == digests(exports["llama"]["folder"].parents[1] / "llama")["model.safetensors"]
    assert (exports["llama"]["folder"] / "constants.safetensors").stat().st_size < 1000
    arguments = read_json(exports["llama"]["folder"] / "export.json")["functions"]["16"]["arguments"]
    assert "model.embed_tokens.weight" in [item["name"] for item in arguments]
    assert "lm_head.weight" not in [item["name"] for item in arguments]


@pytest.mark.xla
def test_the_same_model_from_elsewhere_gives_the_same_bytes(exports: dict[str, Meta], tmp_path: Path) -> None:
    """Another process, folder, working directory and order of exports."""
    root = exports["bert"]["folder"].parents[1]
    calls = []
    for name, config in (("llama", {}), ("bert", {"batch": 3})):
        shutil.copytree(root / name, tmp_path / "moved" / name)
        task, labels = ("causal_lm", None) if name == "llama" else ("classification", small_models.LABELS)
        weights = small_models.model_input(tmp_path / "moved" / name, task, [16, 32], labels)
        calls.append(small_models.call(STAGE, config, tmp_path / "again" / name, weights=weights))
    again = small_models.run_calls(calls, tmp_path)
    for name, result in zip(("llama", "bert"), again, strict=True):
        assert result["meta"] == exports[name]["meta"]
        assert digests(tmp_path / "again" / name) == digests(exports[name]["folder"])


@pytest.mark.xla
def test_nothing_of_the_machine_is_in_the_bytecode(exports: dict[str, Meta]) -> None:
    for name in ("bert", "llama"):
        bytecode = (exports[name]["folder"] / "16.mlirbc").read_bytes()
        assert not [word for word in (b".py", b"/tmp", b"site-packages", name.encode()) if word in bytecode]


@pytest.mark.xla
def test_the_readme_names_shapes_and_labels_and_no_place_or_day(exports: dict[str, Meta]) -> None:
    text = (exports["bert"]["folder"] / "README.md").read_text()
    for said in (
        "# BertForSequenceClassification as StableHLO", "| 16 | 16.mlirbc |", "| float32 \\[3, 3\\] |",
        "int64 of shape [3, length]", "| 2 | sad $10 |", "On 6 rows of random tokens",
    ):  # fmt: skip
        assert said in text
    assert str(PROJECT) not in text and "/tmp" not in text and not re.search(r"20\d\d", text)
    assert "## Labels" not in (exports["llama"]["folder"] / "README.md").read_text()


@pytest.mark.xla
def test_too_large_a_difference_fails(exports: dict[str, Meta]) -> None:
    error = exports["strict"]["error"]
    assert error["type"] == "ModelError"
    assert "length 16 gives logits" in error["message"] and "export.tolerance" in error["fix"]


@pytest.mark.xla
def test_a_length_beyond_the_models_positions_fails(exports: dict[str, Meta]) -> None:
    assert exports["long"]["error"]["message"] == "the model has positions for 64 tokens, and the export is for 65"


@pytest.mark.xla
def test_a_real_model(shared: Path, exports: dict[str, Meta]) -> None:
    assert exports["stories"]["meta"]["max_difference"] < 1e-3
    source = shared / "assets" / "stories260K-hf" / "tokenizer_config.json"
    assert (exports["stories"]["folder"] / source.name).read_bytes() == source.read_bytes()


def test_rounding_is_upwards() -> None:
    assert [rounded_up(value) for value in (0.0, 2.31e-7, 2e-7, 9.7e-5, 1.5)] == [0.0, 3e-7, 2e-7, 1e-4, 2.0]


def test_only_stablehlo_is_pinned_to_the_cpu() -> None:
    assert environ(ExportConfig())["PJRT_DEVICE"] == "CPU"
    assert "PJRT_DEVICE" not in environ(ExportConfig(target="neuron"))


def test_lengths_must_come_from_somewhere(tmp_path: Path) -> None:
    weights = Input(tmp_path, "model", {"task": "causal_lm"}, "sha256:0")
    with pytest.raises(ConfigError, match="lengths"):
        export_neuron(ExportConfig(), weights=weights, out=small_models.workdir(tmp_path / "out"))


def neuron_input(tmp_path: Path, task: str) -> Input:
    (tmp_path / "model").mkdir(exist_ok=True)
    (tmp_path / "model" / "config.json").write_text("{}")
    return Input(tmp_path / "model", "model", {"task": task, "lengths": [128]}, "sha256:0")


def test_neuron_without_its_compiler_says_where_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    config = ExportConfig(target="neuron")
    if optimum_command(config) is not None:
        pytest.skip("optimum-neuron is installed here")
    with pytest.raises(MissingDependency) as caught:
        export_neuron(config, weights=neuron_input(tmp_path, "causal_lm"), out=small_models.workdir(tmp_path / "out"))
    assert "neuronx-cc" in caught.value.fix and "export.target=stablehlo" in caught.value.fix


def test_neuron_arguments(tmp_path: Path) -> None:
    """As optimum-neuron 0.4 takes them: language models are sharded in half precision, encoders are cast."""
    config = ExportConfig(target="neuron", cores=8, auto_cast_type="fp16", instance_type="trn1")
    lm = optimum_arguments(config, neuron_input(tmp_path, "causal_lm"), 128, tmp_path / "128")
    assert lm == [
        "--model", str(tmp_path / "model"), "--task", "text-generation", "--batch_size", "1", "--sequence_length", "128",
        "--tensor_parallel_size", "8", "--torch_dtype", "float16", "--instance_type", "trn1", str(tmp_path / "128"),
    ]  # fmt: skip
    encoder = optimum_arguments(config, neuron_input(tmp_path, "classification"), 128, tmp_path / "128")
    assert encoder[4:10] == ["--batch_size", "1", "--sequence_length", "128", "--auto_cast", "matmul"]


def stand_in(tmp_path: Path, body: str) -> str:
    file = tmp_path / "python"
    file.write_text(f"#!{sys.executable}\nimport json, pathlib, sys\n{body}\n")
    file.chmod(0o755)
    return str(file)


def test_the_exporter_of_another_environment_is_called(tmp_path: Path) -> None:
    body = (
        "folder = pathlib.Path(sys.argv[-1]); folder.mkdir(parents=True)\n"
        "(folder / 'argv.json').write_text(json.dumps(sys.argv[1:3]))"
    )
    config = ExportConfig(target="neuron", neuron_python=stand_in(tmp_path, body))
    said: list[Meta] = []
    meta = export_neuron(config, neuron_input(tmp_path, "causal_lm"), small_models.workdir(tmp_path / "out", said))
    assert meta["max_difference"] is None and meta["rows_compared"] == 0 and meta["lengths"] == [128]
    assert json.loads((tmp_path / "out" / "128" / "argv.json").read_text()) == ["-m", "optimum.exporters.neuron"]
    assert any("never been run" in event.get("warn", "") for event in said)


def test_no_file_of_the_working_folder_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler writes its files there."""
    exporters, out = tmp_path / "lib/optimum/exporters", small_models.workdir(tmp_path / "out")
    exporters.mkdir(parents=True)
    (exporters / "neuron.py").write_text("import json, pathlib, sys; pathlib.Path(sys.argv[-1]).mkdir(parents=True)")
    (out.scratch / "json.py").write_text("raise SystemExit('a file of the working folder was imported')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib"))
    config = ExportConfig(target="neuron", neuron_python=sys.executable)
    export_neuron(config, neuron_input(tmp_path, "causal_lm"), out)


def test_a_failing_compiler_is_quoted(tmp_path: Path) -> None:
    python = stand_in(tmp_path, "print('NCC_123: no'); sys.exit(3)")
    config = ExportConfig(target="neuron", neuron_python=python)
    with pytest.raises(CompileError, match="exit code 3:\nNCC_123: no"):
        export_neuron(config, neuron_input(tmp_path, "causal_lm"), small_models.workdir(tmp_path / "out"))


def test_a_wrong_neuron_python_is_named(tmp_path: Path) -> None:
    config = ExportConfig(target="neuron", neuron_python=str(tmp_path / "none"))
    with pytest.raises(MissingDependency, match=r"export\.neuron_python"):
        export_neuron(config, neuron_input(tmp_path, "causal_lm"), small_models.workdir(tmp_path / "out"))


def test_a_language_model_is_handed_over_in_half_precision(tmp_path: Path) -> None:
    """optimum-neuron takes the dtype from config.json."""
    body = (
        "model, folder = pathlib.Path(sys.argv[sys.argv.index('--model') + 1]), pathlib.Path(sys.argv[-1])\n"
        "folder.mkdir(parents=True)\n"
        "(folder / 'seen.json').write_text((model / 'config.json').read_text())\n"
        "(folder / 'weights').write_bytes((model / 'model.safetensors').read_bytes())"
    )
    weights = small_models.llama(tmp_path / "model")
    config = ExportConfig(target="neuron", auto_cast_type="fp16", neuron_python=stand_in(tmp_path, body))
    export_neuron(config, weights, small_models.workdir(tmp_path / "out"))
    seen = read_json(tmp_path / "out" / "16" / "seen.json")
    assert (seen["dtype"], seen["torch_dtype"]) == ("float16", "float16")
    assert read_json(tmp_path / "model" / "config.json")["dtype"] == "float32"
    assert (tmp_path / "out" / "16" / "weights").read_bytes() == (tmp_path / "model" / "model.safetensors").read_bytes()


def test_an_environment_without_neurons_packages_is_a_missing_dependency(tmp_path: Path) -> None:
    body = "sys.exit(\"Traceback ...\\nModuleNotFoundError: No module named 'neuronx_distributed'\")"
    config = ExportConfig(target="neuron", neuron_python=stand_in(tmp_path, body))
    with pytest.raises(MissingDependency, match="needs the package neuronx_distributed"):
        export_neuron(config, small_models.bert(tmp_path / "model"), small_models.workdir(tmp_path / "out"))


def test_a_failure_that_is_only_logged_counts(tmp_path: Path) -> None:
    body = "print('An error occured with the error message: logits are wrong.'); pathlib.Path(sys.argv[-1]).mkdir()"
    config = ExportConfig(target="neuron", neuron_python=stand_in(tmp_path, body))
    with pytest.raises(CompileError, match="logits are wrong"):
        export_neuron(config, small_models.bert(tmp_path / "model"), small_models.workdir(tmp_path / "out"))


def test_the_versions_that_neuron_export_depends_on_are_in_the_key() -> None:
    versions = export_neuron.stage.accel(ExportConfig(target="neuron"))["versions"]
    assert {"neuronx-distributed", "transformers", "neuronx-cc", "optimum-neuron"} <= versions.keys()
    assert versions["transformers"]
