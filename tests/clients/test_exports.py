"""StableHLO exports run by jax and IREE, in environments without torch and trnflow, agree with eager PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tasks.artifact import Input
from tests.clients.conftest import RunClient
from tests.helpers import small_models

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
assert not [name for name in ("torch", "tasks", "flows") if importlib.util.find_spec(name)]
sys.path.insert(0, folder)
rows = np.load(given)
loader = __import__("load_" + library)
logits = loader.load(folder, int(length))(input_ids=rows["input_ids"], attention_mask=rows["attention_mask"])
np.save(found, np.asarray(logits))
print(json.dumps(sum(1 for line in open(loader.__file__) if line.strip())))
"""


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `<family>` (weights) and `out/<family>` (its export) of each family."""
    root = tmp_path_factory.mktemp("exports")
    weights = {name: _model(root / name, name, *FAMILIES[name]) for name in FAMILIES}
    stage = "tasks.export_neuron:export_neuron"
    calls = [
        small_models.call(stage, {"batch": 2}, root / "out" / name, weights=item) for name, item in weights.items()
    ]
    for result in small_models.run_calls(calls, root):
        assert "meta" in result, result
    return root


def _model(folder: Path, family: str, task: str, sizes: dict[str, Any]) -> Input:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

    torch.manual_seed(0)
    auto = AutoModelForSequenceClassification if task == "classification" else AutoModelForCausalLM
    config = AutoConfig.for_model(family, **sizes)
    auto.from_config(config).save_pretrained(folder)
    return small_models.model_input(folder, task, [16], small_models.LABELS if task == "classification" else None)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["jax", "iree"])
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_eager_pytorchs(
    family: str, library: str, exports: Path, tmp_path: Path, run_client: RunClient
) -> None:
    import numpy as np
    import torch

    from tasks.evaluation.models import load_model
    from tasks.export_neuron import example

    model = load_model(exports / family, FAMILIES[family][0])
    input_ids, attention_mask = example(model, 2, 16)
    with torch.no_grad():
        expected = model(input_ids=input_ids, attention_mask=attention_mask).logits.numpy()
    np.savez(tmp_path / "rows.npz", input_ids=input_ids.numpy(), attention_mask=attention_mask.numpy())
    files = (tmp_path / "rows.npz", tmp_path / "logits.npy")
    lines = run_client(library, RUN, exports / "out" / family, library, "16", *files, alone=True)
    found = np.load(tmp_path / "logits.npy")
    real = attention_mask.bool().numpy() if found.ndim == 3 else slice(None)
    assert np.abs(found[real] - expected[real]).max() < 1e-5
    assert lines <= 22  # 20 and two docstrings
