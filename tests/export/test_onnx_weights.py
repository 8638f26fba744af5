"""Where the weights of an ONNX export are: in the graph's file, or beside it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers import small_models
from trnflow.tasks.evaluation.models import load_model
from trnflow.tasks.export import onnx


@pytest.mark.parametrize(("limit", "apart"), [(16, False), (15, True)])
def test_the_limit_of_weights_in_the_graph_s_file_is_in_bytes(
    limit: int, apart: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ir = pytest.importorskip("onnx_ir")
    weight = ir.Value(name="weight", const_value=ir.tensor(np.zeros(4, np.float32), name="weight"))
    logits = ir.Value(name="logits", shape=ir.Shape([2, 3]))
    node, ids = ir.Node("", "Identity", [weight], outputs=[logits]), ir.Value(name="input_ids", shape=ir.Shape([2, 3]))
    graph = ir.Graph([ids], [logits], nodes=[node], initializers=[weight], opset_imports={"": 20})
    saved: list[Any] = []
    written = SimpleNamespace(model=ir.Model(graph, ir_version=10), save=lambda file, **how: saved.append(how))
    monkeypatch.setattr(torch.onnx, "export", lambda *_, **__: written)
    monkeypatch.setattr(onnx, "WITHIN", limit)
    model = load_model(small_models.bert(tmp_path / "model").path, "classification")
    onnx.write_onnx(tmp_path, model, {"inputs": ["input_ids"], "lengths": [8]})
    assert saved == [{"external_data": apart}]
