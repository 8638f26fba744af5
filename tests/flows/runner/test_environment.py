"""What of the environment is in a key: the distributions a stage imports, its compiler, flags in canonical form."""

from __future__ import annotations

from pathlib import Path

import pytest

from trnflow.flows.recipes import recipe as settings
from trnflow.tasks.errors import ConfigError
from trnflow.tasks.evaluate_model import EvaluateConfig, evaluate_model
from trnflow.tasks.export.config import ExportConfig
from trnflow.tasks.export_neuron import accelerator
from trnflow.tasks.keys.code_closure import closure
from trnflow.tasks.keys.hash_cache import Memo
from trnflow.tasks.system.compiler_flags import canonical_flags

NUMERIC = {"numpy", "torch", "torch-xla", "transformers"}
ENVIRONMENT = {
    "load_data": {"datasets", "numpy", "pyarrow"},
    "format_prompts": {"jinja2", "numpy", "pyarrow"},
    "tokenize_text": {"numpy", "pyarrow", "tokenizers"},
    "pack_chunks": {"numpy", "pyarrow"},
    "precompile": NUMERIC | {"peft"},
    "train": NUMERIC | {"peft", "safetensors"},
    "consolidate": {"numpy", "safetensors", "tokenizers", "torch", "transformers"},
    "export_neuron": {"jinja2", "numpy", "safetensors", "torch", "torch-xla", "transformers"},
    "evaluate_model": {"jinja2", "matplotlib", "numpy", "pillow", "pyarrow", "scikit-learn", "scipy", "tokenizers"},
    "fit_baseline": {"numpy", "pyarrow", "scikit-learn", "scipy", "threadpoolctl"},
    "predict_rows": NUMERIC | {"jinja2", "pyarrow", "safetensors", "tokenizers"},
}


def test_each_stage_names_the_distributions_that_it_imports_and_no_others(tmp_path: Path) -> None:
    for stage, expected in ENVIRONMENT.items():
        code, env = closure(f"tasks.{stage}", Memo(tmp_path / "memo.db"))
        assert set(env) == {"python", *expected}, stage
        assert not {name for name in code if name.startswith("trnflow.flows")}


def test_the_loop_is_not_what_is_compiled_nor_the_engines_what_is_consolidated(tmp_path: Path) -> None:
    memo = Memo(tmp_path / "memo.db")
    assert "trnflow.tasks.training.xla.engine" in closure("trnflow.tasks.precompile", memo)[0]
    assert (
        not {"trnflow.tasks.training.loop", "trnflow.tasks.training.checkpoint.shards"}
        & closure("trnflow.tasks.precompile", memo)[0].keys()
    )
    assert {name for name in closure("trnflow.tasks.consolidate", memo)[0] if name.startswith("trnflow.tasks.training.")} == {
        "trnflow.tasks.training.batches", "trnflow.tasks.training.batches.sampler",
        "trnflow.tasks.training.checkpoint", "trnflow.tasks.training.checkpoint.grown_weights",
        "trnflow.tasks.training.checkpoint.merged_weights",
        "trnflow.tasks.training.checkpoint.pretrained_weights", "trnflow.tasks.training.checkpoint.shards",
        "trnflow.tasks.training.checkpoint.starting_weights", "trnflow.tasks.training.model",
        "trnflow.tasks.training.model.heads", "trnflow.tasks.training.model.lora",
        "trnflow.tasks.training.model.pretrained", "trnflow.tasks.training.model.quantised",
        "trnflow.tasks.training.partition_specs", "trnflow.tasks.training.settings",
        "trnflow.tasks.training.settings.group", "trnflow.tasks.training.settings.lora", "trnflow.tasks.training.shared_types",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("--a=1 --b=2", "--b=2 --a=1", True),
        ("--model-type transformer -O1", "-O1 --model-type transformer", True),
        ("--x='a b' -O1", "-O1  --x='a b'", True),
        ("--a=1 --a=2", "--a=2 --a=1", False),
        ("--a=1", "--a=2", False),
        ("--a b", "--a --b", False),
        ("-O1 --cache_dir=/here", "--cache_dir /there -O1", True),
    ],
)
def test_the_canonical_form_of_flags(one: str, other: str, same: bool) -> None:
    assert (canonical_flags(one) == canonical_flags(other)) is same


def test_the_compiler_of_another_environment_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """export.neuron_python: the versions in that environment, found as an installer leaves them."""
    python = tmp_path / "bin/python"
    config = ExportConfig(target="neuron", neuron_python=str(python))
    seen = []
    for version in ("2.1", "2.2"):
        about = tmp_path / f"lib/python3.10/site-packages/neuronx_cc-{version}.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: neuronx-cc\nVersion: {version}\n")
        seen.append(accelerator(config))
        (about / "METADATA").unlink()
        about.rmdir()
    assert [entry["versions"]["neuronx-cc"] for entry in seen] == ["2.1", "2.2"]
    monkeypatch.setenv("NEURON_CC_FLAGS", "-O2")
    assert accelerator(config)["flags"] == {"NEURON_CC_FLAGS": ["-O2"]}
    assert accelerator(ExportConfig()) == {}


def test_the_machine_that_evaluates_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of threads and the GPU decide the last bits of the figures."""
    accel, seen = evaluate_model.stage.accel, []
    for cores in (2, 3):
        monkeypatch.setattr("os.sched_getaffinity", lambda pid, cores=cores: set(range(cores)))
        seen.append((accel(EvaluateConfig()), evaluate_model.stage.environ(EvaluateConfig())["OMP_NUM_THREADS"]))
    assert [(found["threads"], threads) for found, threads in seen] == [(2, "2"), (3, "3")]
    assert accel(EvaluateConfig())["device"].startswith("cpu ")
    assert accel(EvaluateConfig(device="cuda"))["device"] != accel(EvaluateConfig(device="cpu"))["device"]


def test_flags_that_the_key_would_not_see_are_refused() -> None:
    with pytest.raises(ConfigError, match="XLA_FLAGS changes results"):
        settings.load("demo", ["launch.environment={XLA_FLAGS: --one=1}"])
