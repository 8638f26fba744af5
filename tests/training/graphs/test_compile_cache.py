"""What torch.compile made in precompile is there in train."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tests.training.run_stage import run_stage, trained_with
from tests.training.toys import LLAMA, packed_lm, scratch
from trnflow.tasks.config import graph_params, keyed_params
from trnflow.tasks.precompile import precompile
from trnflow.tasks.train import TrainConfig
from trnflow.tasks.training.graphs.compile_cache import CACHE_FILE


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["full", "lora"])
def test_train_compiles_nothing_that_precompile_did(method: str, tmp_path) -> None:
    pytest.importorskip("setuptools", reason="torch.compile needs setuptools")
    config = TrainConfig(engine="native", global_batch=8, max_steps=2, method=method, compile=True, compile_cache=True)
    inputs = {"model": scratch(**LLAMA), "packed": packed_lm(tmp_path / "packed")}
    graphs = run_stage(precompile, config, tmp_path / "graphs", **inputs).artifact
    assert (graphs.path / CACHE_FILE).stat().st_size > 1000
    found = run_stage(trained_with, config, tmp_path / "with", **inputs, graphs=graphs)
    assert found.figures["fxgraph_cache_hit"] > 0 and found.figures["fxgraph_cache_miss"] == 0
    alone = config.model_copy(update={"compile_cache": False})
    without = run_stage(trained_with, alone, tmp_path / "without", **inputs, graphs=graphs)
    assert found.artifact.meta == without.artifact.meta


def test_it_is_asked_for_and_keys_precompile_alone() -> None:
    on, off = TrainConfig(engine="native", compile=True, compile_cache=True), TrainConfig(engine="native", compile=True)
    assert keyed_params(on) == keyed_params(off) and graph_params(on) != graph_params(off)
    with pytest.raises(ValidationError, match="set compile=true"):
        TrainConfig(engine="native", compile_cache=True)
