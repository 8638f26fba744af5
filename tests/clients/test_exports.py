"""StableHLO exports run by jax and IREE, in environments without torch and trnflow, agree with eager PyTorch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.clients import figures
from tests.clients.conftest import CLIENTS, RunClient
from tests.conftest import PROJECT
from tests.helpers import small_models
from tests.helpers.products import sampled
from trnflow.tasks.artifact import Input
from trnflow.tasks.evaluation.models import EAGER
from trnflow.tasks.stage import read_json
from trnflow.tasks.system.model_process import ENVIRON

pytestmark = pytest.mark.xla

SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("classification", {**SIZES, "max_position_embeddings": 64}),
    "roberta": ("classification", {**SIZES, "max_position_embeddings": 66, "pad_token_id": 1}),
    "distilbert": ("classification", {"vocab_size": 64, "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}),
    "modernbert": ("classification", {**SIZES, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2}),
    "llama": ("causal_lm", SIZES),
    "gpt_neox": ("causal_lm", SIZES),
}
RUN = """
import importlib.util, json, sys
import numpy as np
folder, library, length, given, found = sys.argv[1:]
assert not [name for name in ("torch", "trnflow") if importlib.util.find_spec(name)]
sys.path.insert(0, folder)
rows = np.load(given)
loader = __import__("load_" + library)
logits = loader.load(folder, int(length))(input_ids=rows["input_ids"], attention_mask=rows["attention_mask"])
np.save(found, np.asarray(logits))
print(json.dumps(sum(1 for line in open(loader.__file__) if line.strip())))
"""


SAMPLE = {"jax": ("bert", "roberta"), "iree": ("llama",)}
"""{library: families}; the others are nightly. The README's script runs roberta's by jax and llama's by IREE."""
EXPORTED = ("bert", "roberta", "llama")


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `<family>` (weights) and `out/<family>` (its export) of each family of EXPORTED."""
    return exported(tmp_path_factory.mktemp("exports"), EXPORTED)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `exports`, of the other families."""
    return exported(tmp_path_factory.mktemp("others"), [name for name in FAMILIES if name not in EXPORTED])


def exported(root: Path, names: Iterable[str]) -> Path:
    weights = {name: family_model(root / name, name, *FAMILIES[name]) for name in names}
    stage = "trnflow.tasks.export_neuron:export_neuron"
    calls = [
        small_models.call(stage, {"batch": 2}, root / "out" / name, weights=item) for name, item in weights.items()
    ]
    for result in small_models.run_calls(calls, root):
        assert "meta" in result, result
    return root


def family_model(folder: Path, family: str, task: str, sizes: dict[str, Any]) -> Input:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    torch.manual_seed(0)
    auto = AutoModelForSequenceClassification if task == "classification" else AutoModelForCausalLM
    auto.from_config(AutoConfig.for_model(family, **sizes)).save_pretrained(folder)
    return small_models.model_input(folder, task, [16], small_models.LABELS if task == "classification" else None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "family"),
    [
        pytest.param(library, family, marks=[] if family in SAMPLE[library] else pytest.mark.nightly)
        for library in SAMPLE
        for family in FAMILIES
    ],
)
def test_logits_are_eager_pytorchs(
    family: str, library: str, tmp_path: Path, run_client: RunClient, request: pytest.FixtureRequest
) -> None:
    import numpy as np
    import torch

    exports: Path = request.getfixturevalue("exports" if family in EXPORTED else "others")

    from trnflow.tasks.evaluation.models import load_model
    from trnflow.tasks.export.examples import example

    model = load_model(exports / family, FAMILIES[family][0])
    input_ids, attention_mask = example(model, 2, 16)
    with torch.no_grad():
        expected = model(input_ids=input_ids, attention_mask=attention_mask).logits.numpy()
    np.savez(tmp_path / "rows.npz", input_ids=input_ids.numpy(), attention_mask=attention_mask.numpy())
    files = (tmp_path / "rows.npz", tmp_path / "logits.npy")
    lines = run_client(library, RUN, exports / "out" / family, library, "16", *files, alone=True)
    found = np.load(tmp_path / "logits.npy")
    real = attention_mask.bool().numpy() if found.ndim == 3 else slice(None)
    difference = float(np.abs(found[real] - expected[real]).max())
    package = {"jax": "jax", "iree": "iree-base-compiler"}[library]
    figures.note(package, "the StableHLO export, 6 families, without torch", "logits", difference, library)
    assert difference < 1e-5
    assert lines <= 22  # 20 and two docstrings


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[] if name in EXPORTED else pytest.mark.nightly) for name in FAMILIES]
)
def test_an_export_holds_no_tensor_twice(family: str, request: pytest.FixtureRequest) -> None:
    from safetensors.numpy import load_file

    exports: Path = request.getfixturevalue("exports" if family in EXPORTED else "others")
    weights, *_ = (load_file(file) for file in (exports / "out" / family).glob("model*.safetensors"))
    file = exports / "out" / family / "constants.safetensors"
    constants = load_file(file) if file.exists() else {}
    large = {name: item for name, item in constants.items() if item.ndim > 1 and item.dtype.kind == "f"}
    stored = [(item.shape, item.tobytes()) for item in weights.values()]
    assert not [name for name, item in large.items() if (item.shape, item.tobytes()) in stored]


README = """
import importlib.util, json, os, re, sys
from pathlib import Path
folder, library = sys.argv[1:]
assert not [name for name in ("torch", "trnflow") if importlib.util.find_spec(name)]
os.chdir(folder)
sys.path.insert(0, folder)
(script,) = re.findall("```python\\n(.*?)```", Path("README.md").read_text(), re.DOTALL)
found = {}
exec(script.replace("from load_jax import", "from load_" + library + " import"), found)
print(json.dumps([found["logits"].shape, found["tokens"], found["logits"].tolist()]))
"""


@pytest.mark.slow
@sampled("family, library", ["roberta", "llama"], ["jax", "iree"])
def test_the_readmes_own_script_runs(family: str, library: str, exports: Path, run_client: RunClient) -> None:
    """Where neither torch nor trnflow is; its logits are those of a plain call of the model."""
    import torch

    from trnflow.tasks.evaluation.models import load_model

    shape, tokens, found = run_client(library, README, exports / "out" / family, library, alone=True)
    with torch.no_grad():
        expected = load_model(exports / family, FAMILIES[family][0])(input_ids=torch.tensor([tokens])).logits
    assert shape == ([2, 2] if family == "roberta" else [2, 16, 64])
    logits = torch.tensor(found)[:1]
    assert (logits if family == "roberta" else logits[:, : len(tokens)]).allclose(expected, atol=1e-5)


STAGES = """
import json, runpy, sys
from pathlib import Path
import jax
from jaxlib import xla_client
options, compile_options = [], xla_client.CompileOptions
xla_client.CompileOptions = lambda: options.append(compile_options()) or options[-1]
sys.argv = ["small_models", sys.argv[1]]
runpy.run_module("tests.helpers.small_models", run_name="__main__")
results = json.loads(Path(sys.argv[1]).with_name("results.json").read_text())
figures = [event["figures"] for result in results for event in result["said"] if "figures" in event]
levels = [one.executable_build_options.debug_options.xla_backend_optimization_level for one in options]
print(json.dumps([*(result["meta"] for result in results), figures, levels]))
"""


@pytest.mark.slow
def test_where_jax_is_installed_256_rows_are_compared_and_the_export_is_timed(
    tmp_path: Path, run_client: RunClient
) -> None:
    """The stages themselves, with jax laid over their environment."""
    rows = [[row] for row in small_models.random_rows(300, "classification", longest=16)]
    packed = small_models.packed_rows(tmp_path / "rows", "classification", {"test": {16: rows}})
    weights, said = small_models.bert(tmp_path / "bert"), _texts(tmp_path / "texts", len(rows))
    meta = {"target": "stablehlo", "batch": 1, "lengths": [16], "task": "classification"}
    exported = Input(tmp_path / "export", "exported", meta, "sha256:3")
    parts = {"texts": said, "packed": packed, "weights": weights, "exported": exported}
    calls = [
        small_models.call("trnflow.tasks.export_neuron:export_neuron", {"length": 16}, exported.path, weights=weights),
        small_models.call("trnflow.tasks.evaluate_model:evaluate_model", {}, tmp_path / "evaluation", **parts),
    ]
    (tmp_path / "calls.json").write_text(json.dumps(calls))
    path = os.pathsep.join(map(str, (CLIENTS / "jax", PROJECT)))
    environ = {"PYTHONPATH": path, **EAGER, **ENVIRON}
    made, evaluated, figures, levels = run_client("jax", STAGES, tmp_path / "calls.json", **environ)
    assert made["rows_compared"] == 256 and made["max_difference"] < 1e-5
    assert evaluated["metrics"]["export_max_difference"] < 1e-5
    assert read_json(tmp_path / "evaluation" / "report.json")["export"]["rows"] == 256
    timed = {name: value for event in figures for name, value in event.items()}
    assert (
        0 < timed["export_latency_p50_ms"] <= timed["export_latency_p95_ms"] and timed["export_samples_per_second"] > 0
    )
    assert levels == [0, 0, 3]  # the stages compare without XLA's optimisation; the timed calls are of optimised code
    _metrics_by_scikit_learn(tmp_path / "evaluation")
    for kept in ("report.json", "report.html"):
        assert "latency" not in (tmp_path / "evaluation" / kept).read_text()


def _metrics_by_scikit_learn(evaluation: Path) -> None:
    import numpy as np
    import pyarrow.parquet as pq
    from sklearn.metrics import accuracy_score, f1_score, log_loss, matthews_corrcoef

    read = pq.read_table(evaluation / "predictions.parquet").to_pydict(maps_as_pydicts="strict")
    said = read_json(evaluation / "report.json")
    labels = [one["label"] for one in said["classes"]]
    probabilities = np.array([[row[label] for label in labels] for row in read["probabilities"]], np.float64)
    truth = [labels.index(label) for label in read["label"]]
    again = {
        "accuracy": accuracy_score(read["label"], read["predicted"]),
        "f1_weighted": f1_score(read["label"], read["predicted"], average="weighted"),
        "mcc": matthews_corrcoef(read["label"], read["predicted"]),
        "log_loss": log_loss(truth, probabilities / probabilities.sum(1, keepdims=True), labels=range(len(labels))),
    }
    difference = max(abs(value - said["metrics"][name]) for name, value in again.items())
    figures.note("scikit-learn", "predictions.parquet", "accuracy, F1, MCC, log loss", float(difference))
    assert difference < 1e-6


def _texts(folder: Path, rows: int) -> Input:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir()
    pq.write_table(pa.table({"text": [f"row {n}" for n in range(rows)], "label": [0] * rows}), folder / "test.parquet")
    return Input(folder, "texts", {}, "sha256:2")
