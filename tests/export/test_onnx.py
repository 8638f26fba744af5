"""ONNX exports of small models, opened by onnx and onnxruntime alone."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.clients import figures
from tests.clients.test_exports import FAMILIES, family_model
from tests.helpers import small_models
from trnflow.tasks.artifact import Input, Meta
from trnflow.tasks.errors import MissingDependency, ModelError
from trnflow.tasks.export import targets
from trnflow.tasks.export.config import ExportConfig
from trnflow.tasks.export.targets import open_export
from trnflow.tasks.export_neuron import needs

STAGE = "trnflow.tasks.export_neuron:export_neuron"
README = """
import json, re, sys
(script,) = re.findall("```python\\n(.*?)```", open("README.md").read(), re.DOTALL)
found = {}
exec(script, found)
assert "torch" not in sys.modules and "trnflow" not in sys.modules
print(json.dumps([found["tokens"], found["logits"].tolist()]))
"""


Exports = dict[str, tuple[Input, Meta]]
"""{name: (model, result with its `folder`)}"""
SAMPLE = ("bert", "modernbert", "llama")
"""Of the families; the others are nightly."""
OTHERS = [family for family in FAMILIES if family not in SAMPLE]


def exported(models: dict[str, Input], root: Path) -> Exports:
    """Export the models in one process."""
    calls = [
        small_models.call(STAGE, {"target": "onnx", "batch": 3}, root / "out" / name, weights=weights)
        for name, weights in models.items()
    ]
    results = small_models.run_calls(calls, root)
    return {
        name: (weights, {**result, "folder": root / "out" / name})
        for (name, weights), result in zip(models.items(), results, strict=True)
    }


def families(root: Path, names: Iterable[str]) -> dict[str, Input]:
    return {name: family_model(root / name, name, *FAMILIES[name]) for name in names}


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Exports:
    """`again` is made by another process."""
    root = tmp_path_factory.mktemp("onnx")
    models = families(root, SAMPLE) | {"experts": small_models.mixtral(root / "experts")}
    models["half"] = small_models.llama(root / "half", dtype="bfloat16", tied=False)
    return exported(models, root) | exported({"again": models["bert"]}, root)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Exports:
    root = tmp_path_factory.mktemp("onnx")
    return exported(families(root, OTHERS), root)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SAMPLE, "experts", "half"])
def test_onnxruntime_gives_pytorchs_logits_for_any_rows_and_tokens(exports: Exports, name: str) -> None:
    check_logits(*exports[name])


@pytest.mark.nightly
@pytest.mark.parametrize("name", OTHERS)
def test_other_families_are_exported_too(others: Exports, name: str) -> None:
    check_logits(*others[name])
    check_model(others[name][1])


def check_logits(weights: Input, result: Meta) -> None:
    import onnxruntime
    import torch

    from trnflow.tasks.evaluation.models import load_model
    from trnflow.tasks.export.examples import example

    model = load_model(weights.path, weights.meta["task"]).float()
    session = onnxruntime.InferenceSession(result["folder"] / "model.onnx")
    assert [one.shape for one in session.get_inputs()] == [["batch", "length"]] * 2
    largest = 0.0
    for number, (rows, length) in enumerate([(1, 1), (1, 7), (5, 16), (2, 33), (4, 64)]):
        ids, mask = example(model, rows, length, number)
        with torch.inference_mode():
            expected = model(input_ids=ids, attention_mask=mask).logits
        found = torch.from_numpy(session.run(None, {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})[0])
        real = mask.bool() if found.ndim == 3 else slice(None)
        largest = max(largest, float((found - expected)[real].abs().max()))
        assert found.dtype == torch.float32 and largest < 1e-5, (rows, length)
    figures.note("onnxruntime", "the ONNX export, 6 families, any rows and tokens", "logits", largest)


@pytest.mark.slow
def test_onnx_finds_the_model_sound_and_nothing_of_this_machine_in_it(exports: Exports) -> None:
    for _, result in exports.values():
        check_model(result)


def check_model(result: Meta) -> None:
    import onnx

    file = result["folder"] / "model.onnx"
    onnx.checker.check_model(file, full_check=True)
    assert not [word for word in (b".py", b"site-packages", b"trnflow/") if word in file.read_bytes()]
    meta = result["meta"]
    assert meta["dtype"] == "float32" and meta["rows_compared"] >= 256 and meta["max_difference"] < 1e-5


@pytest.mark.slow
def test_equal_models_give_equal_bytes(exports: Exports) -> None:
    def digests(name: str) -> dict[str, str]:
        folder = exports[name][1]["folder"]
        return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}

    assert digests("bert") == digests("again")
    assert {*digests("bert")} == {
        "README.md", "config.json", "export.json", "model.onnx", "tokenizer.json",
    }  # fmt: skip


@pytest.mark.slow
def test_the_readmes_own_script_runs_without_torch_and_trnflow(exports: Exports) -> None:
    import torch

    from trnflow.tasks.evaluation.models import load_model

    weights, result = exports["bert"]
    ran = subprocess.run(
        [sys.executable, "-I", "-c", README], cwd=result["folder"], capture_output=True, text=True, check=True
    )
    tokens, logits = json.loads(ran.stdout.splitlines()[-1])
    with torch.no_grad():
        expected = load_model(weights.path, "classification")(input_ids=torch.tensor([tokens])).logits
    assert torch.tensor(logits)[:1].allclose(expected, atol=1e-5)


def test_without_its_packages_a_run_is_refused_before_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "find_spec", lambda name: None if name == "onnxscript" else find_spec(name))
    known = SimpleNamespace(here=Path("/"))
    with pytest.raises(MissingDependency, match=r"export.target is onnx, and onnxscript is not installed") as caught:
        list(needs(ExportConfig(target="onnx"), known))
    assert "pip install 'trnflow[onnx]'" in caught.value.fix


def test_a_folder_of_another_format_is_refused(tmp_path: Path) -> None:
    for document in ({"format": "trnflow-onnx", "version": 2}, {"format": "another"}):
        (tmp_path / "export.json").write_text(json.dumps(document))
        with pytest.raises(ModelError, match="that this version reads"):
            open_export(tmp_path)
