"""The script in an export's README, run by a stand-in of the loader; tests/clients/test_exports.py runs it by jax and IREE."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trnflow.tasks.export.readme import write_readme
from trnflow.tasks.stage import write_json


@pytest.mark.parametrize("length", [1, 3, 16])
@pytest.mark.parametrize("padding", [None, 1])
def test_the_script_fits_the_shortest_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int, padding: int | None
) -> None:
    outputs = [{"name": "logits", "shape": [2, 3], "dtype": "float32"}]
    function = {"bytecode": "x.mlirbc", "stablehlo": "1", "arguments": [], "outputs": outputs}
    functions = {str(length): function, "32": function}
    document = {"batch": 2, "inputs": ["input_ids", "attention_mask"], "functions": functions}
    write_json(tmp_path / "export.json", document)
    write_json(tmp_path / "config.json", {"model_type": "bert", "pad_token_id": padding})
    write_readme(tmp_path, {"task": "classification", "dtype": "float32", "rows_compared": 2, "max_difference": 1e-7})
    text = (tmp_path / "README.md").read_text()
    assert "of each row, in float32" in text
    (script,) = re.findall("```python\n(.*?)```", text, re.DOTALL)
    given: dict[str, Any] = {}

    def load(folder: str, asked: int) -> Any:
        given["length"] = asked
        return lambda **inputs: given.update(inputs) or [[0.0]]

    monkeypatch.setitem(sys.modules, "load_jax", SimpleNamespace(load=load))
    exec(script, {})
    assert given["length"] == length and given["input_ids"].shape == (2, length)
    tokens = given["input_ids"][0, : given["attention_mask"][0].sum()]
    assert len(tokens) >= 1 and (padding or 0) not in tokens


@pytest.mark.parametrize(
    ("task", "labels", "said"),
    [
        ("classification", ["a", "b"], "Their softmax is the probability of each label."),
        ("multi_label", ["a", "b"], "The sigmoid of each is the score of its label. A text has each label with a score of"
         " at least 0.36, which"),
        ("reranker", ["relevant"], "The sigmoid of each is the score of its label."),
        ("regression", ["price"], "They are the numbers that the model predicts."),
        ("embedding", ["anchor", "positive"], "They are a text's vector."),
        ("causal_lm", None, ""),
    ],
)  # fmt: skip
def test_it_says_what_logits_mean(task: str, labels: list[str] | None, said: str, tmp_path: Path) -> None:
    document = {"batch": 2, "inputs": ["input_ids", "attention_mask"], "labels": labels, "lengths": [8]}
    write_json(tmp_path / "export.json", {**document, "file": "model.onnx", "opset": 20})
    write_json(tmp_path / "config.json", {"model_type": "bert", "pad_token_id": 0})
    write_json(tmp_path / "trnflow.json", {"decision": {"threshold": 0.36}} if task == "multi_label" else {})
    write_readme(tmp_path, {"task": task, "dtype": "float32", "rows_compared": 2, "max_difference": 1e-7})
    text = (tmp_path / "README.md").read_text()
    assert (f"## Logits\n\n{said}" in text) if said else "## Logits" not in text
    assert ("## Labels" in text) == (labels is not None and task != "embedding")
